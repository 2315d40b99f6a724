"""CPU topology, read from fake /proc and /sys trees; free disk space, from a fake statvfs."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.machine import CpuTopology, DiskGuard, default_min_free, detect_topology


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def allow(root: Path, cpus: str) -> None:
    put(root, "proc/self/status", f"Name:\tqts\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}")


def cpu(root: Path, number: int, *, siblings: str | None = None, l3: str | None = None) -> None:
    home = f"sys/devices/system/cpu/cpu{number}"
    if siblings is not None:
        put(root, f"{home}/topology/thread_siblings_list", siblings)
    put(root, f"{home}/cache/index0/level", "1")
    put(root, f"{home}/cache/index0/shared_cpu_list", str(number))
    if l3 is not None:
        put(root, f"{home}/cache/index3/level", "3")
        put(root, f"{home}/cache/index3/shared_cpu_list", l3)


@pytest.fixture
def zen(tmp_path: Path) -> Path:
    """Two core complexes of four cores, two hardware threads each: 0-7, and their siblings 8-15."""
    allow(tmp_path, "0-15")
    put(tmp_path, "sys/devices/system/node/node0/cpulist", "0-15")
    for number in range(16):
        core = number % 8
        near = "0-3,8-11" if core < 4 else "4-7,12-15"
        cpu(tmp_path, number, siblings=f"{core},{core + 8}", l3=near)
    return tmp_path


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Even CPUs on node 0, odd ones on node 1, no cache visible."""
    allow(tmp_path, "0-7")
    put(tmp_path, "sys/devices/system/node/node0/cpulist", "0,2,4,6")
    put(tmp_path, "sys/devices/system/node/node1/cpulist", "1,3,5,7")
    return tmp_path


def test_cpus_that_share_an_l3_form_a_group(zen: Path) -> None:
    topology = detect_topology(zen)
    assert topology.groups == ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    assert topology.cores[0] == (0, 8)
    assert len(topology.cores) == 8
    assert topology.usable == 16


def test_threads_that_fit_one_l3_stay_in_it_on_separate_cores(zen: Path) -> None:
    assert detect_topology(zen).choose(3) == (1, 2, 3)


def test_cores_of_another_l3_are_taken_before_siblings(zen: Path) -> None:
    assert detect_topology(zen).choose(8) == (0, 1, 2, 3, 4, 5, 6, 7)


def test_siblings_are_taken_last_and_keep_to_their_group(zen: Path) -> None:
    assert detect_topology(zen).choose(10) == (0, 1, 2, 3, 8, 9, 4, 5, 6, 7)


def test_without_a_visible_l3_numa_nodes_are_the_groups(two_sockets: Path) -> None:
    topology = detect_topology(two_sockets)
    assert topology.groups == topology.nodes == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert topology.choose(4) == (0, 2, 4, 6)
    assert topology.choose(5) == (6, 1, 3, 5, 7)


def test_groups_of_one_node_are_adjacent(two_sockets: Path) -> None:
    for number, near in ((0, "0,6"), (6, "0,6"), (1, "1,3"), (3, "1,3"), (2, "2,4"), (4, "2,4")):
        cpu(two_sockets, number, l3=near)
    assert detect_topology(two_sockets).groups == ((0, 6), (2, 4), (1, 3), (5, 7))


def test_affinity_of_one_leaves_one(zen: Path) -> None:
    allow(zen, "5")
    topology = detect_topology(zen)
    assert (topology.cpus, topology.usable, topology.groups, topology.cores) == (
        (5,),
        1,
        ((5,),),
        ((5,),),
    )
    assert topology.choose(1) == (5,)


@pytest.mark.parametrize(
    ("limit", "usable", "quota"),
    [
        ("150000 100000", 1, 1.5),
        ("50000 100000", 1, 0.5),
        ("400000 100000", 4, 4.0),
        ("max 100000", 16, None),
        ("9900000 100000", 16, 99.0),
        ("rubbish", 16, None),
        ("100000 0", 16, None),
    ],
)
def test_a_cgroup_quota_is_rounded_down(
    zen: Path, limit: str, usable: int, quota: float | None
) -> None:
    put(zen, "proc/self/cgroup", "0::/")
    put(zen, "sys/fs/cgroup/cpu.max", limit)
    topology = detect_topology(zen)
    assert (topology.usable, topology.quota) == (usable, quota)


def test_the_tightest_quota_on_the_way_up_counts(zen: Path) -> None:
    put(zen, "proc/self/cgroup", "0::/apps/qts")
    put(zen, "sys/fs/cgroup/apps/qts/cpu.max", "800000 100000")
    put(zen, "sys/fs/cgroup/apps/cpu.max", "300000 100000")
    assert detect_topology(zen).usable == 3


