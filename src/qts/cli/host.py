"""What `qts doctor` reads about this machine except its CPUs; None where it is not visible."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# A cgroup v1 without a limit shows the largest page-aligned number.
_NO_LIMIT = 1 << 60

_OCTAL = re.compile(r"\\([0-7]{3})")  # how mountinfo writes a space
_STA_UNSYNC = 0x40
_TIMEX_STATUS_OFFSET = 40  # struct timex on 64-bit Linux


class Host:
    """The machine described below a root directory, which is another one in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cgroups = root / "sys/fs/cgroup"

    def memory_bytes(self) -> int | None:
        return next(
            (int(v.split()[0]) * 1024 for v in self._fields("proc/meminfo", "MemTotal")), None
        )

    def memory_limit(self) -> int | None:
        """Return the smallest memory limit of our cgroup and its parents, in bytes."""
        texts = [*self._up("", "memory.max"), *self._up("memory", "memory.limit_in_bytes")]
        limits = [int(text) for text in texts if text.isdigit()]
        return min((limit for limit in limits if limit < _NO_LIMIT), default=None)

    def cpu_model(self) -> str | None:
        return next(self._fields("proc/cpuinfo", "model name"), None)

    def invariant_tsc(self) -> bool | None:
        """Return whether the time stamp counter is constant and never stops; None without one."""
        flags = next(self._fields("proc/cpuinfo", "flags"), None)
        return None if flags is None else {"constant_tsc", "nonstop_tsc"} <= set(flags.split())

    def clocksource(self) -> str | None:
        return self._text("sys/devices/system/clocksource/clocksource0/current_clocksource")

    def shows_topology(self) -> bool:
        return (self._root / "sys/devices/system/cpu/cpu0").is_dir()

    def file_system(self, path: Path) -> str | None:
        """Return the type of the file system of a path."""
        best, kind = "", None
        for line in (self._text("proc/self/mountinfo") or "").splitlines():
            left, _, right = line.partition(" - ")
            place = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), left.split()[4])
            if path.is_relative_to(place) and len(place) >= len(best):  # the last mount is on top
                best, kind = place, right.split()[0]
        return kind

    def _text(self, path: str | Path) -> str | None:
        try:
            return (self._root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def _fields(self, path: str, name: str) -> Iterator[str]:
        for line in (self._text(path) or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                yield value.strip()

    def _up(self, controller: str, file: str) -> Iterator[str]:
        """Yield the file of our cgroup and of its parents; controller "" is version 2."""
        for line in (self._text("proc/self/cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller not in controllers.split(","):
                continue
            # A container often has its own cgroup as the root: absent files are skipped.
            mount = self._cgroups / controllers if controllers else self._cgroups
            own = mount / path.lstrip("/")
            for place in (own, *own.parents):
                if place.is_relative_to(mount) and (text := self._text(place / file)):
                    yield text


def realtime_allowed() -> bool | None:
    """Return whether a process may take real-time priority; a child process tries it."""
    if not hasattr(os, "sched_setscheduler"):
        return None
    trial = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
    child = subprocess.run(
        [sys.executable, "-I", "-S", "-c", trial], capture_output=True, check=False, timeout=20
    )
    return child.returncode == 0


def time_synchronised() -> bool | None:
    """Return whether the kernel considers its wall clock synchronised; None if unavailable."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    timex = ctypes.create_string_buffer(512)  # modes = 0: reads only
    try:
        if ctypes.CDLL(None).adjtimex(timex) < 0:
            return None
    except (OSError, AttributeError):
        return None
    status = ctypes.c_int.from_buffer(timex, _TIMEX_STATUS_OFFSET).value
    return not status & _STA_UNSYNC


def compiler() -> tuple[str, str] | None:
    """Return path and version line of the C++ compiler that a build would use."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if path := name and shutil.which(name):
            try:
                shown = subprocess.run(
                    [path, "--version"], capture_output=True, text=True, timeout=20
                )
            except (OSError, subprocess.SubprocessError):
                continue
            return path, (shown.stdout.splitlines() or ["unknown version"])[0]
    return None
