#!/usr/bin/env bash
# Every Python test, in two halves at once: most of them wait for servers more than they compute.
# Each half has servers and homes of its own.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

first=(tests/acceptance tests/brokers tests/conformance tests/dashboard tests/faults
  tests/operations tests/orders tests/outbox tests/terminal)
rest=()
for folder in tests/*/; do
  folder=${folder%/}
  [[ $folder == */__pycache__ || " ${first[*]} " == *" $folder "* ]] || rest+=("$folder")
done

.venv/bin/pytest --no-skips -p no:cacheprovider "$@" "${first[@]}" >build/tests-first.log 2>&1 &
half=$!
.venv/bin/pytest --no-skips "$@" "${rest[@]}"
one=$?
wait "$half"
two=$?
[[ $two == 0 ]] && tail -n 1 build/tests-first.log || cat build/tests-first.log
exit $((one | two))
