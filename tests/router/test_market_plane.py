"""The market plane: subscriptions, history, snapshots, memory, and what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from qts.domain import Bar, RefusedError, Timeframe
from qts.router import BAR, TICK, BarSession, MarketPlane

MIDNIGHT = 20_000 * 86_400


def ticks_of(plane: MarketPlane, symbols: list[str], count: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.zeros(count, TICK)
    rows["symbol"] = rng.choice([plane.symbol_id(each) for each in symbols], count)
    rows["price"] = rng.integers(1_000, 2_000, count)
    rows["volume"] = rng.integers(0, 9, count)
    rows["at"] = MIDNIGHT + np.cumsum(rng.exponential(0.3, count))
    return rows


def test_each_strategy_receives_what_it_subscribed_to_and_nothing_else() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("fast", ["A00001"], ["1s"], ["sma(1)"])
    plane.subscribe("slow", ["A00001", "A00002"], ["1m"], ["sma(1)", "donchian(1)"])
    plane.subscribe("slow", ["A00003"], ["1m"], ["sma(1)", "donchian(1)"])
    for index in range(120):
        for symbol in ("A00001", "A00002", "A00003", "A00004"):
            plane.push(symbol, 100 + index, 1, MIDNIGHT + index)
    plane.advance(MIDNIGHT + 120)
    fast, slow = plane.drain("fast"), plane.drain("slow")
    assert {(bar.symbol, bar.timeframe) for bar, _ in fast} == {("A00001", Timeframe.S1)}
    assert len(fast) == 120
    assert {bar.symbol for bar, _ in slow} == {"A00001", "A00002", "A00003"}
    assert slow.values.shape == (6, 4)
    assert all(values == (bar.close, bar.high, (bar.high + bar.low) / 2, bar.low)
               for bar, values in slow)  # fmt: skip
    assert len(plane.drain("fast")) == 0
    counts = plane.counts
    assert counts.produced == counts.delivered == len(fast) + len(slow)
    assert counts.ticks == 360  # nobody subscribed to the fourth symbol


def test_history_warms_up_and_ticks_continue_it() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["005930"], ["1m"], ["sma(3)"])
    history = [
        Bar("005930", Timeframe.M1, MIDNIGHT + 60 * n, 1.0, 1.0, 1.0, float(n), 1.0)
        for n in range(1, 6)
    ]
    assert plane.push_bars([*history, history[-1]._replace(symbol="unknown")]) == 5
    assert plane.push_bars(history) == 0  # known already
    assert len(plane.drain("s")) == 0
    assert plane.indicator("005930", "1m", "sma(3)") == (4.0,)
    plane.push("005930", 9, 1, MIDNIGHT + 301)
    plane.advance(MIDNIGHT + 360)
    [(bar, values)] = plane.drain("s")
    assert (bar.at, values) == (MIDNIGHT + 360, (6.0,))
    assert plane.bars("005930", "1m")["close"].tolist() == [1, 2, 3, 4, 5, 9]


def test_history_with_a_price_that_is_none_is_refused_and_nothing_is_taken() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["005930"], ["1m"], ["atr(1)"])
    good = Bar("005930", Timeframe.M1, MIDNIGHT + 60, 5.0, 6.0, 4.0, 5.0, 1.0)
    later = good._replace(at=MIDNIGHT + 120)
    for price in (float("nan"), 0.0, -1.0, float("inf")):
        for bad in (
            later._replace(open=price),
            later._replace(high=price),
            later._replace(low=price),
            later._replace(close=price),
        ):
            with pytest.raises(RefusedError, match="has a price that is none"):
                plane.push_bars([good, bad])
    assert len(plane.bars("005930", "1m")) == 0


def test_days_of_history_may_end_at_another_time_than_usual() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["005930"], ["1d"])
    ends = [MIDNIGHT + 23_400, MIDNIGHT + 86_400 + 27_000]  # 15:30, and 16:30 on an exam day
    days = [Bar("005930", Timeframe.D1, end, 1.0, 1.0, 1.0, 1.0, 1.0) for end in ends]
    assert plane.push_bars(days) == 2


@pytest.mark.parametrize("layout", ["inline", "threads"])
def test_a_restart_from_a_snapshot_gives_the_same_rows(layout: str) -> None:
    symbols = ["005930", "KRW-BTC", "000660"]
    names = ["ema(5)", "bollinger(4,2)", "vwap"]

    def fresh() -> MarketPlane:
        plane = MarketPlane(layout=layout)  # type: ignore[arg-type]
        plane.subscribe("s", symbols, ["1s", "1m", "1d"], names)
        return plane

    with fresh() as whole, fresh() as first, fresh() as second:
        rows = ticks_of(whole, symbols, 3_000)
        first.push_many(rows[:1_700])
        second.restore(first.snapshot())
        whole.push_many(rows[:1_700])
        whole.settle()
        whole.drain("s")
        for plane in (whole, second):
            plane.push_many(rows[1_700:])
            plane.advance(MIDNIGHT + 86_400)
            plane.settle()
        expected, found = whole.drain("s"), second.drain("s")
        assert len(found) > 100
        assert found.rows.tobytes() == expected.rows.tobytes()
        assert found.values.tobytes() == expected.values.tobytes()
        assert second.snapshot() == whole.snapshot()


def test_a_snapshot_fits_other_subscriptions() -> None:
    first, second = MarketPlane(layout="inline"), MarketPlane(layout="inline")
    first.subscribe("s", ["005930", "000660"], ["1s"], ["ema(5)"])
    first.push_many(ticks_of(first, ["005930", "000660"], 500))
    second.subscribe("t", ["000660", "KRW-BTC"], ["1s", "1m"], ["sma(3)", "ema(5)"])
    second.restore(first.snapshot())
    kept = first.bars("000660", "1s")
    again = second.bars("000660", "1s")
    assert again["close"].tolist() == kept["close"].tolist()
    assert second.indicator("000660", "1s", "ema(5)") == first.indicator("000660", "1s", "ema(5)")
    assert second.indicator("000660", "1s", "sma(3)")[0] == pytest.approx(kept["close"][-3:].mean())
    assert len(second.bars("KRW-BTC", "1m")) == 0


def test_rows_may_be_drained_while_another_thread_pushes() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["A00001", "A00002"], ["1s"], ["ema(3)"])
    rows = ticks_of(plane, ["A00001", "A00002"], 200_000)
    pushing = threading.Thread(target=plane.push_many, args=(rows,))
    pushing.start()
    taken = 0
    while pushing.is_alive():
        taken += len(plane.drain("s"))
        plane.bars("A00001", "1s", 5)
    taken += len(plane.drain("s"))
    assert taken == plane.counts.produced == plane.counts.delivered


def test_arrays_are_copies_with_named_fields() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["A00001"], ["1s"])
    plane.push("A00001", 5, 2, MIDNIGHT)
    plane.push("A00001", 6, 1, MIDNIGHT + 1)
    bars = plane.bars("A00001", "1s")
    assert bars.dtype == BAR
    assert bars[0].tolist() == (0, 1, 1, MIDNIGHT + 1, 5, 5, 5, 5, 2, 10)
    bars["close"] = 0
    assert plane.bars("A00001", "1s")["close"].tolist() == [5]


def test_memory_grows_with_the_bars_that_are_kept() -> None:
    plane = MarketPlane(layout="inline", bars_kept=100)
    plane.subscribe("s", ["A00001"], ["1s", "1m", "1h"])
    empty = plane.counts.bytes
    plane.push_many(ticks_of(plane, ["A00001"], 5_000))
    plane.drain("s")
    assert plane.counts.bytes - empty <= 3 * 164 * 56


def test_a_session_of_your_own_aligns_the_bars() -> None:
    plane = MarketPlane(
        layout="inline", session_of=lambda _: BarSession(open_s=34_200, length_s=23_400)
    )
    plane.subscribe("s", ["NASDAQ"], ["1h", "1d"])
    plane.push("NASDAQ", 5, 1, MIDNIGHT + 34_200)  # 09:30
    plane.advance(MIDNIGHT + 86_400)
    assert [bar.at - MIDNIGHT for bar, _ in plane.drain("s")] == [37_800, 57_600]


def test_a_tick_that_makes_no_sense_is_refused_and_nothing_is_taken() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["A00001"], ["1s"], ["ema(2)"])
    for price, volume, at, expected in (
        (0.0, 1.0, MIDNIGHT, r"price is 0\.0; expected more than 0"),
        (float("nan"), 1.0, MIDNIGHT, "price is nan"),
        (1.0, -1.0, MIDNIGHT, r"volume is -1\.0; expected 0 or more"),
        (1.0, float("inf"), MIDNIGHT, "volume is inf"),
        (1.0, 1.0, 1e18, r"at is 1e\+18; expected seconds since 1970, before 2106"),
    ):
        with pytest.raises(RefusedError, match=expected):
            plane.push("A00001", price, volume, at)
        rows = np.array([(0, 5, 1, MIDNIGHT), (0, price, volume, at)], TICK)
        with pytest.raises(RefusedError, match=f"tick 1: {expected}"):
            plane.push_many(rows)
    with pytest.raises(RefusedError, match="tick 0: symbol is 7; there are 1 symbols"):
        plane.push_many(np.array([(7, 5, 1, MIDNIGHT)], TICK))
    assert plane.counts.ticks == 0


def test_what_makes_no_sense_is_refused() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["A00001"], ["1s"])
    with pytest.raises(RefusedError, match="timeframe '2m' is unknown; expected one of 1s"):
        plane.subscribe("t", ["A00001"], ["2m"])
    with pytest.raises(RefusedError, match="strategy s is subscribed to 1s with no indicators"):
        plane.subscribe("s", ["A00001"], ["1m"])
    with pytest.raises(RefusedError, match="strategy 'x' is unknown; expected one of s"):
        plane.drain("x")
    with pytest.raises(RefusedError, match="bars_kept is 0; expected 1 to"):
        MarketPlane(bars_kept=0)
    with pytest.raises(RefusedError, match=r"layout 'thread' is unknown.*did you mean threads"):
        MarketPlane(layout="thread")  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="this is no snapshot of bars"):
        plane.restore(b"text")
    with pytest.raises(RefusedError, match="its checksum differs"):
        plane.restore(plane.snapshot()[:-1])
    with pytest.raises(RefusedError, match="push_many takes an array of dtype TICK"):
        plane.push_many(np.zeros(3, BAR))
    long = MarketPlane(session_of=lambda _: BarSession(0, 86_400, 60))
    with pytest.raises(RefusedError, match="session of A has 86460 seconds; expected at most"):
        long.subscribe("s", ["A"], ["1s"])
