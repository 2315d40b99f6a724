"""The core makes bars, ticks and views of rows, and values positions as decimals do."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qts._native import BarCalls
from qts.backtest.bar_tape import FIELDS
from qts.backtest.late_values import PlayedTicks
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio
from qts.domain import Bar, Instruments, Position, Tick, Timeframe, assumed_instrument
from qts.pipeline import PortfolioState, account_of, equity_of
from qts.strategies import View
from tests.backtest.test_quiet_bars import made_tape

NAMES = ["KRW-A", "KRW-B"]
KNOWN = Instruments([], default=assumed_instrument)
FIRST_AT = 1_794_787_200.0


def core_of(
    closes: list[tuple[float, ...]], ticks: dict[str, Tick], first_at: float = FIRST_AT
) -> BarCalls:
    """Return a core with a minute for each row of closes, one close a symbol."""
    calls = BarCalls(Bar, Tick, NAMES, Timeframe.M1, ticks)
    rows = [(at, price) for at, row in enumerate(closes) for price in row]
    table = np.ones((len(rows), len(FIELDS)))
    table[:, FIELDS.index("at")] = [first_at + 60 * (1 + at) for at, _ in rows]
    table[:, FIELDS.index("close")] = [price for _, price in rows]
    at = first_at + 60 * (1 + np.arange(float(len(closes))))
    closing = np.array([len(row) for row in closes])
    numbers = np.array([number for row in closes for number in range(len(row))], np.int64)
    calls.begin(at, closing, numbers, table, [SimpleNamespace(end=0) for _ in NAMES])
    return calls


class Played(SimpleNamespace):
    """What a play of a core needs, and what it left."""

    def __init__(
        self,
        closes: list[tuple[float, ...]],
        state: PortfolioState,
        on_bar: Callable[[Bar, View], Any],
        ticks: dict[str, Tick] | None = None,
    ) -> None:
        super().__init__(calls=3, returned=3, errors_in_a_row=2)
        self.ticks = {} if ticks is None else ticks
        self.core = core_of(closes, self.ticks)
        self.clock, self.repriced = BacktestClock(), 0
        self.clock.at = FIRST_AT
        shown = PlayedTicks(self.ticks, self.core.write_ticks)
        equity = equity_of(state, self.ticks.get)
        view = View(self.clock.now(), shown, state.positions, account_of(state), equity)
        self.state, self.found = state, None
        until = FIRST_AT + 86_400
        self.found = self.core.play(self, on_bar, self.clock, self.reprice, view, until)

    def reprice(self) -> tuple[Decimal, float, float]:
        self.repriced += 1
        equity = equity_of(self.state, self.ticks.get)
        return equity, float(equity), float(equity - self.state.cash)

    @property
    def points(self) -> list[tuple[float, ...]]:
        rows = np.frombuffer(self.core.points).reshape(-1, 3)
        return [tuple(row) for row in rows.tolist()]


written = st.decimals(Decimal("0.00001"), Decimal(10**9), places=5).map(float)
prices = st.one_of(
    st.integers(1, 10**8).map(float),
    st.decimals(Decimal("0.01"), Decimal(10**6), places=2).map(float),
    written,
    st.floats(1e-9, 1e17),
)
quantities = st.one_of(
    st.integers(1, 10**6).map(Decimal),
    st.decimals(Decimal("0.00000001"), Decimal(1000), places=8),
    st.sampled_from([Decimal("1E+3"), Decimal("10.00"), Decimal(-5), Decimal(10) ** 20]),
)
cash_values = st.one_of(
    st.integers(-(10**6), 10**12).map(Decimal),
    st.decimals(Decimal(-100), Decimal(10**10), places=4),
    st.sampled_from([Decimal("1E+9"), Decimal("0.00"), Decimal(10) ** 30]),
)


@settings(max_examples=200)
@given(
    closes=st.lists(st.tuples(prices, prices), min_size=1, max_size=6),
    held=st.tuples(quantities, quantities),
    cash=cash_values,
)
@example([(9_990.0, 0.1)], (Decimal(10), Decimal("0.00012345")), Decimal(10**9))
@example([(0.3, 1.1), (0.1 + 0.2, 5e-05)], (Decimal("3.10"), Decimal(1)), Decimal("-0.50"))
@example([(123_456_789.0, 1e16)], (Decimal("0.00000001"), Decimal(7)), Decimal(10**11))
def test_the_core_values_positions_as_decimals_do(
    closes: list[tuple[float, float]], held: tuple[Decimal, Decimal], cash: Decimal
) -> None:
    average = Decimal(100)
    positions = {
        name: Position(name, each, average) for name, each in zip(NAMES, held, strict=True)
    }
    positions["KRW-C"] = Position("KRW-C", Decimal(2), average)
    seen, state = [], PortfolioState(cash, positions)
    ticks = {name: Tick(name, 50.5) for name in (*NAMES, "KRW-C")}
    found = Played(list(closes), state, lambda _, view: seen.append(view.equity), dict(ticks))
    expected, points = [], []
    for number, row in enumerate(closes):
        ticks |= {name: Tick(name, price) for name, price in zip(NAMES, row, strict=True)}
        equity = equity_of(state, ticks.get)
        expected += [equity, equity]
        points.append((FIRST_AT + 60 * (1 + number), float(equity), float(equity - cash)))
    assert [str(each) for each in seen] == [str(each) for each in expected]
    assert found.points == points


def test_ordinary_amounts_are_not_valued_in_python() -> None:
    positions = {"KRW-A": Position("KRW-A", Decimal("0.12345678"), Decimal(100))}
    state = PortfolioState(Decimal("1000000000.25"), positions)
    first = {"KRW-A": Tick("KRW-A", 143_250_000.0)}
    found = Played(
        [(143_251_000.0, 1.0), (143_250_500.5, 1.0)], state, lambda _bar, _view: (), first
    )
    assert found.found is None
    assert found.repriced == 0
    missing = Played([(143_251_000.0, 1.0)], state, lambda _bar, _view: ())
    assert missing.repriced == 1  # before its first close, a position has no price


def test_bars_and_views_that_are_kept_do_not_change() -> None:
    kept: list[tuple[Bar, View]] = []
    seen: list[Any] = []

    def on_bar(bar: Bar, view: View) -> None:
        seen.append((tuple(bar), view.now, view.equity))
        if len(seen) % 3:
            kept.append((bar, view))

    state = PortfolioState(Decimal(5), {"KRW-A": Position("KRW-A", Decimal(2), Decimal(1))})
    ticks = {"KRW-A": Tick("KRW-A", 1.0)}
    Played([(float(1 + at), 3.0) for at in range(20)], state, on_bar, ticks)
    assert len(kept) == 27
    told = [each for number, each in enumerate(seen) if (number + 1) % 3]
    assert [(tuple(bar), view.now, view.equity) for bar, view in kept] == told
    assert all(type(bar) is Bar and type(view) is View for bar, view in kept)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from((1.0, 2.0, 3.0)), st.sampled_from((1.0, 5.0))), max_size=8),
    st.lists(st.integers(0, len(Bar._fields)), min_size=16, max_size=16),
)
def test_a_bar_and_a_number_that_is_kept_does_not_change(
    closes: list[tuple[float, float]], kept: list[int]
) -> None:
    seen: list[tuple[Any, ...]] = []
    held: list[Any] = []

    def on_bar(bar: Bar, _view: View) -> None:
        which = kept[len(seen)]
        held.append(bar if which == len(bar) else bar[which])
        seen.append(tuple(float(str(each)) if type(each) is float else each for each in bar))

    Played([*closes], PortfolioState(Decimal(5)), on_bar)
    assert [row[6] for row in seen] == [price for row in closes for price in row]
    for row, which, each in zip(seen, kept, held, strict=False):
        assert each == (row if which == len(row) else row[which])


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99)), max_size=4), min_size=1),
    st.lists(st.sets(st.sampled_from(NAMES)), min_size=1),
)
def test_the_core_finds_the_opens_of_a_moment_that_are_watched(
    opens: list[list[tuple[int, int]]], watches: list[set[str]]
) -> None:
    calls = core_of([(1.0, 2.0)] * len(opens), {})
    flat = [each for moment in opens for each in moment]
    ends = np.cumsum([len(each) for each in opens])
    numbers, rows = (np.array([each[part] for each in flat], np.int64) for part in (0, 1))
    calls.set_opens(ends, rows, numbers)
    turn = 0
    for moment in opens:
        left = list(moment)
        calls.enter()
        for _ in range(3):  # what is watched changes between two of them
            watched, turn = watches[turn % len(watches)], turn + 1
            while left and NAMES[left[0][0]] not in watched:
                left.pop(0)
            assert calls.next_open(watched) == (left.pop(0)[1] if left else None)
        calls.leave()
    with pytest.raises(IndexError, match="no moment"):
        calls.next_open(set(NAMES))


@pytest.mark.parametrize(
    ("ends", "rows", "numbers", "message"),
    [
        ([1], [5], [0], "different lengths"),
        ([0, 1], [5], [0, 0], "different lengths"),
        ([0, 2], [5], [0], "other bars than open"),
        ([2, 1], [5], [0], "before they begin"),
        ([0, 1], [5], [2], "no such symbol"),
    ],
)
def test_the_core_refuses_opens_that_do_not_fit(
    ends: list[int], rows: list[int], numbers: list[int], message: str
) -> None:
    calls = core_of([(1.0, 2.0)] * 2, {})
    with pytest.raises((ValueError, IndexError), match=message):
        calls.set_opens(*(np.array(each, np.int64) for each in (ends, rows, numbers)))


@pytest.mark.parametrize("bad_call", [1, 2, 3, 4])
def test_counts_clock_and_points_are_written_when_a_call_raises(bad_call: int) -> None:
    calls = []

    def on_bar(bar: Bar, _view: View) -> None:
        calls.append(bar)
        if len(calls) == bad_call:
            raise ValueError(bad_call)

    played: list[Played] = []

    class Watched(Played):
        def __init__(self) -> None:
            played.append(self)
            super().__init__([(1.0, 2.0), (3.0, 4.0)], PortfolioState(Decimal(5)), on_bar)

    with pytest.raises(ValueError, match=str(bad_call)):
        Watched()
    (found,) = played
    assert found.calls == 3 + bad_call
    assert (found.returned, found.errors_in_a_row) == (
        (3 + bad_call - 1, 0) if bad_call > 1 else (3, 2)
    )
    assert found.clock.at == calls[-1].at
    assert len(found.points) == (bad_call - 1) // 2
    assert found.core.left == bad_call % 2
    found.core.write_ticks()
    prices = [found.ticks[name].price for name in NAMES]
    assert prices == ([1.0, 2.0] if bad_call < 3 else [3.0, 4.0])


def test_last_ticks_wait_until_they_are_read_or_dropped() -> None:
    first = Tick("KRW-A", 5.0)
    found = Played([(1.0, 2.0), (3.0, 4.0)], PortfolioState(), lambda *_: None, {"KRW-A": first})
    assert found.ticks == {"KRW-A": first}
    found.core.write_tick("KRW-B")
    found.core.write_tick("KRW-Z")
    assert {name: tick.price for name, tick in found.ticks.items()} == {"KRW-A": 5.0, "KRW-B": 4.0}
    found.core.drop_tick("KRW-A")
    found.core.write_ticks()
    assert found.ticks["KRW-A"] is first
    assert found.ticks["KRW-B"] == Tick("KRW-B", 4.0, 0.25, 4.0, 4.0, FIRST_AT + 120)


def test_a_tick_that_is_applied_replaces_one_that_waits() -> None:
    portfolio = BacktestPortfolio(BacktestClock(), KNOWN)
    closes: list[tuple[float, ...]] = [(1.0, 2.0), (3.0, 4.0)]
    found = Played(closes, PortfolioState(), lambda *_: None, portfolio.ticks)
    portfolio.use_core(found.core)
    portfolio.apply_tick(Tick("KRW-A", 9.0))
    last = [portfolio.last_tick(name) for name in (*NAMES, "KRW-Z")]
    assert [each and each.price for each in last] == [9.0, 4.0, None]


def test_a_play_begins_with_the_last_prices_of_positions_and_ends_with_their_worth() -> None:
    held = {"KRW-B": Position("KRW-B", Decimal(3), Decimal(1))}
    state, ticks = PortfolioState(Decimal(10), held), {"KRW-B": Tick("KRW-B", 1.0)}
    seen: list[Decimal] = []

    def on_bar(_bar: Bar, view: View) -> str:
        seen.append(view.equity)
        return "ends" if len(seen) == 4 else ""

    found = Played([(7.0, 2.5), (7.0, 4.0), (7.0,)], state, on_bar, ticks)
    assert (found.found, ticks["KRW-B"].price) == ("ends", 1.0)
    assert repr(found.core.worth) == repr((Decimal("22.0"), 22.0, 12.0))
    found.core.leave()
    view = View(found.clock.now(), ticks, held, account_of(state), Decimal(0))
    found.core.play(found, on_bar, found.clock, found.reprice, view, math.inf)
    assert seen == [Decimal("17.5")] * 2 + [Decimal("22.0")] * 3


def test_ticks_of_played_bars_are_read_as_a_mapping() -> None:
    reads: list[Any] = []

    def on_bar(_bar: Bar, view: View) -> None:
        ticks = view.ticks
        match len(reads) % 6:
            case 0:
                reads.append(ticks["KRW-A"].price)
            case 1:
                reads.append(ticks.get("KRW-Z", "none"))
            case 2:
                reads.append(list(ticks))
            case 3:
                reads.append((len(ticks), "KRW-B" in ticks, "KRW-Z" in ticks))
            case 4:
                reads.append(copy.deepcopy(ticks))
            case _:
                reads.append((pickle.loads(pickle.dumps(ticks)), repr(ticks)))  # noqa: S301 - ours

    Played([(float(at), 2.0) for at in range(1, 4)], PortfolioState(Decimal(5)), on_bar)
    assert reads[:4] == [1.0, "none", NAMES, (2, True, False)]
    both = {"KRW-A": 3.0, "KRW-B": 2.0}
    assert {name: tick.price for name, tick in reads[4].items()} == both
    assert reads[5] == (reads[4], repr(reads[4]))


def test_the_core_makes_the_bars_and_ticks_of_the_rows() -> None:
    tape = made_tape(5)
    rows, symbols = tape.rows, tape.symbols
    calls = BarCalls(Bar, Tick, symbols, tape.timeframe, {})
    table = np.stack([rows[name] for name in FIELDS], axis=1)
    numbers = rows["symbol"].astype(np.int64)
    calls.begin(np.array([1.0, 2.0]), np.array([0, len(rows)]), numbers, table, [])
    calls.enter()
    assert calls.closes() == calls.bars() == []
    calls.leave()
    calls.enter()
    closes, bars = calls.closes(), calls.bars()
    assert len(bars) == len(closes) == len(rows)
    for row, bar, close in zip(rows[["symbol", *FIELDS]].tolist(), bars, closes, strict=True):
        symbol, at, volume = symbols[row[0]], row[1], row[6] / 4
        assert type(bar) is Bar
        assert bar == (symbol, tape.timeframe, *row[1:])
        assert close == Tick(symbol, bar.close, volume, bar.close, bar.close, at)
    calls.leave()
    assert calls.moment == 2
    with pytest.raises(IndexError, match="no moment"):
        calls.enter()


@pytest.mark.parametrize(
    ("closing", "numbers", "message"),
    [([1], [0], "different lengths"), ([1, 2], [0, 0], "other bars"), ([1, 1], [0, 1], "symbol")],
)
def test_the_core_refuses_columns_that_do_not_fit(
    closing: list[int], numbers: list[int], message: str
) -> None:
    calls = BarCalls(Bar, Tick, ["005930"], Timeframe.M1, {})
    table = np.zeros((len(numbers), len(FIELDS)))
    with pytest.raises((ValueError, IndexError), match=message):
        calls.begin(np.zeros(2), np.array(closing), np.array(numbers), table, [])
