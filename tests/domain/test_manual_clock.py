"""ManualClock: wall and monotonic time, and the order in which sleepers wake."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import Clock, ManualClock, SystemClock

START = datetime(2026, 1, 2, tzinfo=UTC)


def test_system_clock_is_utc_and_monotone() -> None:
    clock: Clock = SystemClock()
    assert clock.now().utcoffset() == timedelta(0)
    assert abs(clock.now().timestamp() - time.time()) < 5
    assert clock.monotonic_ns() <= clock.monotonic_ns()


async def test_system_clock_sleeps_as_long_as_asked() -> None:
    clock = SystemClock()
    start = clock.monotonic_ns()
    await clock.sleep(0.01)
    assert clock.monotonic_ns() - start >= 9_000_000


async def test_time_stands_still_until_moved() -> None:
    clock = ManualClock(START)
    await asyncio.sleep(0)
    assert (clock.now(), clock.monotonic_ns()) == (START, 0)
    await clock.advance(1.5)
    assert (clock.now(), clock.monotonic_ns()) == (START + timedelta(seconds=1.5), 1_500_000_000)


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock = ManualClock(START)
    woken: list[tuple[str, datetime]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3), ("early", 1), ("middle", 2), ("also early", 1)):
            group.create_task(sleeper(name, seconds))
        await clock.advance(2.5)
        assert [name for name, _ in woken] == ["early", "also early", "middle"]
        await clock.advance(0.5)
    assert [at - START for _, at in woken] == [timedelta(seconds=s) for s in (1, 1, 2, 3)]


async def test_a_sleeping_loop_runs_once_per_interval_in_one_advance() -> None:
    clock = ManualClock(START)
    ticks: list[int] = []

    async def poll() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.monotonic_ns() // 1_000_000_000)

    task = asyncio.create_task(poll())
    await clock.advance(5)
    task.cancel()
    assert ticks == [1, 2, 3, 4, 5]


async def test_cancelled_sleeper_does_not_stop_the_clock() -> None:
    clock = ManualClock(START)
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(2)
    assert task.cancelled()
    assert clock.monotonic_ns() == 2_000_000_000


@pytest.mark.parametrize("seconds", [0, -1])
async def test_sleeping_no_time_returns_at_once(seconds: float) -> None:
    clock = ManualClock(START)
    await asyncio.wait_for(clock.sleep(seconds), 60)
    assert clock.now() == START


async def test_clock_does_not_move_back() -> None:
    with pytest.raises(ValueError, match="forward only"):
        await ManualClock(START).advance(-1)


async def test_two_advances_at_once_never_turn_the_clock_back() -> None:
    clock = ManualClock(START)
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append(clock.monotonic_ns())

    sleepers = [asyncio.create_task(sleeper(seconds)) for seconds in (1, 2, 9)]
    await asyncio.gather(clock.advance(10), clock.advance(3))
    await asyncio.gather(*sleepers)
    assert woken == sorted(woken)
    assert woken[-1] >= 9_000_000_000
    assert clock.monotonic_ns() == 10_000_000_000


async def test_wall_may_jump_alone() -> None:
    clock = ManualClock(START)
    await clock.advance(1)
    clock.set_wall(START - timedelta(days=1))
    assert (clock.now(), clock.monotonic_ns()) == (START - timedelta(days=1), 1_000_000_000)
    await clock.advance(1)
    assert clock.now() == START - timedelta(days=1) + timedelta(seconds=1)


def test_moments_are_kept_in_utc_and_need_a_timezone() -> None:
    seoul = datetime(2026, 1, 2, 9, tzinfo=timezone(timedelta(hours=9)))
    assert ManualClock(seoul).now() == START
    assert ManualClock(seoul).now().tzinfo is UTC
    with pytest.raises(ValueError, match="timezone"):
        ManualClock(datetime(2026, 1, 2))  # noqa: DTZ001 - what is refused


@given(steps_ns=st.lists(st.integers(0, 10_000), max_size=30))
def test_wall_and_monotonic_never_drift_apart(steps_ns: list[int]) -> None:
    async def walk() -> None:
        clock = ManualClock(START)
        for step in steps_ns:
            await clock.advance(step / 1e9)
        assert clock.monotonic_ns() == sum(steps_ns)
        assert clock.now() == START + timedelta(microseconds=sum(steps_ns) // 1000)

    asyncio.run(walk())
