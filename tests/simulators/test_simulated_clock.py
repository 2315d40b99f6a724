"""A client's clock in simulated time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from qts.domain import ManualClock
from qts.simulators import SimulatedClock

START = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)


async def test_both_sides_run_at_the_simulators_speed() -> None:
    machine = ManualClock()
    clock = SimulatedClock(machine, START, 200.0)
    before = clock.monotonic_ns()
    await machine.advance(2.5)
    assert clock.now() == START + timedelta(seconds=500)
    assert clock.monotonic_ns() - before == 500 * 10**9


async def test_a_sleep_is_as_much_shorter() -> None:
    machine = ManualClock()
    clock = SimulatedClock(machine, START, 60.0)
    sleeper = asyncio.create_task(clock.sleep(60.0))
    await machine.advance(0.99)
    assert not sleeper.done()
    await machine.advance(0.02)
    assert sleeper.done()


@given(st.lists(st.integers(0, 10**12), max_size=20), st.floats(1, 1000))
def test_it_never_goes_back_and_continues_across_processes(steps: list[int], speed: float) -> None:
    class Machine(ManualClock):
        ns = 10**15

        def monotonic_ns(self) -> int:
            return self.ns

    machine, last = Machine(), 0
    for step in steps:
        machine.ns += step
        now = SimulatedClock(machine, START, speed).monotonic_ns()
        assert now >= last
        last = now
