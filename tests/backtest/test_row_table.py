"""Tables of rows: filled part by part, sorted in place, computed in windows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.backtest import BarTape, bar_tape, row_table
from qts.backtest.row_table import RowTable, sort_rows, values_before
from qts.backtest.run import hold_bars
from qts.domain import RefusedError, Timeframe
from qts.feed import FileRows
from tests.backtest.bars import MONDAY
from tests.backtest.bars import bar_tape as make_tape

WINDOWS = (1, 3, 7, 1000)
NAMES = ("KRW-BTC", "005930", "000660")
Closes = list[tuple[int, int]]  # symbol and seconds after the start

closes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=1, max_size=60, unique=True
)


@pytest.fixture(autouse=True)
def whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what `in_windows` sets."""
    for module in (row_table, bar_tape):
        monkeypatch.setattr(module, "WINDOW", row_table.WINDOW)
    monkeypatch.setattr(bar_tape, "EVENTS", bar_tape.EVENTS)


def in_windows(size: int) -> None:
    for module in (row_table, bar_tape):
        module.WINDOW = size  # type: ignore[attr-defined]


def part(*rows: tuple[str, float]) -> FileRows:
    symbols = np.array([symbol for symbol, _ in rows], object)
    at = np.array([at for _, at in rows], np.float64)
    return FileRows(Timeframe.M1, symbols, {"at": at, "price": at * 2})


def bars(found: Closes, timeframe: Timeframe) -> BarTape:
    symbols: dict[str, Any] = {}
    for number, after in found:
        price = 100.0 + number + after % 7
        bar = (MONDAY + 20 * after, (price, price + 1, price - 1, price))
        symbols.setdefault(NAMES[number], []).append(bar)
    return make_tape(symbols, timeframe)


def test_symbols_are_numbered_in_order_of_their_names() -> None:
    table = RowTable(("at", "price"))
    table.add(part(("C", 1), ("A", 2), ("C", 3)))
    table.add(part(("B", 4)))
    table.add(part())
    names, rows = table.finish(["Z"])
    assert names == ["A", "B", "C", "Z"]
    assert rows.tolist() == [(2, 1, 2), (0, 2, 4), (2, 3, 6), (1, 4, 8)]


def test_a_finished_table_begins_again() -> None:
    table = RowTable(("at", "price"))
    table.add(part(("B", 1)))
    table.finish()
    table.add(part(("A", 2)))
    assert [each.tolist() if isinstance(each, np.ndarray) else each for each in table.finish()] == [
        ["A"],
        [(0, 2, 4)],
    ]


@settings(deadline=None)
@given(
    values=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=80),
    size=st.sampled_from(WINDOWS),
    keys=st.sampled_from([("at",), ("at", "symbol")]),
)
def test_rows_are_sorted_as_python_sorts_them(
    values: Closes, size: int, keys: tuple[str, ...]
) -> None:
    in_windows(size)
    given_rows = [(symbol, float(at), float(place)) for place, (symbol, at) in enumerate(values)]
    dtype = [("symbol", np.int32), ("at", np.float64), ("place", np.float64)]
    rows = np.array(given_rows, dtype)
    sort_rows(rows, keys)
    columns = [{"symbol": 0, "at": 1}[key] for key in keys]
    expected = sorted(given_rows, key=lambda row: [row[column] for column in columns])
    assert rows.tolist() == expected


def test_the_value_before_is_known_over_windows() -> None:
    latest = np.array([1.0, 2.0])
    symbol = np.array([0, 1, 0], np.int32)
    assert values_before(symbol, np.array([3.0, 4.0, 5.0]), latest).tolist() == [1, 2, 3]
    assert latest.tolist() == [5.0, 4.0]


@settings(deadline=None)
@given(found=closes, size=st.sampled_from(WINDOWS), kind=st.sampled_from(["1m", "15m", "1d"]))
def test_a_bar_opens_its_length_before_its_close_or_at_the_close_before(
    found: Closes, size: int, kind: str
) -> None:
    in_windows(size)
    tape = bars(found, Timeframe(kind))
    lengths = [Timeframe(kind).seconds] * len(NAMES)
    if kind == "1d":
        lengths = [86_400 if name.startswith("KRW") else 23_400 for name in tape.symbols]
    expected, before = [], dict[int, float]()
    for symbol, at, *_ in tape.rows.tolist():
        expected.append(max(at - lengths[symbol], before.get(symbol, 0.0)))
        before[symbol] = at
    assert tape.starts.tolist() == expected
    assert [float(tape.starts[row]) for row in range(len(expected))] == expected
    assert tape.starts.min() == min(expected)


@settings(deadline=None)
@given(found=closes, size=st.sampled_from([1, 2, 5, 1000]), kind=st.sampled_from(["1m", "1d"]))
def test_events_are_in_order_of_time_closes_first(found: Closes, size: int, kind: str) -> None:
    bar_tape.EVENTS = size
    tape = bars(found, Timeframe(kind))
    at, starts = tape.rows["at"].tolist(), tape.starts.tolist()
    expected = sorted(
        [(time, False, row) for row, time in enumerate(at)]
        + [(time, True, row) for row, time in enumerate(starts)]
    )
    parts = [
        list(zip(events.at.tolist(), events.is_open.tolist(), events.row.tolist(), strict=True))
        for events in tape
    ]
    assert [event for part in parts for event in part] == expected
    assert all(len(part) >= size for part in parts[:-1])
    for one, following in pairwise(parts):
        assert one[-1][0] < following[0][0]  # what has one time is played together


@settings(deadline=None)
@given(found=closes, size=st.sampled_from(WINDOWS))
def test_buy_and_hold_is_the_same_in_windows(found: Closes, size: int) -> None:
    in_windows(1000)
    whole = hold_bars(bars(found, Timeframe.M1), 1e6)
    in_windows(size)
    assert hold_bars(bars(found, Timeframe.M1), 1e6) == whole


def test_two_bars_of_one_time_are_refused_also_in_two_windows() -> None:
    in_windows(1)
    first = MONDAY + 60
    double = {"B": [(first, (1.0, 1.0, 1.0, 1.0))] * 2, "A": [(first + 60, (1.0,) * 4)] * 2}
    with pytest.raises(RefusedError, match=f"A has two bars that close at {first + 60:.0f}"):
        make_tape(double, Timeframe.M1)
