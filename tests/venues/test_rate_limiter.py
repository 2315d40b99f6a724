"""The rate limiter: priorities, throttling, pace, and the usage log."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from qts.domain import ManualClock, OperationError, RefusedError, SystemClock
from qts.venues import RateLimitConfig, RateLimiter, RequestPriority, UsageLog
from tests.venues.manual_limiter import SteppedClock, worst_window

REAL = RateLimitConfig(per_second=18, per_minute=1000, per_day=100_000)


def _take_all(limiter: RateLimiter, priority: RequestPriority) -> int:
    taken = 0
    while limiter.try_acquire(priority):
        limiter.release()
        taken += 1
    return taken


def test_orders_find_capacity_when_the_scan_has_used_its_quota() -> None:
    limiter = RateLimiter(REAL, SteppedClock())
    assert _take_all(limiter, RequestPriority.NORMAL) == 15
    assert not limiter.try_acquire(RequestPriority.BURST)
    assert _take_all(limiter, RequestPriority.ACCOUNT) == 1
    assert _take_all(limiter, RequestPriority.EXIT) == 2


def test_a_minute_spent_by_the_scan_still_holds_fifty_orders() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1000, per_minute=1000), clock)
    assert _take_all(limiter, RequestPriority.NORMAL) == 925
    assert _take_all(limiter, RequestPriority.EXIT) == 75  # those of accounts too


def test_a_key_of_one_a_second_serves_every_priority() -> None:
    for priority in RequestPriority:
        clock = SteppedClock()
        limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=60, per_day=1000), clock)
        assert _take_all(limiter, priority) == 1
        clock.move(1.001)
        assert _take_all(limiter, priority) == 1


def test_a_request_without_reply_stays_counted() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    assert limiter.try_acquire(RequestPriority.EXIT)
    clock.move(30)
    assert not limiter.try_acquire(RequestPriority.EXIT)
    limiter.release()
    clock.move(0.999)
    assert not limiter.try_acquire(RequestPriority.EXIT)
    clock.move(0.002)
    assert limiter.try_acquire(RequestPriority.EXIT)


@pytest.mark.parametrize(("per_second", "reserved"), [(15, 1), (8, 1), (4, 1), (2, 0)])
def test_entries_in_flight_leave_capacity_for_an_exit(per_second: int, reserved: int) -> None:
    limiter = RateLimiter(RateLimitConfig(per_second=per_second, per_minute=600), ManualClock())
    assert _take_all(limiter, RequestPriority.ORDER) == per_second - reserved
    assert _take_all(limiter, RequestPriority.EXIT) == reserved
    limiter.close()


async def test_waiters_are_granted_by_priority_then_by_arrival() -> None:
    clock = ManualClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=600), clock)
    went: list[str] = []

    async def ask(name: str, priority: RequestPriority) -> None:
        async with limiter.request(priority):
            went.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, priority in [
            ("first", RequestPriority.NORMAL),
            ("scan 1", RequestPriority.NORMAL),
            ("scan 2", RequestPriority.NORMAL),
            ("burst", RequestPriority.BURST),
            ("entry", RequestPriority.ORDER),
            ("exit", RequestPriority.EXIT),
        ]:
            tasks.create_task(ask(name, priority))
        await clock.advance(7.0)
    assert went == ["first", "exit", "entry", "burst", "scan 1", "scan 2"]
    limiter.close()


async def test_an_order_among_2500_waiting_polls_goes_at_once() -> None:
    clock = ManualClock()
    limiter = RateLimiter(REAL, clock)
    granted: list[int] = []

    async def poll() -> None:
        async with limiter.request(RequestPriority.NORMAL):
            granted.append(clock.monotonic_ns())
            await clock.sleep(0.03)

    polls = [asyncio.create_task(poll()) for _ in range(2500)]
    waits = []
    for _ in range(40):
        await clock.advance(0.717)
        asked = clock.monotonic_ns()
        order = asyncio.create_task(limiter.acquire(RequestPriority.EXIT))
        while not order.done():
            await clock.advance(0.001)
        waits.append((clock.monotonic_ns() - asked) / 1e6)
        limiter.release()
    assert max(waits) < 60
    assert worst_window(granted, 10**9) <= 15
    for task in polls:
        task.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    limiter.close()


async def test_a_cancelled_waiter_uses_no_request() -> None:
    clock = ManualClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    await limiter.acquire(RequestPriority.NORMAL)
    limiter.release()
    cancelled = asyncio.create_task(limiter.acquire(RequestPriority.NORMAL))
    await clock.advance(0.1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    waiting = asyncio.create_task(limiter.acquire(RequestPriority.NORMAL))
    await clock.advance(1.0)
    assert waiting.done()
    assert limiter.status().granted == 2
    limiter.close()


def test_throttling_halves_the_rate_and_ten_clean_seconds_add_one() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(REAL, clock)
    limiter.on_throttled()
    limiter.on_throttled()  # of the same second: one event
    assert limiter.status().rate_per_s == 9
    clock.move(10.0)
    assert _take_all(limiter, RequestPriority.EXIT) == 10
    for _ in range(8):
        clock.move(10.0)
        _take_all(limiter, RequestPriority.EXIT)
    assert limiter.status().rate_per_s == 18


def test_throttling_at_the_lowest_rate_pauses_longer_each_time() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    for expected in (1.0, 2.0, 4.0):
        limiter.on_throttled()
        clock.move(expected - 0.01)
        assert not limiter.try_acquire(RequestPriority.EXIT)
        clock.move(1.02)
        assert limiter.try_acquire(RequestPriority.EXIT)
        limiter.release()


def test_after_clean_time_the_pauses_start_again() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    for _ in range(8):
        limiter.on_throttled()
        clock.move(1.01)
        assert limiter.try_acquire(RequestPriority.EXIT)
        limiter.release()
        clock.move(3600.0)


def test_a_pause_does_not_count_as_clean_time() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    for expected in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        limiter.on_throttled()
        clock.move(expected - 0.01)
        assert not limiter.try_acquire(RequestPriority.EXIT)
        clock.move(1.02)


def test_a_pause_named_by_the_venue_is_kept() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(REAL, clock)
    limiter.on_throttled(retry_after_s=30.0)
    clock.move(29.9)
    assert not limiter.try_acquire(RequestPriority.EXIT)
    clock.move(0.2)
    assert limiter.try_acquire(RequestPriority.EXIT)


def test_a_paced_scan_is_even_and_catches_up_a_second_at_most() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(REAL, clock)
    limiter.pace(2.0)
    _take_all(limiter, RequestPriority.NORMAL)
    granted = []
    for _ in range(10_000):
        clock.move(0.001)
        if limiter.try_acquire(RequestPriority.NORMAL):
            limiter.release()
            granted.append(clock.ns)
    gaps = {later - earlier for earlier, later in itertools.pairwise(granted)}
    assert len(granted) == 20
    assert gaps == {500_000_000}
    clock.move(3600)
    assert _take_all(limiter, RequestPriority.NORMAL) <= 3


def test_a_faster_pace_drops_the_delay_of_a_slower_one() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(REAL, clock)
    limiter.pace(1 / 3600)
    assert _take_all(limiter, RequestPriority.NORMAL) >= 1
    clock.move(60.0)
    limiter.pace(1 / 3600)
    clock.move(60.0)
    assert not limiter.try_acquire(RequestPriority.NORMAL)
    limiter.pace(2.0)
    clock.move(0.501)
    assert limiter.try_acquire(RequestPriority.NORMAL)


def test_a_skipped_pace_still_waits_for_the_windows() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(
        RateLimitConfig(per_second=4, per_minute=1000, orders_per_second=0), clock
    )
    limiter.pace(1.0)
    _take_all(limiter, RequestPriority.NORMAL)
    clock.move(2.0)
    assert _take_all(limiter, RequestPriority.NORMAL) == 2
    for _ in range(2):
        limiter.skip_pace()
        assert limiter.try_acquire(RequestPriority.NORMAL)
        limiter.release()
    limiter.skip_pace()
    assert not limiter.try_acquire(RequestPriority.NORMAL)


def test_remaining_requests_of_the_day_count_those_that_leave_the_window() -> None:
    clock = SteppedClock()
    limiter = RateLimiter(REAL, clock)
    assert limiter.try_acquire(RequestPriority.NORMAL)
    limiter.release()
    assert limiter.remaining_within(3600) == 99_999
    assert limiter.remaining_within(86_401) == 100_000


def test_an_orderly_restart_restores_the_exact_count(tmp_path: Path) -> None:
    clock = SteppedClock()
    usage_log = UsageLog(tmp_path / "key.usage", clock, boot="one")
    first = RateLimiter(REAL, clock, usage_log)
    for _ in range(5):
        _take_all(first, RequestPriority.EXIT)
        clock.move(2.0)
    assert first.status().used_minute == 90
    first.close()
    second = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.usage", clock, boot="one"))
    assert second.status().used_minute == 90
    assert second.status().used_day == 90
    second.close()


def test_after_a_crash_the_open_lease_counts_as_used(tmp_path: Path) -> None:
    clock = SteppedClock()
    usage_log = UsageLog(tmp_path / "key.usage", clock, boot="one")
    first = RateLimiter(REAL, clock, usage_log)
    assert first.try_acquire(RequestPriority.EXIT)
    usage_log.close()
    second = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.usage", clock, boot="one"))
    assert 1 <= second.status().used_second <= 9
    second.close()


def test_after_a_reboot_the_wall_clock_dates_the_past_and_two_seconds_are_added(
    tmp_path: Path,
) -> None:
    clock = SteppedClock()
    first = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.usage", clock, boot="one"))
    _take_all(first, RequestPriority.EXIT)
    first.close()
    later = SteppedClock(clock.wall, monotonic_ns=5)
    later.move(61.0)
    second = RateLimiter(REAL, later, UsageLog(tmp_path / "key.usage", later, boot="two"))
    assert second.status().used_minute == 36
    assert second.status().used_day == 18 + 36
    second.close()


def test_a_wall_clock_set_while_down_loses_no_count(tmp_path: Path) -> None:
    clock = SteppedClock()
    first = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.usage", clock, boot="one"))
    _take_all(first, RequestPriority.EXIT)
    first.close()
    clock.wall += timedelta(days=3)
    second = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.usage", clock, boot="one"))
    assert second.status().used_second == 18
    second.close()


def test_a_torn_or_damaged_usage_log_counts_too_much_rather_than_too_little(tmp_path: Path) -> None:
    clock = SteppedClock()
    path = tmp_path / "key.usage"
    first = RateLimiter(REAL, clock, UsageLog(path, clock, boot="one"))
    for _ in range(3):
        _take_all(first, RequestPriority.EXIT)
        clock.move(2.0)
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:48] + b"\xff" * 48 + whole[96:] + b"torn")
    second = RateLimiter(REAL, clock, UsageLog(path, clock, boot="one"))
    assert second.status().used_day >= 54
    second.close()


def test_a_second_process_on_the_same_key_is_refused(tmp_path: Path) -> None:
    usage_log = UsageLog(tmp_path / "key.usage", SteppedClock())
    with pytest.raises(RefusedError, match="another process uses this key"):
        UsageLog(tmp_path / "key.usage", SteppedClock())
    usage_log.close()


def _size(path: Path) -> int:
    return path.stat().st_size


async def test_no_grant_without_a_written_lease(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk; then it is lifted."""
    clock, path = ManualClock(), tmp_path / "key.usage"
    limiter = RateLimiter(RateLimitConfig(per_second=1), clock, UsageLog(path, clock, boot="one"))
    async with limiter.request(RequestPriority.EXIT):
        size = _size(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        waiting = asyncio.create_task(limiter.acquire(RequestPriority.EXIT))
        await clock.advance(2.0)
        with pytest.raises(OperationError, match="cannot write the usage log"):
            await waiting
        with pytest.raises(OperationError, match="cannot write the usage log"):
            limiter.try_acquire(RequestPriority.EXIT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await limiter.acquire(RequestPriority.EXIT)
    limiter.release()
    assert _size(path) == 2 * size
    limiter.close()
    again = RateLimiter(RateLimitConfig(per_second=1), clock, UsageLog(path, clock, boot="one"))
    assert again.status().used_day == 2
    again.close()


async def test_a_waiter_gets_the_error_of_a_read_only_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> int:
        raise OSError(30, "Read-only file system")

    clock = ManualClock()
    usage_log = UsageLog(tmp_path / "key.usage", clock, boot="one")
    limiter = RateLimiter(RateLimitConfig(per_second=1), clock, usage_log)
    async with limiter.request(RequestPriority.EXIT):
        pass
    waiting = asyncio.create_task(limiter.acquire(RequestPriority.EXIT))
    await clock.advance(0.1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", read_only)
        patch.setattr(os, "ftruncate", read_only)
        await clock.advance(2.0)
        assert waiting.done()
        with pytest.raises(OperationError, match="Read-only file system"):
            waiting.result()
    limiter.close()


def test_half_a_record_that_could_not_be_truncated_hides_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half(file: int, data: bytes) -> int:
        return write(file, data[:20])

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    clock, path = SteppedClock(), tmp_path / "key.usage"
    usage_log = UsageLog(path, clock, boot="one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(OperationError, match="cannot write the usage log"):
            usage_log.lease(0, 8)
    usage_log.lease(3, 3)
    usage_log.close()
    again = UsageLog(path, clock, boot="one")
    assert [requests for _, requests in again.history] == [3]
    again.close()


def test_a_sync_that_fails_late_stops_the_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    ended = threading.Event()

    def slow_and_broken(_file: int) -> None:
        may_end.wait(60)
        ended.set()
        raise OSError(5, "Input/output error")

    clock = SteppedClock()
    usage_log = UsageLog(tmp_path / "key.usage", clock, boot="one")
    monkeypatch.setattr(os, "fdatasync", slow_and_broken)
    usage_log.lease(0, 1)
    monkeypatch.setattr(os, "fdatasync", lambda _file: None)
    clock.move(2.0)
    usage_log.lease(1, 2)  # the first sync is still in flight
    may_end.set()
    assert ended.wait(60)
    usage_log._disk.submit(int).result(60)  # one thread: earlier jobs have finished
    with pytest.raises(OperationError, match="Input/output error"):
        usage_log.lease(2, 3)
    usage_log.close()


PROGRAM = """
import sys, time
from pathlib import Path
from qts.domain import SystemClock
from qts.venues import RateLimitConfig, RateLimiter, RequestPriority, UsageLog
clock = SystemClock()
limits = RateLimitConfig(per_second=20, per_minute=1000)
limiter = RateLimiter(limits, clock, UsageLog(Path(sys.argv[1]), clock))
while True:
    if limiter.try_acquire(RequestPriority.EXIT):
        sys.stdout.write(f"{time.monotonic_ns()}\\n"); sys.stdout.flush()
        limiter.release()
    else:
        time.sleep(0.001)
"""


def test_killed_processes_together_stay_within_the_second(tmp_path: Path) -> None:
    """Each process is killed in the middle of a second; the test counts its requests."""
    sent: list[int] = []
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "key.usage")], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            sent += [int(process.stdout.readline()) for _ in range(15)]
            os.kill(process.pid, signal.SIGKILL)
            sent += [int(line) for line in process.stdout.read().split()]
    assert worst_window(sent, 10**9) <= 20


def test_the_usage_log_is_private_and_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.usage"
    limiter = RateLimiter(REAL, SystemClock(), UsageLog(path, SystemClock()))
    assert limiter.try_acquire(RequestPriority.EXIT)
    limiter.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
