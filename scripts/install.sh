#!/usr/bin/env bash
# Create a venv with the packages of a requirements file, hashes checked: install.sh PYTHON VENV REQUIREMENTS.
# uv downloads and unpacks several packages at once; where it cannot be had, or does not find what pip is configured to
# find, pip installs them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 venv=$2 requirements=$3
"$python" -m venv "$venv"
echo "Installing packages (hashes checked) ..."

with_uv() {
  # The lines of uv in the file of the development packages: its version and hashes.
  awk '/^uv==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements/dev.txt >"$venv/uv.txt"
  "$venv/bin/pip" install --quiet --no-compile --require-hashes --requirement "$venv/uv.txt" &&
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --require-hashes --requirement "$requirements"
}

# As a constraint too: older versions of pip do not apply a pinned package to a requirement with extras.
with_uv 2>"$venv/uv.log" ||
  "$venv/bin/pip" install --quiet --no-compile --require-hashes --constraint "$requirements" --requirement "$requirements"
# Tools, and what only the storage of optuna imports, are compiled when they are imported.
"$venv/bin/python" -m compileall -qq -j 0 -x '/(tests|alembic|cuda|lexers|mypyc?|pip|setuptools|sqlalchemy)/' "$venv/lib"
