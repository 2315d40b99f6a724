#!/usr/bin/env bash
# Check types and run every test. The C++ tests, with sanitizers, run beside mypy and the Python tests; they are built
# with a low priority: tests wait for answers, compilers do not.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
BUILD_NICE=15 scripts/native-tests.sh thread address >build/native-tests.log 2>&1 &
native=$!
"${VENV:-.venv}/bin/mypy" && scripts/tests.sh
python=$?
if wait "$native"; then
  grep -E "^C\+\+ tests|passed" build/native-tests.log
else
  cat build/native-tests.log
  exit 1
fi
exit "$python"
