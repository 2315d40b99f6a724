#!/usr/bin/env bash
# Check types and run every test. The C++ tests are built and run in parallel with mypy and the
# Python tests.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
scripts/native-tests.sh plain thread address >build/native-tests.log 2>&1 &
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
