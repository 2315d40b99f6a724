"""How much of the machine is left: disk and memory, read when somebody asks."""

from __future__ import annotations

import shutil
from pathlib import Path

from qts.telemetry.metrics import gauge

_MEMORY = Path("/proc/meminfo")


def watch_host(home: Path) -> None:
    """Export the free part of the disk that holds `home`, and of the memory."""
    gauge("qts_disk_free_ratio", "Free part of the disk of the home, 0 to 1.").set_function(
        lambda: _disk(home)
    )
    gauge("qts_memory_free_ratio", "Part of the memory that can be had, 0 to 1.").set_function(
        memory_free
    )


def memory_free(meminfo: Path = _MEMORY) -> float:
    """1 where the system does not tell."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        have, all_of_it = (int(rows[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError, IndexError):
        return 1.0
    return have / all_of_it if all_of_it else 1.0


def _disk(home: Path) -> float:
    try:
        usage = shutil.disk_usage(home)
    except OSError:
        return 0.0
    return usage.free / usage.total
