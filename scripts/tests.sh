#!/usr/bin/env bash
# Run every Python test in five processes: half of the time, a test waits for what it has started. On a slow machine two
# processes do: with more tests at a time, orders there do not leave within their time.
# Each process has separate servers and homes, in /dev/shm if it has 4 GB free: tests kill processes,
# never the machine, so they do not need a disk.
set -euo pipefail
cd "$(dirname "$0")/.."
# The tests start hundreds of interpreters: write .pyc files, so that each module compiles once.
unset PYTHONDONTWRITEBYTECODE
memory=/dev/shm
free_kb=$(df --output=avail -k "$memory" 2>/dev/null | tail -1 || true)
if [ "${free_kb:-0}" -gt 4000000 ] && ! grep -q " $memory .*noexec" /proc/mounts; then
  PYTEST_DEBUG_TEMPROOT=$(mktemp -d "$memory/qts-tests.XXXXXX")
  export PYTEST_DEBUG_TEMPROOT
  trap 'rm -rf "$PYTEST_DEBUG_TEMPROOT"' EXIT
fi
# Two where a million additions take more than 60 ms of CPU time, the fastest of ten times.
processes() {
  "${VENV:-.venv}/bin/python" - <<'END'
from time import process_time


def additions() -> float:
    began, total = process_time(), 0
    for each in range(1_000_000):
        total += each
    return process_time() - began


print(5 if min(additions() for _ in range(10)) < 0.06 else 2)
END
}
# Let one process prepare the test modules: on a new clone each of the five would spend 12 s on it.
[ -n "$(find tests -name '*-pytest-*.pyc' -print -quit)" ] || "${VENV:-.venv}/bin/pytest" --collect-only -qq >/dev/null || true
"${VENV:-.venv}/bin/pytest" --no-skips --numprocesses "$(processes)" --dist loadfile --no-loadscope-reorder \
  --override-ini tmp_path_retention_policy=failed "$@"
