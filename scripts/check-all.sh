#!/usr/bin/env bash
# Types and every test. C++ is compiled and tested while the types are checked and Python's tests
# begin: the compiler waits for the disk, and they for servers.
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
