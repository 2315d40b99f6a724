"""The request budget: who goes first, how it slows down, what it remembers."""

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
from tests.venues.manual_limiter import HandClock, worst_window

REAL = RateLimitConfig(per_second=18, per_minute=1000, per_day=100_000)


def _take_all(budget: RateLimiter, priority: RequestPriority) -> int:
    taken = 0
    while budget.try_acquire(priority):
        budget.release()
        taken += 1
    return taken


def test_orders_find_room_when_the_scan_has_taken_all_it_may() -> None:
    budget = RateLimiter(REAL, HandClock())
    assert _take_all(budget, RequestPriority.NORMAL) == 15
    assert not budget.try_acquire(RequestPriority.BURST)
    assert _take_all(budget, RequestPriority.ACCOUNT) == 1
    assert _take_all(budget, RequestPriority.ORDER) == 2


def test_a_minute_spent_by_the_scan_still_holds_fifty_orders() -> None:
    clock = HandClock()
    budget = RateLimiter(RateLimitConfig(per_second=1000, per_minute=1000), clock)
    assert _take_all(budget, RequestPriority.NORMAL) == 925
    assert _take_all(budget, RequestPriority.ORDER) == 75  # those of the accounts too


def test_a_key_of_one_a_second_serves_every_priority() -> None:
    for priority in RequestPriority:
        clock = HandClock()
        budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=60, per_day=1000), clock)
        assert _take_all(budget, priority) == 1
        clock.move(1.001)
        assert _take_all(budget, priority) == 1


def test_a_request_without_reply_holds_its_place() -> None:
    clock = HandClock()
    budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    assert budget.try_acquire(RequestPriority.ORDER)
    clock.move(30)
    assert not budget.try_acquire(RequestPriority.ORDER)
    budget.release()
    clock.move(0.999)
    assert not budget.try_acquire(RequestPriority.ORDER)
    clock.move(0.002)
    assert budget.try_acquire(RequestPriority.ORDER)


async def test_waiters_go_by_priority_then_by_order_of_asking() -> None:
    clock = ManualClock()
    budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=600), clock)
    went: list[str] = []

    async def ask(name: str, priority: RequestPriority) -> None:
        async with budget.request(priority):
            went.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, priority in [
            ("first", RequestPriority.NORMAL),
            ("scan 1", RequestPriority.NORMAL),
            ("scan 2", RequestPriority.NORMAL),
            ("burst", RequestPriority.BURST),
            ("order", RequestPriority.ORDER),
        ]:
            tasks.create_task(ask(name, priority))
        await clock.advance(6.0)
    assert went == ["first", "order", "burst", "scan 1", "scan 2"]
    budget.close()


async def test_an_order_among_2500_waiting_polls_goes_at_once() -> None:
    clock = ManualClock()
    budget = RateLimiter(REAL, clock)
    granted: list[int] = []

    async def poll() -> None:
        async with budget.request(RequestPriority.NORMAL):
            granted.append(clock.monotonic_ns())
            await clock.sleep(0.03)

    polls = [asyncio.create_task(poll()) for _ in range(2500)]
    waits = []
    for _ in range(40):
        await clock.advance(0.717)
        asked = clock.monotonic_ns()
        order = asyncio.create_task(budget.acquire(RequestPriority.ORDER))
        while not order.done():
            await clock.advance(0.001)
        waits.append((clock.monotonic_ns() - asked) / 1e6)
        budget.release()
    assert max(waits) < 60
    assert worst_window(granted, 10**9) <= 15
    for task in polls:
        task.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    budget.close()


async def test_who_gives_up_waiting_costs_nothing() -> None:
    clock = ManualClock()
    budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    await budget.acquire(RequestPriority.NORMAL)
    budget.release()
    impatient = asyncio.create_task(budget.acquire(RequestPriority.NORMAL))
    await clock.advance(0.1)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    patient = asyncio.create_task(budget.acquire(RequestPriority.NORMAL))
    await clock.advance(1.0)
    assert patient.done()
    assert budget.state().granted == 2
    budget.close()


def test_a_refusal_halves_the_rate_and_ten_clean_seconds_add_one() -> None:
    clock = HandClock()
    budget = RateLimiter(REAL, clock)
    budget.on_throttled()
    budget.on_throttled()  # of the same second: one event
    assert budget.state().rate_per_s == 9
    clock.move(10.0)
    assert _take_all(budget, RequestPriority.ORDER) == 10
    for _ in range(8):
        clock.move(10.0)
        _take_all(budget, RequestPriority.ORDER)
    assert budget.state().rate_per_s == 18


def test_refusals_at_the_lowest_rate_pause_longer_each_time() -> None:
    clock = HandClock()
    budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    for expected in (1.0, 2.0, 4.0):
        budget.on_throttled()
        clock.move(expected - 0.01)
        assert not budget.try_acquire(RequestPriority.ORDER)
        clock.move(1.02)
        assert budget.try_acquire(RequestPriority.ORDER)
        budget.release()


