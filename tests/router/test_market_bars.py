"""Bars of the market plane against a plain aggregation in Python."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import Bar, Timeframe
from qts.router import TICK, MarketPlane

MIDNIGHT = 20_000 * 86_400  # 2024-10-04, 09:00 in Seoul
SYMBOLS = ("005930", "KRW-BTC", "000660")
FRAMES = tuple(Timeframe)
CLOSE = {"005930": 23_400, "000660": 23_400, "KRW-BTC": 86_400}  # of a day
AUCTION = {"005930": 60, "000660": 60, "KRW-BTC": 0}


class Trade(NamedTuple):
    symbol: str
    price: float
    volume: float
    at: float


def interval(symbol: str, frame: Timeframe, at: float) -> tuple[int, int, int]:
    """Return start, close and the time at which the bar is due to be closed."""
    day = math.floor(at / 86_400) * 86_400
    if frame is Timeframe.D1:
        close = day + CLOSE[symbol]
        return day, close, close + AUCTION[symbol]
    start = math.floor(at / frame.seconds) * frame.seconds
    return start, start + frame.seconds, start + frame.seconds


def aggregate(trades: list[Trade], clock: bool) -> tuple[set[Bar], int, int]:
    """Return all bars, the last ones included, and how many ticks were late and outside."""
    open_bars: dict[tuple[str, Timeframe], tuple[int, list[Trade]]] = {}
    ended: dict[tuple[str, Timeframe], int] = defaultdict(int)
    bars: set[Bar] = set()
    late = outside = 0

    def close(key: tuple[str, Timeframe]) -> None:
        _, part = open_bars.pop(key)
        _, at, ended[key] = interval(*key, part[0].at)
        prices = [trade.price for trade in part]
        volume = sum(trade.volume for trade in part)
        value = sum(trade.price * trade.volume for trade in part)
        low, high = min(prices), max(prices)
        bars.add(Bar(*key, float(at), prices[0], high, low, prices[-1], volume, value))

    for trade in trades:
        for key, (_, part) in list(open_bars.items()):
            due = interval(*key, part[0].at)[2]
            if trade.at >= due and (clock or key[0] == trade.symbol):
                close(key)
        for frame in FRAMES:
            key = (trade.symbol, frame)
            start, _, due = interval(*key, trade.at)
            if key in open_bars and trade.at >= open_bars[key][0]:
                open_bars[key][1].append(trade)
            elif key in open_bars or trade.at < ended[key]:
                late += 1
            elif trade.at >= due:
                outside += 1
            else:
                open_bars[key] = (start, [trade])
    for key in list(open_bars):
        close(key)
    return bars, late, outside


def trades(*, ordered: bool) -> st.SearchStrategy[list[Trade]]:
    """Return ticks with gaps up to a day, many at the start of a bar; some earlier, if wanted."""
    later = st.tuples(st.just(0), st.sampled_from([0.0, 0.001, 0.25, 0.999, 7.5, 61.0, 30_000.0]))
    aligned = st.tuples(st.just(1), st.sampled_from([1.0, 1.0, 60.0, 300.0, 3_600.0, 86_400.0]))
    earlier = st.tuples(st.just(0), st.sampled_from([-0.25, -1.0, -9.0, -70.0, -4_000.0]))
    step = st.one_of(later, aligned) if ordered else st.one_of(later, aligned, earlier)
    row = st.tuples(st.sampled_from(SYMBOLS), st.integers(1, 200), st.integers(0, 1_000), step)

    def at_times(rows: list[tuple[str, int, int, tuple[int, float]]]) -> list[Trade]:
        now, made = float(MIDNIGHT + 3_600), []
        for symbol, price, volume, (aligns, seconds) in rows:
            now = (now // seconds + 1) * seconds if aligns else now + seconds
            made.append(Trade(symbol, float(price), float(volume), now))
        return made

    sizes = st.sampled_from([0, 1, 2, 5, 20, 60])
    return sizes.flatmap(lambda size: st.lists(row, min_size=size, max_size=size)).map(at_times)


def subscribed(layout: str = "inline") -> MarketPlane:
    plane = MarketPlane(layout=layout)  # type: ignore[arg-type]
    plane.subscribe("all", SYMBOLS, FRAMES)
    return plane


def array(plane: MarketPlane, rows: list[Trade]) -> np.ndarray:
    return np.array([(plane.symbol_id(row[0]), *row[1:]) for row in rows], TICK)


def finish(plane: MarketPlane) -> list[Bar]:
    plane.advance(MIDNIGHT + 400 * 86_400)
    plane.settle()
    return [bar for bar, _ in plane.drain("all")]


@settings(max_examples=150, deadline=None)
@given(trades(ordered=False))
def test_live_ticks_in_any_order_give_the_bars_of_a_plain_aggregation(rows: list[Trade]) -> None:
    plane = subscribed()
    for row in rows:
        plane.push(*row)
    expected, late, outside = aggregate(rows, clock=False)
    bars = finish(plane)
    assert len(bars) == len(set(bars))
    assert set(bars) == expected
    assert (plane.counts.late, plane.counts.outside) == (late, outside)
    assert plane.counts.produced == plane.counts.delivered == len(bars)


@settings(max_examples=150, deadline=None)
@given(trades(ordered=True), st.integers(0, 60))
def test_replayed_ticks_give_the_same_bars_in_order_of_their_close(
    rows: list[Trade], cut: int
) -> None:
    plane = subscribed()
    plane.push_many(array(plane, rows[:cut]))
    plane.push_many(array(plane, rows[cut:]))
    expected, _, _ = aggregate(rows, clock=True)
    bars = finish(plane)
    assert set(bars) == expected
    # A day is closed a minute after its close, once its auction is over.
    due = [interval(bar.symbol, bar.timeframe, bar.at - 1)[2] for bar in bars]
    assert due == sorted(due)


@settings(max_examples=30, deadline=None)
@given(trades(ordered=True))
def test_a_clock_between_live_ticks_changes_no_bar(rows: list[Trade]) -> None:
    live, replayed = subscribed(), subscribed()
    for row in rows:
        live.advance(row.at)
        live.push(*row)
    replayed.push_many(array(replayed, rows))
    assert finish(live) == finish(replayed)


@settings(max_examples=10, deadline=None)
@given(trades(ordered=True))
def test_threads_of_the_router_give_the_bars_of_the_inline_layout(rows: list[Trade]) -> None:
    inline = subscribed()
    inline.push_many(array(inline, rows))
    with subscribed("threads") as threads:
        threads.push_many(array(threads, rows))
        bars = finish(threads)
        # Rows of several processors are in order of at, which of a day is before it is due.
        order = sorted(
            finish(inline),
            key=lambda bar: (bar.at, bar.timeframe.seconds, inline.symbol_id(bar[0])),
        )
        assert bars == order
        assert threads.counts == inline.counts._replace(bytes=threads.counts.bytes)


def test_a_bar_is_closed_on_time_without_a_tick() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["005930"], ["1m"])
    plane.push("005930", 71_500, 3, MIDNIGHT + 61.5)
    assert plane.advance(MIDNIGHT + 119.999) == 0
    assert plane.advance(MIDNIGHT + 120) == 1
    [(bar, values)] = plane.drain("s")
    assert bar == Bar("005930", Timeframe.M1, MIDNIGHT + 120, *(71_500.0,) * 4, 3.0, 214_500.0)
    assert values == ()


def test_the_closing_auction_belongs_to_its_day() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["005930"], ["1d"])
    plane.push("005930", 100, 1, MIDNIGHT + 10)
    plane.push("005930", 105, 9, MIDNIGHT + 23_425)  # 15:30:25
    assert plane.advance(MIDNIGHT + 23_459) == 0
    plane.push("005930", 90, 1, MIDNIGHT + 30_000)  # after hours
    [(bar, _)] = plane.drain("s")
    assert (bar.at, bar.close, bar.low, bar.volume) == (MIDNIGHT + 23_400, 105, 100, 10)
    assert plane.counts.outside == 1


def test_the_forming_bar_can_be_read() -> None:
    plane = MarketPlane(layout="inline", bars_kept=2)
    plane.subscribe("s", ["KRW-BTC"], ["1s"])
    for second in range(5):
        plane.push("KRW-BTC", 100 + second, 1, MIDNIGHT + second)
    assert plane.bars("KRW-BTC", "1s")["close"].tolist() == [102, 103]
    assert plane.bars("KRW-BTC", "1s", 1, forming=True)["close"].tolist() == [103, 104]
    assert len(plane.bars("KRW-BTC", "1h")) == len(plane.bars("unknown", "1s")) == 0


@pytest.mark.parametrize("frame", FRAMES)
def test_every_timeframe_of_the_domain_is_built(frame: Timeframe) -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["KRW-BTC"], [frame])
    plane.push("KRW-BTC", 5, 2, MIDNIGHT)
    plane.advance(MIDNIGHT + frame.seconds)
    [(bar, _)] = plane.drain("s")
    assert (bar.timeframe, bar.at) == (frame, MIDNIGHT + frame.seconds)
