"""The portfolio: how old the latest tick of a symbol is, and what the positions are worth."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

from msgspec.structs import replace

from qts.domain import ManualClock, Position, Tick
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


def test_a_valuation_is_at_the_last_prices_or_at_cost() -> None:
    portfolio = Portfolio(ManualClock(), LISTED)
    held = (
        Position("005930", Decimal(3), Decimal("70000.5")),
        Position("000660", Decimal(-2), Decimal(200)),
    )
    portfolio.load(Decimal(1_000), held)
    portfolio.apply_tick(Tick("005930", 71_000.0))
    found = portfolio.valuation()
    assert (found.cash, found.equity, found.unrealised) == (
        Decimal(1_000),
        Decimal(1_000 + 213_000 - 400),
        Decimal("2998.5"),
    )
    assert found.prices == {"005930": Decimal("71000.0"), "000660": Decimal(200)}
    assert (portfolio.equity, portfolio.unrealised) == (found.equity, found.unrealised)
