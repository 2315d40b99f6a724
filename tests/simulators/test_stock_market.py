"""Properties of the stock market for any seed and any injected event."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.simulators.market.markets import VI_EXTRA_S, VI_S, StockMarket
from qts.simulators.market.rules import STOCK_TICKS, Ints, at

DAY = date(2026, 11, 16)
BELL = at(DAY, 9)


def market(seed: int = 1, symbols: int = 30, surges: float = 0.0, start: int = BELL) -> StockMarket:
    made = StockMarket(start, seed, symbols, surges, suspended=1)
    run(made, start)
    return made


def run(made: StockMarket, until: int) -> None:
    for _ in made.advance(until):
        pass


def test_a_market_that_is_always_open_trades_on_a_sunday_night() -> None:
    night = at(date(2026, 11, 15), 3)
    made = StockMarket(night, symbols=30, surges_per_hour=0.0, suspended=0, always_open=True)
    run(made, night + 120)
    assert made.time == night + 120
    assert made.phase.kind == "regular"
    assert made.volume.sum() > 0
    assert_laws(made)


def assert_laws(made: StockMarket) -> None:
    for i in range(len(made.price)):
        price = int(made.price[i])
        assert STOCK_TICKS.is_on(price)
        assert made.lower[i] <= price <= made.upper[i]
        if made.open[i]:
            assert made.low[i] <= price <= made.high[i]
        book = made.book(i)
        asks, bids = [x.price for x in book.asks], [x.price for x in book.bids]
        assert asks == sorted(set(asks))
        assert bids == sorted(set(bids), reverse=True)
        assert all(
            STOCK_TICKS.is_on(p) and made.lower[i] <= p <= made.upper[i] for p in asks + bids
        )
        assert all(level.quantity > 0 for level in book.asks + book.bids)
        if asks and bids:
            assert bids[0] < asks[0]
            assert asks[0] - bids[0] <= STOCK_TICKS.tick(bids[0])
        if made.state(i) == "continuous":
            assert price in (asks[:1] + bids[:1])


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32),
    surges=st.lists(
        st.tuples(st.integers(0, 28), st.floats(-45, 60), st.integers(1, 30)), max_size=6
    ),
)
def test_prices_stay_on_ticks_and_inside_limits(
    seed: int, surges: list[tuple[int, float, int]]
) -> None:
    made = market(seed, surges=600)
    for index, percent, over_s in surges:
        made.inject_surge(index, percent, over_s)
        before = made.volume.copy(), made.price.copy()
        run(made, made.time + 45)
        assert (made.volume >= before[0]).all()
        assert_laws(made)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), strides=st.lists(st.integers(1, 200), min_size=1, max_size=6))
def test_the_market_does_not_depend_on_the_step_size(seed: int, strides: list[int]) -> None:
    one, other = market(seed, surges=120), market(seed, surges=120)
    target = BELL + sum(strides)
    run(one, target)
    for stride in strides:
        run(other, other.time + stride)
        other.book(3)
    for name in ("price", "volume", "value", "high", "low", "vi_until"):
        assert (getattr(one, name) == getattr(other, name)).all()
    assert [one.book(i) for i in range(30)] == [other.book(i) for i in range(30)]


def test_entering_later_finds_the_same_day() -> None:
    early, late = market(start=BELL), market(start=BELL + 900)
    run(early, BELL + 900)
    assert (early.price == late.price).all()
    assert (early.volume == late.volume).all()


def test_another_seed_is_another_market() -> None:
    assert (market(1).price != market(2).price).any()


def test_an_injected_surge_does_not_change_other_symbols() -> None:
    calm, moved = market(surges=200), market(surges=200)
    moved.inject_surge(3, 2.0, over_s=20)
    run(calm, BELL + 20)
    run(moved, BELL + 20)
    assert moved.price[3] > calm.price[3]
    run(calm, BELL + 300)
    run(moved, BELL + 300)
    others = np.arange(30) != 3
    assert (calm.price[others] == moved.price[others]).all()
    assert (calm.volume[others] == moved.volume[others]).all()


def test_a_surge_arrives_at_its_percentage() -> None:
    made = market()
    before = int(made.price[20])
    made.inject_surge(20, 3.5, over_s=2)
    run(made, made.time + 2)
    assert made.price[20] / before == pytest.approx(1.035, abs=0.005)


def test_price_changes_only_with_volume() -> None:
    made = market(surges=600)
    for _ in range(300):
        price, volume = made.price.copy(), made.volume.copy()
        run(made, made.time + 1)
        assert not ((made.price != price) & (made.volume == volume)).any()
        assert (made.volume >= volume).all()
        assert ((made.volume > volume) == made.traded).all()


def test_a_move_of_ten_percent_interrupts_for_two_minutes_and_a_bit() -> None:
    made = market()
    made.inject_surge(25, 14.0, over_s=30)
    while not made.in_vi(25):
        run(made, made.time + 1)
        assert made.time < BELL + 60
    began, price, volume = made.time, int(made.price[25]), int(made.volume[25])
    assert abs(price / made.vi_reference[25] - 1) < 0.10
    while made.in_vi(25):
        assert (made.price[25], made.volume[25]) == (price, volume)
        assert made.state(25) == "auction"
        run(made, made.time + 1)
    assert VI_S <= made.time - began <= VI_S + VI_EXTRA_S
    assert made.vi_reference[25] == made.price[25] > price
    assert made.crossed[25]


def test_a_jump_in_one_second_interrupts_index_stocks_at_three_percent() -> None:
    made = market()
    made.inject_surge(0, 3.5, over_s=1)
    made.inject_surge(25, 3.5, over_s=1)
    run(made, made.time + 1)
    assert made.universe.narrow_vi[0]
    assert made.in_vi(0)
    assert not made.in_vi(25)


def test_nothing_trades_in_an_auction() -> None:
    made = market(start=at(DAY, 8, 40))
    run(made, BELL - 1)
    assert made.volume.sum() == 0
    assert (made.price == made.base).all()
    assert made.state(0) == "auction"
    run(made, BELL)
    assert (made.open[:-1] > 0).all()
    assert made.crossed[:-1].all()


class Moment(NamedTuple):
    price: Ints
    volume: Ints
    state: str


@pytest.fixture(scope="module")
def day() -> tuple[dict[str, Moment], StockMarket]:
    """Samples of one whole day, and the market of the next morning."""
    made = market(symbols=12)
    seen = {}
    for text in ["0920", "1200", "1220", "1500", "1520", "1529", "1530", "1545", "2000"]:
        run(made, at(DAY, int(text[:2]), int(text[2:])))
        seen[text] = Moment(made.price.copy(), made.volume.copy(), made.state(0))
    night = sum(1 for _ in made.advance(at(date(2026, 11, 17), 8, 30)))
    assert night == 1  # closed hours are one stride
    return seen, made


def test_a_day_ends_with_an_auction(day: tuple[dict[str, Moment], StockMarket]) -> None:
    seen, _ = day
    assert seen["1529"].state == "auction"
    assert (seen["1529"].volume == seen["1520"].volume).all()
    assert (seen["1530"].volume[:-1] > seen["1529"].volume[:-1]).all()
    assert seen["1545"].state == "closed"
    assert (seen["1545"].price == seen["1530"].price).all()


def test_the_next_day_starts_from_the_close(day: tuple[dict[str, Moment], StockMarket]) -> None:
    seen, made = day
    assert (made.base == seen["2000"].price).all()
    assert made.volume.sum() == 0
    assert (made.prev_volume[:-1] == seen["2000"].volume[:-1]).all()


def test_most_volume_is_at_both_ends(day: tuple[dict[str, Moment], StockMarket]) -> None:
    volume = {text: moment.volume[:10].sum() for text, moment in day[0].items()}
    noon = volume["1220"] - volume["1200"]
    assert volume["0920"] > 2 * noon
    assert volume["1520"] - volume["1500"] > 1.2 * noon


def test_a_weekend_start_waits_for_monday() -> None:
    made = StockMarket(at(date(2026, 11, 21), 12), 1, 5)
    run(made, at(date(2026, 11, 22), 12))
    assert made.state(0) == "closed"
    assert (made.price == made.base).all()


def test_a_suspended_symbol_does_not_trade() -> None:
    made = market()
    run(made, BELL + 300)
    assert made.volume[-1] == 0
    assert made.state(29) == "closed"
