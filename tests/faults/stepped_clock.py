"""A wall clock that a test sets from outside: seconds to add, in a file; nothing else is moved."""

from __future__ import annotations

import mmap
import os
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qts.domain import SystemClock

VARIABLE = "FAULTS_CLOCK_FILE"
_SECONDS = struct.Struct("<d")


def create(path: Path) -> None:
    path.write_bytes(_SECONDS.pack(0.0))


def step(path: Path, seconds: float) -> None:
    with path.open("r+b") as file:
        file.write(_SECONDS.pack(seconds))


def install() -> None:
    """Let the clock of this process follow the file that the environment names, if it does."""
    if not (name := os.environ.get(VARIABLE)):
        return
    with Path(name).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _SECONDS.size)

    def now(_clock: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=_SECONDS.unpack_from(shared)[0])

    SystemClock.now = now  # type: ignore[method-assign, assignment]
