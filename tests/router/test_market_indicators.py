"""Indicators of the market plane against TA-Lib, at price levels from 100 to 140 million."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import talib
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import Bar, RefusedError, Timeframe
from qts.router import MarketPlane, step_indicator
from qts.router.indicators import bar_indicator

Floats = npt.NDArray[np.float64]
LEVELS = [(100, 2), (70_000, 0), (140_000_000, 0)]
START = 20_000 * 86_400


class Columns(NamedTuple):
    high: Floats
    low: Floats
    close: Floats
    volume: Floats


# Name -> the same of TA-Lib.
ORACLES: dict[str, Any] = {
    "sma(20)": lambda b: talib.SMA(b.close, 20),
    "sma(2)": lambda b: talib.SMA(b.close, 2),
    "ema(20)": lambda b: talib.EMA(b.close, 20),
    "rma(14)": lambda b: talib.RMA(b.close, 14),
    "rsi(14)": lambda b: talib.RSI(b.close, 14),
    "rsi(2)": lambda b: talib.RSI(b.close, 2),
    "macd(12,26,9)": lambda b: talib.MACD(b.close, 12, 26, 9),
    "macd(3,5,2)": lambda b: talib.MACD(b.close, 3, 5, 2),
    "bollinger(20,2)": lambda b: talib.BBANDS(b.close, 20, 2.0, 2.0),
    "atr(14)": lambda b: talib.ATR(b.high, b.low, b.close, 14),
    "vwap": lambda b: talib.VWAP(b.high, b.low, b.close, b.volume),
    "donchian(20)": lambda b: talib.DONCHIAN(b.high, b.low, 20),
}


def walk(level: int, digits: int, size: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    close = np.round(level * np.exp(np.cumsum(rng.normal(0, 0.001, size))), digits)
    high = np.round(close * (1 + rng.uniform(0, 0.001, size)), digits)
    low = np.round(close * (1 - rng.uniform(0, 0.001, size)), digits)
    return Columns(high, low, close, np.round(rng.uniform(1, 1000, size)))


def bars(columns: Columns, frame: Timeframe = Timeframe.S1) -> list[Bar]:
    """Return a bar for each second of one day."""
    return [
        Bar("KRW-BTC", frame, START + (index + 1) * frame.seconds, c, h, low, c, v, c * v)
        for index, (h, low, c, v) in enumerate(zip(*(x.tolist() for x in columns), strict=True))
    ]


def plane_with(*names: Any) -> MarketPlane:
    plane = MarketPlane(layout="inline", bars_kept=10)
    plane.subscribe("s", ["KRW-BTC"], ["1s"], names)
    return plane


def values_of(plane: MarketPlane, rows: list[Bar]) -> Floats:
    assert plane.push_bars(rows, deliver=True) == len(rows)
    return plane.drain("s").values


def assert_equal(ours: Floats, theirs: Any) -> None:
    expected = np.atleast_2d(np.array(theirs)).T
    assert (np.isnan(ours) == np.isnan(expected)).all()
    wide = np.maximum(1.0, np.abs(np.nan_to_num(expected)))
    assert (np.abs(np.nan_to_num(ours - expected)) <= 1e-9 * wide).all()


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize(("level", "digits"), LEVELS)
def test_an_indicator_is_that_of_talib_with_a_restart(name: str, level: int, digits: int) -> None:
    columns = walk(level, digits, 3_000, seed=level % 97)
    rows, plane = bars(columns), plane_with(name)
    first = values_of(plane, rows[:1_234])
    restarted = plane_with(name)
    restarted.restore(plane.snapshot())
    second = values_of(restarted, rows[1_234:])
    assert_equal(np.vstack([first, second]), ORACLES[name](columns))
    # Bit for bit what it would have been without the restart.
    assert np.array_equal(values_of(plane, rows[1_234:]), second, equal_nan=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(1, 120), st.integers(0, 2))
def test_any_period_agrees_with_talib(seed: int, period: int, size: int, level: int) -> None:
    columns = walk(*LEVELS[level], size, seed)
    high, low, close, _ = columns
    names = [f"{kind}({period})" for kind in ("sma", "ema", "rsi", "atr", "donchian")]
    names.append(f"bollinger({period},2.5)")
    ours = values_of(plane_with(*names), bars(columns))
    theirs = [
        talib.SMA(close, period),
        talib.EMA(close, period),
        talib.RSI(close, period),
        talib.ATR(high, low, close, period),
        *talib.DONCHIAN(high, low, period),
        *talib.BBANDS(close, period, 2.5, 2.5),
    ]
    assert_equal(ours, theirs)


def test_rsi_is_0_where_nothing_moved_and_100_where_only_up() -> None:
    flat, rising = np.full(20, 500.0), np.arange(1.0, 21.0)
    one = np.ones(20)
    assert values_of(plane_with("rsi"), bars(Columns(flat, flat, flat, one)))[-1, 0] == 0.0
    assert values_of(plane_with("rsi"), bars(Columns(rising, rising, rising, one)))[-1, 0] == 100.0


def test_vwap_restarts_each_day_and_has_no_value_without_volume() -> None:
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", ["005930"], ["1h"], ["vwap"])
    for day in range(2):
        for hour, volume in ((0, 0.0), (1, 2.0), (2, 1.0)):
            at = START + day * 86_400 + hour * 3_600
            plane.push("005930", 100.0 * (day + 1) + hour, volume, at)
    plane.advance(START + 3 * 86_400)
    found = [value for _, (value,) in plane.drain("s")]
    assert math.isnan(found[0])
    assert math.isnan(found[3])
    assert found[2] == pytest.approx((101 * 2 + 102) / 3)
    assert found[5] == pytest.approx((201 * 2 + 202) / 3)


def test_a_look_at_the_forming_bar_commits_nothing() -> None:
    names = list(ORACLES)
    columns = walk(70_000, 0, 60, seed=1)
    looked, plain = plane_with(*names), plane_with(*names)
    for index, close in enumerate(columns.close.tolist()):
        for plane in (looked, plain):
            plane.push("KRW-BTC", close, 1.0, START + index)
        before = [looked.indicator("KRW-BTC", "1s", name, forming=True) for name in names]
        looked.advance(START + index + 1)
        after = [looked.indicator("KRW-BTC", "1s", name) for name in names]
        assert np.array_equal(np.hstack(before), np.hstack(after), equal_nan=True)
    plain.advance(START + 60)
    assert np.array_equal(looked.drain("s").values, plain.drain("s").values, equal_nan=True)


def test_a_step_of_the_user_runs_without_the_gil_and_survives_a_restart() -> None:
    def fastest_rise(state: Any, params: Any, open_: float, high: float, low: float, close: float,
                     volume: float, at: float) -> float:  # fmt: skip
        rise = (close - state[0]) * params[0] if state[1] > 0 else 0.0
        state[0], state[1] = close, state[1] + 1
        state[2] = max(state[2], rise)
        return state[2]  # type: ignore[no-any-return]

    rise = step_indicator("rise", fastest_rise, state_size=3, params=(2.0,))
    assert rise.name == "rise(2)"
    plane, later = plane_with(rise, "sma(2)"), plane_with(rise, "sma(2)")
    columns = walk(100, 2, 50, seed=3)
    first = values_of(plane, bars(columns)[:20])
    later.restore(plane.snapshot())
    ours = np.vstack([first, values_of(later, bars(columns)[20:])])[:, 0]
    rises = np.maximum.accumulate(np.diff(columns.close, prepend=columns.close[0]) * 2.0)
    assert ours.tolist() == pytest.approx(np.maximum(rises, 0).tolist())
    again = step_indicator("rise", fastest_rise, state_size=3, params=(2.0,))
    with pytest.raises(RefusedError, match=r"two indicators are called rise\(2\)"):
        plane.subscribe("t", ["KRW-BTC"], ["1s"], [again])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("emaa(3)", "indicator 'emaa' is unknown; expected one of .*did you mean ema"),
        ("ema", r"indicator 'ema' takes 1 numbers, not 0: such as ema\(20\)"),
        ("ema(3,4)", "takes 1 numbers, not 2"),
        ("ema(x)", "expected numbers, not 'x'"),
        ("ema(0)", r"indicator ema\(0\): a period is a whole number from 1 to 1000000"),
        ("sma(nan)", "a period is a whole number from 1 to 5000"),
        ("macd(26,12,9)", "the fast period is less than the slow one"),
        ("bollinger(20,-1)", "the width is more than 0"),
        ("ema(20", "is not a name with numbers"),
    ],
)
def test_an_indicator_that_makes_no_sense_is_refused(text: str, expected: str) -> None:
    with pytest.raises(RefusedError, match=expected):
        plane_with(text)


def test_names_are_canonical_and_columns_named_after_outputs() -> None:
    assert bar_indicator(" EMA( 20.0 ) ").name == "ema(20)"
    assert bar_indicator("macd").name == "macd(12,26,9)"
    plane = plane_with("macd", "vwap")
    assert plane.columns("s") == (
        "macd(12,26,9).line", "macd(12,26,9).signal", "macd(12,26,9).histogram", "vwap.vwap",
    )  # fmt: skip
