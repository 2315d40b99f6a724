#!/usr/bin/env bash
# Build the source archive, and the wheel from it: wheel.sh VENV [DIRECTORY], by default dist.
# The wheel gets the oldest manylinux tag that the symbols of the C++ core allow. The libraries of the compiler
# stay shared: linked into the core, they need a newer glibc than the core itself.
set -euo pipefail
venv=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
output=${2:-dist}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"

quiet() {
  "$@" >"$built/log" 2>&1 || { cat "$built/log" >&2; exit 1; }
}

echo "Building the source archive and the wheel ..."
quiet uv build --no-build-isolation --python "$venv/bin/python" --out-dir "$built" .
quiet auditwheel repair --wheel-dir "$built/repaired" "$built"/*.whl
mkdir -p "$output"
for file in "$built"/*.tar.gz "$built"/repaired/*.whl; do
  mv "$file" "$output"
  echo "$output/${file##*/}  $(du --apparent-size -h "$output/${file##*/}" | cut -f1)"
done
auditwheel show "$output/${file##*/}"
