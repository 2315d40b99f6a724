"""Bursts: at most ten, the largest movers, five minutes at most."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from qts.feed import BurstManager, Surge
from qts.feed.bursts import MAX_BURST_S, MAX_BURSTS

EVENTS = st.one_of(
    st.tuples(st.just("offer"), st.integers(0, 30), st.floats(-0.3, 0.3)),
    st.tuples(st.just("price"), st.integers(0, 30), st.floats(1, 1000)),
    st.tuples(st.just("wait"), st.just(0), st.floats(0, 90)),
    st.tuples(st.just("resize"), st.integers(0, MAX_BURSTS), st.just(0.0)),
)


@given(st.lists(EVENTS, max_size=200))
def test_never_more_than_ten_and_never_longer_than_five_minutes(
    events: list[tuple[str, int, float]],
) -> None:
    bursts, at, slots = BurstManager(), 0.0, MAX_BURSTS
    began: dict[str, float] = {}
    for kind, number, amount in events:
        symbol = f"{number:06}"
        if kind == "offer" and bursts.offer(Surge(symbol, amount, 0.0), at):
            began[symbol] = at
        elif kind == "price":
            bursts.on_price(symbol, amount, at)
        elif kind == "wait":
            at += amount
            bursts.end(at)
        elif kind == "resize":
            slots = number
            bursts.resize(slots)
        assert len(bursts) <= slots
        assert all(at - began[each] < MAX_BURST_S for each in bursts.symbols)


@given(st.lists(st.floats(0.001, 0.3), min_size=1, max_size=40, unique=True), st.randoms())
def test_of_many_at_once_the_ten_largest_movers_are_chosen(
    sizes: list[float], order: random.Random
) -> None:
    surges = [Surge(f"{n:06}", size, 0.0) for n, size in enumerate(sizes)]
    order.shuffle(surges)
    bursts = BurstManager()
    for surge in surges:
        bursts.offer(surge, 0.0)
    largest = sorted(surges, key=lambda surge: -surge.change)[:MAX_BURSTS]
    assert set(bursts.symbols) == {surge.symbol for surge in largest}


def test_a_quiet_minute_ends_a_burst_and_movement_continues_it() -> None:
    bursts = BurstManager()
    bursts.offer(Surge("CALM", 0.04, 0.0), 0.0)
    bursts.offer(Surge("WILD", 0.04, 0.0), 0.0)
    for second in range(100):
        bursts.on_price("CALM", 100.0 + second % 2 * 0.4, float(second))
        bursts.on_price("WILD", 100.0 + second % 50, float(second))
    assert bursts.end(100.0) == ["CALM"]
    assert bursts.symbols == ["WILD"]


def test_a_fall_is_as_large_as_a_rise() -> None:
    bursts = BurstManager(slots=1)
    bursts.offer(Surge("UP", 0.04, 0.0), 0.0)
    assert bursts.offer(Surge("DOWN", -0.05, 0.0), 0.0)
    assert bursts.symbols == ["DOWN"]


def test_a_symbol_that_keeps_moving_is_dropped_after_five_minutes() -> None:
    bursts = BurstManager()
    bursts.offer(Surge("WILD", 0.04, 0.0), 0.0)
    for second in range(300):
        bursts.on_price("WILD", 100.0 + second % 50, float(second))
        assert bursts.end(float(second)) == []
    assert bursts.end(300.0) == ["WILD"]
