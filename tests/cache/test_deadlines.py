"""Time limits by one timer: each call ends at its own time, and no other cancellation is eaten."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from qts.cache.call_policy import DeadlineTimer


class LimitError(Exception):
    """A time limit was reached."""


async def limited(timer: DeadlineTimer, limit_s: float, until: asyncio.Event) -> float:
    """Seconds until the event; LimitError when the limit came first."""
    began = time.monotonic()
    limit = timer.set(asyncio.get_running_loop().time() + limit_s)
    try:
        await until.wait()
    except asyncio.CancelledError:
        if not limit.is_cause():
            raise
        raise LimitError(time.monotonic() - began) from None
    finally:
        timer.clear(limit)
    return time.monotonic() - began


async def test_each_ends_at_its_own_time() -> None:
    timer, never = DeadlineTimer(), asyncio.Event()
    limits = [0.15, 0.01, 0.08, 0.04]
    ended: list[float] = []

    async def one(limit_s: float) -> None:
        with pytest.raises(LimitError) as over:
            await limited(timer, limit_s, never)
        assert over.value.args[0] >= limit_s - 0.002
        ended.append(limit_s)

    await asyncio.gather(*map(one, limits))
    assert ended == sorted(limits)


def test_it_keeps_time_on_uvloop_as_the_program_does() -> None:
    async def run() -> float:
        with pytest.raises(LimitError) as over:
            await limited(DeadlineTimer(), 0.02, asyncio.Event())
        took: float = over.value.args[0]
        return took

    assert 0.018 <= uvloop.run(run()) < 30


async def test_a_call_that_ends_in_time_is_left_alone() -> None:
    timer, done = DeadlineTimer(), asyncio.Event()
    done.set()
    for _ in range(3):
        await limited(timer, 0.005, done)
    await asyncio.sleep(0.02)  # the timer fires meanwhile without a deadline
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_short_limit_is_not_kept_waiting_by_a_long_one() -> None:
    timer, never = DeadlineTimer(), asyncio.Event()
    long = asyncio.create_task(limited(timer, 60, never))
    await asyncio.sleep(0)
    began = time.monotonic()
    with pytest.raises(LimitError):
        await limited(timer, 0.01, never)
    assert time.monotonic() - began < 30
    assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    timer = DeadlineTimer()
    call = asyncio.create_task(limited(timer, 60, asyncio.Event()))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_cancelled_and_over_at_once_is_cancelled() -> None:
    """Whoever cancelled it must see it end, even when the timer rings in the same turn."""
    timer = DeadlineTimer()
    call = asyncio.create_task(limited(timer, 60, asyncio.Event()))
    await asyncio.sleep(0)
    (limit,) = timer._deadlines
    call.cancel()
    limit.fire()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_limit_around_it_still_holds() -> None:
    timer = DeadlineTimer()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await limited(timer, 60, asyncio.Event())
