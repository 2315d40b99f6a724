"""The machine that a benchmark runs on, and the load that other programs put on it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from qts import _native
from qts.domain import RefusedError
from qts.machine import detect_topology

_LOAD_WINDOW_S = 0.3
_NOISY = 0.15  # CPUs that other programs use


def describe(quick: bool) -> dict[str, Any]:
    """Describe the machine; call it before the first trial, as later load is our own."""
    if not hasattr(_native, "bench_build"):
        raise RefusedError(
            "the C++ core was built without QTS_BENCH and has no benchmark functions;"
            " `make bench` builds it with them"
        )
    others = OtherLoad()
    time.sleep(_LOAD_WINDOW_S)
    foreign = others.cpus()
    floor = _native.stall_floor(0.1 if quick else 0.5)
    cpus = detect_topology()
    return {
        "cpu": _cpu_model(),
        "cores": cpus.usable,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "build": _native.bench_build(),
        "clock": _native.clock_source(),
        "ping_pong_ns": round(_native.ping_pong(20_000), 1),
        "stall_floor": {
            "over_20us_a_second": round(floor["over_20us"] / floor["duration_ns"] * 1e9),
            "longest_us": round(floor["longest_ns"] / 1000, 1),
            "share_lost": round(floor["share_lost"], 4),
        },
        "load_average": _load_average(),
        "foreign_cpus": round(foreign, 2),
        "noisy": foreign > _NOISY,
    }


class OtherLoad:
    """CPU time that other programs use, counted from construction."""

    def __init__(self) -> None:
        self._busy, self._own, self._at = _busy_ticks(), time.process_time(), time.monotonic()

    def cpus(self, child_s: float = 0.0) -> float:
        """Return how many CPUs others have used on average; `child_s` is of a child of ours."""
        busy = (_busy_ticks() - self._busy) / os.sysconf("SC_CLK_TCK")
        own, seconds = time.process_time() - self._own, time.monotonic() - self._at
        return max(0.0, busy - own - child_s) / seconds

    def is_disturbing(self, child_s: float = 0.0) -> bool:
        return self.cpus(child_s) > _NOISY


def _busy_ticks() -> int:
    """Return user, nice, system, irq, softirq and steal of all CPUs; 0 without /proc/stat."""
    words = _first_line(Path("/proc/stat")).split()[1:9]
    return sum(int(word) for index, word in enumerate(words) if index not in (3, 4))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _load_average() -> float:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def _first_line(path: Path) -> str:
    try:
        with path.open() as file:
            return file.readline()
    except OSError:
        return ""
