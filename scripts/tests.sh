#!/usr/bin/env bash
# Every Python test, four at once: most of them wait for servers more than they compute.
# Each of the four has servers and homes of its own, in memory where there is room: tests kill
# processes, never the machine, so a disk would only make them wait.
set -euo pipefail
cd "$(dirname "$0")/.."
# They start hundreds of interpreters: each file is compiled for the first of them only.
unset PYTHONDONTWRITEBYTECODE
memory=/dev/shm
room=$(df --output=avail -k "$memory" 2>/dev/null | tail -1 || true)
if [ "${room:-0}" -gt 4000000 ] && ! grep -q " $memory .*noexec" /proc/mounts; then
  PYTEST_DEBUG_TEMPROOT=$(mktemp -d "$memory/qts-tests.XXXXXX")
  export PYTEST_DEBUG_TEMPROOT
  trap 'rm -rf "$PYTEST_DEBUG_TEMPROOT"' EXIT
fi
"${VENV:-.venv}/bin/pytest" --no-skips --numprocesses 4 --dist loadfile \
  --override-ini tmp_path_retention_policy=failed "$@"