def test_after_a_clean_while_the_pauses_begin_anew() -> None:
    clock = HandClock()
    budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    for _ in range(8):
        budget.on_throttled()
        clock.move(1.01)
        assert budget.try_acquire(RequestPriority.ORDER)
        budget.release()
        clock.move(3600.0)


def test_a_pause_itself_is_no_clean_while() -> None:
    clock = HandClock()
    budget = RateLimiter(RateLimitConfig(per_second=1, per_minute=60), clock)
    for expected in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        budget.on_throttled()
        clock.move(expected - 0.01)
        assert not budget.try_acquire(RequestPriority.ORDER)
        clock.move(1.02)


def test_a_venue_that_names_a_pause_gets_it() -> None:
    clock = HandClock()
    budget = RateLimiter(REAL, clock)
    budget.on_throttled(retry_after_s=30.0)
    clock.move(29.9)
    assert not budget.try_acquire(RequestPriority.ORDER)
    clock.move(0.2)
    assert budget.try_acquire(RequestPriority.ORDER)


def test_a_paced_scan_is_even_and_catches_up_a_second_at_most() -> None:
    clock = HandClock()
    budget = RateLimiter(REAL, clock)
    budget.pace(2.0)
    _take_all(budget, RequestPriority.NORMAL)
    granted = []
    for _ in range(10_000):
        clock.move(0.001)
        if budget.try_acquire(RequestPriority.NORMAL):
            budget.release()
            granted.append(clock.ns)
    gaps = {later - earlier for earlier, later in itertools.pairwise(granted)}
    assert len(granted) == 20
    assert gaps == {500_000_000}
    clock.move(3600)
    assert _take_all(budget, RequestPriority.NORMAL) <= 3


def test_a_faster_pace_does_not_wait_for_what_a_slower_one_put_off() -> None:
    clock = HandClock()
    budget = RateLimiter(REAL, clock)
    budget.pace(1 / 3600)
    assert _take_all(budget, RequestPriority.NORMAL) >= 1
    clock.move(60.0)
    budget.pace(1 / 3600)
    clock.move(60.0)
    assert not budget.try_acquire(RequestPriority.NORMAL)
    budget.pace(2.0)
    clock.move(0.501)
    assert budget.try_acquire(RequestPriority.NORMAL)


def test_a_repeated_request_does_not_wait_for_its_pace_but_for_its_windows() -> None:
    clock = HandClock()
    budget = RateLimiter(RateLimitConfig(per_second=4, per_minute=1000, orders_per_second=0), clock)
    budget.pace(1.0)
    _take_all(budget, RequestPriority.NORMAL)
    clock.move(2.0)
    assert _take_all(budget, RequestPriority.NORMAL) == 2
    for _ in range(2):
        budget.skip_pace()
        assert budget.try_acquire(RequestPriority.NORMAL)
        budget.release()
    budget.skip_pace()
    assert not budget.try_acquire(RequestPriority.NORMAL)


def test_what_the_day_has_left_counts_only_what_is_still_in_it_by_then() -> None:
    clock = HandClock()
    budget = RateLimiter(REAL, clock)
    assert budget.try_acquire(RequestPriority.NORMAL)
    budget.release()
    assert budget.remaining_within(3600) == 99_999
    assert budget.remaining_within(86_401) == 100_000


def test_an_orderly_restart_remembers_exactly(tmp_path: Path) -> None:
    clock = HandClock()
    ledger = UsageLog(tmp_path / "key.budget", clock, boot="one")
    first = RateLimiter(REAL, clock, ledger)
    for _ in range(5):
        _take_all(first, RequestPriority.ORDER)
        clock.move(2.0)
    assert first.state().used_minute == 90
    first.close()
    second = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.budget", clock, boot="one"))
    assert second.state().used_minute == 90
    assert second.state().used_day == 90
    second.close()


def test_after_a_crash_the_open_lease_counts_as_used(tmp_path: Path) -> None:
    clock = HandClock()
    ledger = UsageLog(tmp_path / "key.budget", clock, boot="one")
    first = RateLimiter(REAL, clock, ledger)
    assert first.try_acquire(RequestPriority.ORDER)
    ledger.close()
    second = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.budget", clock, boot="one"))
    assert 1 <= second.state().used_second <= 9
    second.close()


def test_after_a_reboot_the_wall_clock_dates_the_past_and_two_seconds_are_added(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    first = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.budget", clock, boot="one"))
    _take_all(first, RequestPriority.ORDER)
    first.close()
    later = HandClock(clock.wall, monotonic_ns=5)
    later.move(61.0)
    second = RateLimiter(REAL, later, UsageLog(tmp_path / "key.budget", later, boot="two"))
    assert second.state().used_minute == 36
    assert second.state().used_day == 18 + 36
    second.close()


def test_a_wall_clock_set_while_down_forgets_nothing(tmp_path: Path) -> None:
    clock = HandClock()
    first = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.budget", clock, boot="one"))
    _take_all(first, RequestPriority.ORDER)
    first.close()
    clock.wall += timedelta(days=3)
    second = RateLimiter(REAL, clock, UsageLog(tmp_path / "key.budget", clock, boot="one"))
    assert second.state().used_second == 18
    second.close()


def test_a_torn_or_damaged_ledger_counts_too_much_rather_than_too_little(tmp_path: Path) -> None:
    clock = HandClock()
    path = tmp_path / "key.budget"
    first = RateLimiter(REAL, clock, UsageLog(path, clock, boot="one"))
    for _ in range(3):
        _take_all(first, RequestPriority.ORDER)
        clock.move(2.0)
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:48] + b"\xff" * 48 + whole[96:] + b"torn")
    second = RateLimiter(REAL, clock, UsageLog(path, clock, boot="one"))
    assert second.state().used_day >= 54
    second.close()


