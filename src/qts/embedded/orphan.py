"""Servers of a home that outlived the QTS process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from qts.domain import ServerFailedError
from qts.embedded.process import LINUX


def read_pid(pid_file: Path) -> int | None:
    """Return the number in the first line, or None."""
    try:
        first, *_ = pid_file.read_bytes().splitlines() or [b""]
    except FileNotFoundError:
        return None
    return int(first) if first.strip().isdigit() else None


def stop_orphan(
    pid_file: Path, program: str, directory: Path, signals: Sequence[tuple[signal.Signals, float]]
) -> None:
    """Stop the process in the pid file if it is this program, running in this directory.

    The caller holds the lock of the home, so that such a process is an orphan.
    """
    pid = read_pid(pid_file)
    if pid is None:
        return
    for number, timeout_s in (*signals, (signal.SIGKILL, 5.0)):
        if not _runs_in(pid, program, directory):
            return
        os.kill(pid, number)
        if _wait_gone(timeout_s, pid, program, directory):
            return
    raise ServerFailedError(
        f"{program} (process {pid}) of {directory} does not stop; kill it manually"
    )


def _wait_gone(seconds: float, pid: int, program: str, directory: Path) -> bool:
    deadline = time.monotonic() + seconds
    while _runs_in(pid, program, directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _runs_in(pid: int, program: str, directory: Path) -> bool:
    """Return whether the process is alive and has this name and directory; zombies are not."""
    return _by_proc(pid, program, directory) if LINUX else _by_ps(pid, program, directory)


def _by_proc(pid: int, program: str, directory: Path) -> bool:
    process = Path("/proc", str(pid))
    try:
        # The kernel truncates names to 15 characters. A zombie has no working directory.
        named = (process / "comm").read_text().rstrip("\n") == program[:15]
        return named and (process / "cwd").samefile(directory)
    except OSError:
        return False


def _by_ps(pid: int, program: str, directory: Path) -> bool:
    """Search the command line for the directory (after `-D`, or in Valkey's title)."""
    shown = subprocess.run(
        ["/bin/ps", "-ww", "-p", str(pid), "-o", "stat=,command="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    state, _, command = shown.partition(" ")
    return not state.startswith("Z") and program in command and str(directory) in command
