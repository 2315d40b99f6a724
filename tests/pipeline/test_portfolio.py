"""The world a strategy sees: how old the latest tick of a symbol is."""

from __future__ import annotations

import math
from datetime import timedelta

from msgspec.structs import replace

from qts.domain import ManualClock, Tick
from qts.pipeline import Portfolio
from tests.instruments import LISTED

SYMBOL = "005930"


def heard(clock: ManualClock) -> tuple[Portfolio, Tick]:
    world = Portfolio(clock, LISTED)
    tick = Tick(SYMBOL, 70_000.0, 1.0, 69_900.0, 70_000.0, clock.now().timestamp())
    world.apply_tick(tick)
    return world, tick


async def test_a_tick_ages_with_time() -> None:
    clock = ManualClock()
    world, tick = heard(clock)
    await clock.advance(1.5)
    assert round(world.age_ms(tick)) == 1500
    assert world.age_ms(replace(tick, venue_at=1.0)) == world.age_ms(tick)  # not of the venue


async def test_a_clock_that_is_set_back_makes_a_tick_old() -> None:
    clock = ManualClock()
    world, tick = heard(clock)
    clock.set_wall(clock.now() - timedelta(seconds=5))
    assert world.age_ms(tick) == math.inf
    await clock.advance(5.0)
    assert round(world.age_ms(tick)) == 5000


async def test_a_clock_that_is_set_ahead_makes_a_tick_old() -> None:
    clock = ManualClock()
    world, tick = heard(clock)
    clock.set_wall(clock.now() + timedelta(seconds=5))
    assert round(world.age_ms(tick)) == 5000
