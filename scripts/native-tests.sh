#!/usr/bin/env bash
# Build and run the C++ tests: native-tests.sh plain|thread|address ...
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(cd "${VENV:-.venv}/bin" && pwd):$PATH"
export PATH
mkdir -p build
for flavour in "$@"; do
  sanitize=$([ "$flavour" = plain ] || echo "$flavour")
  directory="build/native-$flavour"
  # Compile all files as one unit: most of the compile time goes into shared headers.
  cmake -S native -B "$directory" -G Ninja -DQTS_TESTS=ON -DQTS_SANITIZE="$sanitize" \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 >"$directory.log" 2>&1 ||
    { cat "$directory.log"; exit 1; }
  nice -n "${BUILD_NICE:-0}" cmake --build "$directory" >"$directory.log" 2>&1 || { cat "$directory.log"; exit 1; }
  echo "C++ tests ($flavour):"
  "$directory/qts_tests"
done
