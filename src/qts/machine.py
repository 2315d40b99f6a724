"""The machine: the CPUs this process may use and how they are related, and free disk space."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

CpuSet = tuple[int, ...]
_SYS_CPU = Path("sys/devices/system/cpu")
_SYS_NODE = Path("sys/devices/system/node")
_CGROUP = Path("sys/fs/cgroup")
DISK_CHECK_NS = 1_000_000_000


class CpuTopology(msgspec.Struct, frozen=True):
    """CPUs by number; every tuple of CPUs is sorted and holds only CPUs this process may use."""

    cpus: CpuSet
    usable: int  # threads that can run at the same time: the CPUs, or fewer under a quota
    groups: tuple[CpuSet, ...]  # share an L3 cache; neighbours in the tuple share a NUMA node
    cores: tuple[CpuSet, ...]  # hardware threads (SMT siblings) of one core
    nodes: tuple[CpuSet, ...]  # NUMA nodes
    quota: float | None = None  # CPUs' worth of time a cgroup allows; None: no limit
    can_pin: bool = True

    def choose(self, count: int) -> tuple[int | None, ...]:
        """Return CPUs for `count` communicating threads: one core each, within one L3 if possible.

        Return all None where pinning would harm: with more threads than CPUs, or with a CPU quota
        (containers that share the CPUs would all pin to the same ones).
        """
        if not self.can_pin or count > self.usable or self.usable < len(self.cpus):
            return (None,) * count
        primary = {core[0] for core in self.cores}
        cores = [cpu for group in self.groups for cpu in group if cpu in primary]
        for group in self.groups:
            free = [cpu for cpu in group if cpu in primary]
            if len(free) >= count:
                return tuple(free[-count:])  # from the end: the first CPU serves interrupts
        if count <= len(cores):
            return tuple(cores[-count:])
        siblings = [cpu for group in self.groups for cpu in group if cpu not in primary]
        picked = {*cores, *siblings[: count - len(cores)]}
        return tuple(cpu for group in self.groups for cpu in group if cpu in picked)


def detect_topology(root: Path = Path("/")) -> CpuTopology:
    """Read /proc and /sys under `root`; what is missing there counts as absent."""
    cpus = _allowed(root)
    quota = _quota(root)
    usable = len(cpus) if quota is None else max(1, min(len(cpus), int(quota)))
    nodes = _disjoint(_node_lists(root), cpus)
    caches = [_l3(root, cpu) for cpu in cpus]
    groups = _disjoint(caches, cpus) if any(caches) else nodes
    node_of = {cpu: index for index, node in enumerate(nodes) for cpu in node}
    return CpuTopology(
        cpus=cpus,
        usable=usable,
        groups=tuple(sorted(groups, key=lambda group: (node_of[group[0]], group))),
        cores=_disjoint((_siblings(root, cpu) for cpu in cpus), cpus, alone=True),
        nodes=nodes,
        quota=quota,
        can_pin=hasattr(os, "sched_setaffinity"),
    )


def _allowed(root: Path) -> CpuSet:
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list" and (cpus := _parse(value)):
            return cpus
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _quota(root: Path) -> float | None:
    """Return the tightest CPU quota from this process's cgroup up to the visible root."""
    limits: list[float] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for directory in _upward(path.strip("/")):
            if number == "0" and not controllers:
                tops = [_CGROUP, _CGROUP / "unified"]
                limits += _ratios(_text(root / top / directory / "cpu.max") for top in tops)
            elif "cpu" in controllers.split(","):
                tops = [_CGROUP / controllers, _CGROUP / "cpu"]
                limits += _ratios(
                    _text(root / top / directory / "cpu.cfs_quota_us")
                    + " "
                    + _text(root / top / directory / "cpu.cfs_period_us")
                    for top in tops
                )
    return min(limits, default=None)


def _upward(path: str) -> Iterator[str]:
    parts = path.split("/") if path else []
    for length in range(len(parts), -1, -1):
        yield "/".join(parts[:length])


def _ratios(texts: Iterable[str]) -> Iterator[float]:
    for text in texts:
        words = text.split()  # "150000 100000"; "max 100000" and "-1 100000" are no limit
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])


def _siblings(root: Path, cpu: int) -> CpuSet:
    topology = root / _SYS_CPU / f"cpu{cpu}" / "topology"
    return _parse(_text(topology / "thread_siblings_list") or _text(topology / "core_cpus_list"))


def _l3(root: Path, cpu: int) -> CpuSet:
    for index in sorted((root / _SYS_CPU / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
        if _text(index / "level").strip() == "3":
            return _parse(_text(index / "shared_cpu_list"))
    return ()


def _node_lists(root: Path) -> Iterator[CpuSet]:
    for file in sorted((root / _SYS_NODE).glob("node[0-9]*/cpulist")):
        yield _parse(_text(file))


def _disjoint(sets: Iterable[CpuSet], cpus: CpuSet, alone: bool = False) -> tuple[CpuSet, ...]:
    """Restrict the sets to `cpus`, each CPU once; CPUs in none form one set, or one set each."""
    left = set(cpus)
    found: list[CpuSet] = []
    for each in sets:
        if members := tuple(sorted(left.intersection(each))):
            found.append(members)
            left.difference_update(members)
    rest = tuple(sorted(left))
    found += [(cpu,) for cpu in rest] if alone else [rest] if rest else []
    return tuple(sorted(found))


def _parse(text: str) -> CpuSet:
    """Parse a kernel CPU list: `0-3,8` is 0, 1, 2, 3, 8."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and (high.isdecimal() or not high):
            cpus.update(range(int(low), int(high or low) + 1))
    return tuple(sorted(cpus))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # absent on this kernel or system, or hidden by a container


class DiskGuard:
    """Decides whether files that are not essential, as records and journals, may grow.

        writing ── free < min_free ──▶ stopped ── free >= min_free + 20 % ──▶ writing

    They stop while a database on the same disk still has `min_free` bytes. Unless set, that is 5 %
    of the disk and at least 1 GB, but never more than half of it. Only the space of unprivileged
    processes counts.
    """

    def __init__(
        self,
        folder: Path,
        min_free_bytes: int | None = None,
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        """Guard the disk of an existing folder; with 0 bytes, everything may be written."""
        self._folder = folder
        self._statvfs = statvfs
        self._min_free = min_free_bytes
        self._checked_ns: int | None = None
        self.free_bytes = self.min_free_bytes = 0
        self.allows = True

    def check(self, now_ns: int) -> bool:
        """Return whether a file may grow; measures once a second of the monotonic clock."""
        if self._checked_ns is not None and now_ns - self._checked_ns < DISK_CHECK_NS:
            return self.allows
        self._checked_ns = now_ns
        try:
            disk = self._statvfs(self._folder)
        except OSError:
            return self.allows  # a write reports what is wrong with the disk
        total = disk.f_blocks * disk.f_frsize
        self.free_bytes = disk.f_bavail * disk.f_frsize
        self.min_free_bytes = default_min_free(total) if self._min_free is None else self._min_free
        resume = self.min_free_bytes + self.min_free_bytes // 5
        self.allows = self.free_bytes >= (self.min_free_bytes if self.allows else resume)
        return self.allows


def default_min_free(total_bytes: int) -> int:
    """Return the bytes that files which are not essential leave free on a disk of this size."""
    return min(max(10**9, total_bytes // 20), total_bytes // 2)
