#!/usr/bin/env bash
# Writes requirements/dev.txt: every package of every extra, pinned with hashes, for any platform.
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
  --all-extras --group dev --no-header --no-annotate --output-file requirements/dev.txt "$@"