def test_a_second_process_on_the_same_key_is_refused(tmp_path: Path) -> None:
    ledger = UsageLog(tmp_path / "key.budget", HandClock())
    with pytest.raises(RefusedError, match="another process uses this key"):
        UsageLog(tmp_path / "key.budget", HandClock())
    ledger.close()


def _size(path: Path) -> int:
    return path.stat().st_size


async def test_what_cannot_be_written_down_is_not_granted(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk; then there is room again."""
    clock, path = ManualClock(), tmp_path / "key.budget"
    budget = RateLimiter(RateLimitConfig(per_second=1), clock, UsageLog(path, clock, boot="one"))
    async with budget.request(RequestPriority.ORDER):
        size = _size(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        waiting = asyncio.create_task(budget.acquire(RequestPriority.ORDER))
        await clock.advance(2.0)
        with pytest.raises(OperationError, match="cannot be written down"):
            await waiting
        with pytest.raises(OperationError, match="cannot be written down"):
            budget.try_acquire(RequestPriority.ORDER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await budget.acquire(RequestPriority.ORDER)
    budget.release()
    assert _size(path) == 2 * size
    budget.close()
    again = RateLimiter(RateLimitConfig(per_second=1), clock, UsageLog(path, clock, boot="one"))
    assert again.state().used_day == 2
    again.close()


async def test_who_waits_on_a_disk_that_has_become_read_only_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> int:
        raise OSError(30, "Read-only file system")

    clock = ManualClock()
    ledger = UsageLog(tmp_path / "key.budget", clock, boot="one")
    budget = RateLimiter(RateLimitConfig(per_second=1), clock, ledger)
    async with budget.request(RequestPriority.ORDER):
        pass
    waiting = asyncio.create_task(budget.acquire(RequestPriority.ORDER))
    await clock.advance(0.1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", read_only)
        patch.setattr(os, "ftruncate", read_only)
        await clock.advance(2.0)
        assert waiting.done()
        with pytest.raises(OperationError, match="Read-only file system"):
            waiting.result()
    budget.close()


def test_half_a_record_that_could_not_be_taken_off_hides_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half(file: int, data: bytes) -> int:
        return write(file, data[:20])

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    clock, path = HandClock(), tmp_path / "key.budget"
    ledger = UsageLog(path, clock, boot="one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(OperationError, match="cannot be written down"):
            ledger.lease(0, 8)
    ledger.lease(3, 3)
    ledger.close()
    again = UsageLog(path, clock, boot="one")
    assert [requests for _, requests in again.past] == [3]
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

    clock = HandClock()
    ledger = UsageLog(tmp_path / "key.budget", clock, boot="one")
    monkeypatch.setattr(os, "fdatasync", slow_and_broken)
    ledger.lease(0, 1)
    monkeypatch.setattr(os, "fdatasync", lambda _file: None)
    clock.move(2.0)
    ledger.lease(1, 2)  # the first sync is still under way
    may_end.set()
    assert ended.wait(60)
    ledger._disk.submit(int).result(60)  # one thread: what came before it has ended
    with pytest.raises(OperationError, match="Input/output error"):
        ledger.lease(2, 3)
    ledger.close()


LIFE = """
import sys, time
from pathlib import Path
from qts.domain import SystemClock
from qts.venues import Budget, Ledger, LimitsConfig, Priority
clock = SystemClock()
limits = LimitsConfig(per_second=20, per_minute=1000)
budget = Budget(limits, clock, Ledger(Path(sys.argv[1]), clock))
while True:
    if budget.try_acquire(Priority.ORDER):
        sys.stdout.write(f"{time.monotonic_ns()}\\n"); sys.stdout.flush()
        budget.release()
    else:
        time.sleep(0.001)
"""


def test_killed_lives_together_stay_within_the_second(tmp_path: Path) -> None:
    """Each life is killed in the middle of its second; the requests are counted outside of it."""
    sent: list[int] = []
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", LIFE, str(tmp_path / "key.budget")], stdout=subprocess.PIPE
        ) as life:
            assert life.stdout is not None
            sent += [int(life.stdout.readline()) for _ in range(15)]
            os.kill(life.pid, signal.SIGKILL)
            sent += [int(line) for line in life.stdout.read().split()]
    assert worst_window(sent, 10**9) <= 20


def test_the_ledger_is_private_and_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.budget"
    budget = RateLimiter(REAL, SystemClock(), UsageLog(path, SystemClock()))
    assert budget.try_acquire(RequestPriority.ORDER)
    budget.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
