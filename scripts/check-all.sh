#!/usr/bin/env bash
# Check types, build the C++ core and run every test. The types, and the C++ tests with sanitizers, are checked beside
# the rest, with a low priority where nothing waits for an answer.
set -uo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
mkdir -p build
nice -n 15 "$VENV/bin/mypy" >build/mypy.log 2>&1 &
types=$!
BUILD_NICE=15 scripts/native-tests.sh thread address >build/native-tests.log 2>&1 &
native=$!
make --no-print-directory "$VENV/.installed" && scripts/tests.sh
result=$?
wait "$types" || result=1
cat build/mypy.log
if wait "$native"; then
  grep -E "^C\+\+ tests|passed, " build/native-tests.log
else
  cat build/native-tests.log
  result=1
fi
exit "$result"