def test_a_cgroup_v1_quota_is_found(zen: Path) -> None:
    put(zen, "proc/self/cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/docker/abc\n0::/")
    put(zen, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000")
    put(zen, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    topology = detect_topology(zen)
    assert (topology.usable, topology.quota) == (2, 2.5)


def test_a_cgroup_v1_without_a_limit_has_no_quota(zen: Path) -> None:
    put(zen, "proc/self/cgroup", "4:cpu:/")
    put(zen, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    put(zen, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert detect_topology(zen).quota is None


def test_cpus_shared_under_a_quota_are_not_pinned(zen: Path) -> None:
    put(zen, "proc/self/cgroup", "0::/")
    put(zen, "sys/fs/cgroup/cpu.max", "400000 100000")
    assert detect_topology(zen).choose(2) == (None, None)


def test_more_threads_than_cpus_are_not_pinned(zen: Path) -> None:
    assert detect_topology(zen).choose(17) == (None,) * 17


def test_a_system_without_proc_and_sys_still_has_cpus(tmp_path: Path) -> None:
    topology = detect_topology(tmp_path)
    assert len(topology.cpus) >= 1
    assert topology.groups == (topology.cpus,)
    assert topology.usable == len(topology.cpus)
    assert topology.cores == tuple((number,) for number in topology.cpus)


def test_the_topology_of_this_machine_matches_the_system() -> None:
    topology = detect_topology()
    assert 1 <= topology.usable <= len(topology.cpus)
    assert sorted(number for group in topology.groups for number in group) == list(topology.cpus)
    if hasattr(os, "sched_getaffinity"):
        assert set(topology.cpus) == os.sched_getaffinity(os.getpid())


def test_the_process_affinity_is_respected() -> None:
    code = (
        "import os, qts.machine as m; one = min(os.sched_getaffinity(0));"
        "os.sched_setaffinity(0, {one}); found = m.detect_topology();"
        "assert found.cpus == (one,), found; assert found.usable == 1"
    )
    if hasattr(os, "sched_setaffinity"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@given(st.data())
def test_every_thread_gets_a_separate_cpu_in_the_order_of_groups(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24))
    numbers = tuple(range(count))
    bounds = sorted(data.draw(st.sets(st.integers(1, count)), label="cuts") | {0, count})
    groups = tuple(numbers[a:b] for a, b in pairwise(bounds))
    pairs = data.draw(st.booleans())
    cores = tuple(
        core
        for group in groups
        for core in (
            [group[i : i + 2] for i in range(0, len(group), 2)] if pairs else [(n,) for n in group]
        )
    )
    topology = CpuTopology(cpus=numbers, usable=count, groups=groups, cores=cores, nodes=(numbers,))
    threads = data.draw(st.integers(1, count))
    chosen = [number for number in topology.choose(threads) if number is not None]
    assert len(set(chosen)) == threads
    first_of_core = {core[0] for core in cores}
    if threads <= len(cores):
        assert set(chosen) <= first_of_core
    places = [next(i for i, group in enumerate(groups) if number in group) for number in chosen]
    assert places == sorted(places)


class FakeDisk:
    """A disk whose free space is set by the test; `failed` makes it unreadable."""

    def __init__(self, total: int, free: int) -> None:
        self.total, self.free, self.failed = total, free, False

    def statvfs(self, _folder: Path) -> os.statvfs_result:
        if self.failed:
            raise OSError(5, "Input/output error")
        # Root may use half a reserve more than others: only what others may use counts.
        blocks, root, free = self.total // 1000, self.free // 1000 + 500, self.free // 1000
        return os.statvfs_result((1000, 1000, blocks, root, free, 0, 0, 0, 0, 255))


SECOND_NS = 10**9


@given(st.lists(st.integers(0, 2_000_000), max_size=40), st.integers(1, 1_500_000))
def test_files_grow_only_above_the_floor_and_resume_a_fifth_above_it(
    frees: list[int], floor: int
) -> None:
    disk = FakeDisk(4_000_000, 0)
    guard, allowed = DiskGuard(Path(), floor, disk.statvfs), True
    for second, free in enumerate(frees):
        disk.free = free = free // 1000 * 1000
        allowed = free >= (floor if allowed else floor + floor // 5)
        assert guard.check(second * SECOND_NS) is allowed
        assert guard.free_bytes == free


def test_the_disk_is_measured_once_a_second() -> None:
    disk = FakeDisk(4_000_000, 2_000_000)
    guard = DiskGuard(Path(), 1_000_000, disk.statvfs)
    assert guard.check(0)
    disk.free = 0
    assert guard.check(SECOND_NS - 1)
    assert not guard.check(SECOND_NS)


def test_a_disk_that_cannot_be_measured_changes_nothing() -> None:
    disk = FakeDisk(4_000_000, 0)
    guard = DiskGuard(Path(), 1_000_000, disk.statvfs)
    disk.failed = True
    assert guard.check(0)
    disk.failed = False
    assert not guard.check(SECOND_NS)
    disk.failed = True
    assert not guard.check(2 * SECOND_NS)


@pytest.mark.parametrize(
    ("total", "floor"),
    [(200 * 10**6, 100 * 10**6), (10 * 10**9, 10**9), (10**12, 50 * 10**9)],
)
def test_the_default_floor_is_a_twentieth_a_gigabyte_or_half_of_a_small_disk(
    total: int, floor: int
) -> None:
    assert default_min_free(total) == floor
    guard = DiskGuard(Path(), statvfs=FakeDisk(total, floor - 1000).statvfs)
    assert not guard.check(0)
    assert guard.min_free_bytes == floor


def test_without_a_floor_everything_may_grow() -> None:
    assert DiskGuard(Path(), 0, FakeDisk(4_000_000, 0).statvfs).check(0)


def test_the_disk_of_a_real_folder_is_measured(tmp_path: Path) -> None:
    guard = DiskGuard(tmp_path, 1)
    assert guard.check(0)
    assert guard.free_bytes > 0
