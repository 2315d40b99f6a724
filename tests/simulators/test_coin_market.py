"""Properties of the coin market for any seed."""

from __future__ import annotations

from datetime import date

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import COIN_TICKS, at

NOON = at(date(2026, 11, 15), 12)  # a Sunday: coins know no weekend


def run(made: CoinMarket, until: int) -> CoinMarket:
    for _ in made.advance(until):
        pass
    return made


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32),
    surges=st.lists(st.tuples(st.integers(0, 19), st.floats(-80, 300)), max_size=5),
)
def test_prices_and_books_are_on_ticks(seed: int, surges: list[tuple[int, float]]) -> None:
    made = CoinMarket(NOON, seed, 20, 600)
    for index, percent in surges:
        made.inject_surge(index, percent, 5)
    before = made.volume.copy()
    run(made, NOON + 30)
    assert (made.volume >= before).all()
    for i in range(20):
        book = made.book(i)
        asks, bids = [x.price for x in book.asks], [x.price for x in book.bids]
        assert asks == sorted(set(asks))
        assert bids == sorted(set(bids), reverse=True)
        assert bids[0] < asks[0]
        assert made.price[i] in (asks[0], bids[0])
        assert all(COIN_TICKS.is_on(price) for price in asks + bids)
        assert all(level.quantity > 0 for level in book.asks + book.bids)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), strides=st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_market_does_not_depend_on_the_step_size(seed: int, strides: list[int]) -> None:
    one, other = CoinMarket(NOON, seed, 20, 120), CoinMarket(NOON, seed, 20, 120)
    run(one, NOON + sum(strides))
    for stride in strides:
        run(other, other.time + stride)
        other.book(1)
    assert (one.price == other.price).all()
    assert (one.volume == other.volume).all()
    assert one.book(5) == other.book(5)


def test_price_changes_only_with_volume() -> None:
    made = CoinMarket(NOON, 3, 40, 600)
    for _ in range(200):
        price, volume = made.price.copy(), made.volume.copy()
        run(made, made.time + 1)
        assert not ((made.price != price) & (made.volume == volume)).any()


def test_a_new_day_begins_at_midnight_utc() -> None:
    nine = at(date(2026, 11, 16), 9)
    made = run(CoinMarket(nine - 60, 1, 10), nine - 1)
    close, volume = made.price.copy(), made.volume.copy()
    run(made, nine)
    assert (made.base == close).all()
    assert (made.volume <= volume).all()
    assert made.volume.sum() < volume.sum()
    assert np.isfinite([made.day_volume(i) for i in range(10)]).all()
