#!/usr/bin/env bash
# Every Python test, three at once: most of them wait for servers more than they compute.
# Each of the three has servers and homes of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/pytest --no-skips --numprocesses 3 --dist loadfile "$@"
