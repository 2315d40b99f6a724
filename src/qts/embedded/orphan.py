"""Servers of this home that outlived the QTS that started them."""

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
    """The number in the first line, where there is one."""
    try:
        first, *_ = pid_file.read_bytes().splitlines() or [b""]
    except FileNotFoundError:
        return None
    return int(first) if first.strip().isdigit() else None


def stop_orphan(
    pid_file: Path, program: str, directory: Path, signals: Sequence[tuple[signal.Signals, float]]
) -> None:
    """Stop the process the pid file names, if it really is this program at work in this directory.

    To be called under the lock of the home: whoever else runs there is an orphan.
    """
    pid = read_pid(pid_file)
    if pid is None:
        return
    for number, patience_s in (*signals, (signal.SIGKILL, 5.0)):
        if not _works_in(pid, program, directory):
            return
        os.kill(pid, number)
        if _gone_within(patience_s, pid, program, directory):
            return
    raise ServerFailedError(
        f"{program} (process {pid}) of {directory} does not stop; end it by hand"
    )


def _gone_within(seconds: float, pid: int, program: str, directory: Path) -> bool:
    deadline = time.monotonic() + seconds
    while _works_in(pid, program, directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _works_in(pid: int, program: str, directory: Path) -> bool:
    """Whether the process is alive, of that name, and of that directory; a zombie is gone."""
    return _by_proc(pid, program, directory) if LINUX else _by_ps(pid, program, directory)


def _by_proc(pid: int, program: str, directory: Path) -> bool:
    process = Path("/proc", str(pid))
    try:
        # The kernel keeps 15 characters of a name. A zombie has no working directory.
        named = (process / "comm").read_text().rstrip("\n") == program[:15]
        return named and (process / "cwd").samefile(directory)
    except OSError:
        return False


def _by_ps(pid: int, program: str, directory: Path) -> bool:
    """Without /proc: the command line holds the directory (after `-D`, or in Valkey's title)."""
    shown = subprocess.run(
        ["/bin/ps", "-ww", "-p", str(pid), "-o", "stat=,command="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    state, _, command = shown.partition(" ")
    return not state.startswith("Z") and program in command and str(directory) in command
