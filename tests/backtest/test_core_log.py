"""The core applies a log of compiled orders as decimals do, to the last digit and place."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Context, Decimal
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qts.backtest.tape as tapes
from qts._native import AppliedLog
from qts.backtest import BacktestConfig, Chunk, compiled_orders, run_backtest
from qts.backtest.compiled_orders import CoreLog
from qts.backtest.compiled_scan import ScanOrders
from qts.backtest.engine import BacktestEngine
from qts.backtest.late_values import Column, LateRows, RowPart
from qts.brokers import FeesConfig
from qts.domain import Tick
from qts.strategies import MovingAverageSwing, NoParams, StepStrategy
from tests.backtest.tapes import BEGIN, SYMBOLS, prices, tape
from tests.backtest.test_compiled_orders import (
    CHANGES,
    TICKS,
    WIDE,
    Busy,
    assert_equal_results,
    changed,
    content,
)

EXACT = Context(prec=80)
MANY_DIGITS = FeesConfig(krx_fee=0.0123456789012345, upbit_fee=0.0123456789012345)
# Values that the scan takes orders with; the others are tested in test_compiled_orders.py.
COMPILED = {
    name: [value for value in values if (name, value) != ("use_stops", True)]
    for name, values in CHANGES.items()
    if not name.startswith(("paper.latency_jitter", "paper.slippage", "paper.volume"))
} | {
    "costs": [
        FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0),
        FeesConfig(krx_fee=0.1, upbit_fee=0.1),
        FeesConfig(krx_fee=0.00140527, krx_sale_tax=0.0023, upbit_fee=0.000139),
        MANY_DIGITS,
    ],
    "cash": [Decimal(70_000), Decimal("600000.5"), Decimal("1E+9"), Decimal("1e9") * 10**10],
}
CONFIGS = st.builds(
    changed,
    st.just(WIDE),
    st.lists(
        st.sampled_from([(name, value) for name, found in COMPILED.items() for value in found]),
        max_size=3,
        unique_by=lambda change: change[0],
    ),
)


@contextmanager
def collected_logs() -> Iterator[list[AppliedLog | None]]:
    """Collect what the core made of each log; None: it left it to Python."""
    applied: list[AppliedLog | None] = []
    original = CoreLog.apply

    def apply(*given: Any) -> Any:
        found = original(*given)
        applied.append(found)
        return found

    with patch.object(CoreLog, "apply", apply):
        yield applied


def account(engine: BacktestEngine) -> dict[str, Any]:
    """Return all that a log changes, as texts: decimals with all their places."""
    manager: Any = engine.manager
    venue = manager._matching.account
    return {
        "cash": repr((engine.portfolio.cash, venue.cash, venue.free_cash)),
        "held": repr(engine.portfolio.positions),
        "owners": repr(sorted(engine.portfolio.owners.items())),
        "lots": repr(sorted(venue.lots.items())),
        "positions": repr(sorted(manager._positions.items())),
        "day": repr((manager._realised, manager._order_times, manager._orders_of)),
        "figures": repr(dict(manager.figures)),
        "fill owners": repr(sorted(manager._fill_owners._owners.items())),
        "open": repr(manager.open.keys()),
        "day ends": repr((engine.day_ends_at, engine.due, engine.clock.at, engine.entry_block())),
        "counts": repr((manager.orders, manager.filled, engine.cuts, engine.runs[0].signals)),
    }


def run(ticks: list[Tick], config: BacktestConfig, rows: float, kind: Any = Busy) -> Any:
    """Return the result and the account after each log; the core takes logs of so many rows."""
    accounts: list[dict[str, Any]] = []
    apply = ScanOrders.apply

    def apply_and_note(orders: ScanOrders, chunk: Chunk) -> None:
        apply(orders, chunk)
        accounts.append(account(orders._engine))

    with (
        patch.object(compiled_orders, "LEAST_ROWS", rows),
        patch.object(ScanOrders, "apply", apply_and_note),
    ):
        strategy = kind.from_params() if kind is Busy else kind()
        result = run_backtest(strategy, tape(ticks), config, way="compiled")
    return content(result), result.digest, accounts


def assert_core_equals_python(
    ticks: list[Tick], config: BacktestConfig, kind: Any = Busy
) -> list[AppliedLog | None]:
    """Run in the core and in Python; return what the core made of each log."""
    with collected_logs() as applied:
        one = run(ticks, config, 1, kind)
    assert one == run(ticks, config, math.inf, kind)
    return applied


def test_the_core_leaves_the_account_that_decimals_leave() -> None:
    applied: list[AppliedLog | None] = []

    @given(ticks=TICKS, config=CONFIGS, chunk=st.sampled_from((7, 100_000)))
    def check(ticks: list[Tick], config: BacktestConfig, chunk: int) -> None:
        with patch.object(tapes, "CHUNK", chunk):
            applied.extend(assert_core_equals_python(ticks, config))

    check()
    logs = [log for log in applied if log is not None]
    assert len(logs) > 100
    assert len(logs) < len(applied)  # some were left to Python
    assert any(log.is_new_day for log in logs)
    assert sum(log.trades for log in logs) > 20


def walk(seed: int, length: int, unit: float, seconds: float) -> list[Tick]:
    """Return prices with few digits, each the closest double to a decimal."""
    rng = random.Random(seed)  # noqa: S311 - a walk, not a secret
    last, found = dict.fromkeys(SYMBOLS, 20_000.0), []
    for number in range(length):
        for symbol in SYMBOLS:
            last[symbol] *= math.exp(rng.gauss(0, 0.01))
            price = round(round(last[symbol] / unit) * unit, 4)
            found.append(Tick(symbol, price, 1.0, 0.0, 0.0, BEGIN + number * seconds))
    return found


@pytest.mark.parametrize("unit", [10.0, 0.5, 0.01, 0.0001])
@pytest.mark.parametrize("costs", COMPILED["costs"], ids=str)
def test_the_core_applies_every_log_of_ordinary_numbers(unit: float, costs: FeesConfig) -> None:
    changes = [("costs", costs), ("sample_s", 60.0)]
    applied = assert_core_equals_python(walk(1, 400, unit, 60.0), changed(WIDE, changes))
    assert applied
    assert all(applied) == (costs is not MANY_DIGITS)


def test_a_log_goes_on_over_several_days() -> None:
    config = changed(WIDE, [("sample_s", 3600.0), ("costs", FeesConfig())])
    kind = partial(MovingAverageSwing.from_params, {"fast": 2, "slow": 6, "margin": 0})
    applied = assert_core_equals_python(walk(2, 6000, 10.0, 60.0), config, kind)
    logs = [log for log in applied if log is not None]
    assert len(logs) == len(applied)
    assert any(log.is_new_day for log in logs)
    assert sum(log.trades for log in logs) > 1000


class Marked(StepStrategy[NoParams], key="marked"):
    """Enters at prices that end with 1 and exits at those that end with 2."""

    state_size = 1

    @staticmethod
    def step(_s: Any, _p: Any, price: float, _v: float, _at: float, position: float) -> int:
        mark = int(price) % 10
        if position > 0:
            return -1 if mark == 2 else 0
        return 1 if mark == 1 else 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("limits.daily_loss", 0.0002), "G_DAILY_LOSS"),
        (("limits.orders_per_day", 2), "G_DAILY_ORDERS"),
    ],
)
def test_orders_and_profits_of_the_day_before_do_not_count(
    change: tuple[str, Any], code: str
) -> None:
    first = [10_001.0, 10_000.0, 11_002.0, 11_000.0]  # gains 50,000 won
    second = [11_000.0, 11_001.0, 11_000.0, 10_502.0, 10_500.0, 10_501.0, 10_500.0]  # loses 23,000
    ticks = prices(first, "KRW-BTC") + prices(second, "KRW-BTC", BEGIN + 86_400)
    config = changed(WIDE, [change])
    logs = assert_core_equals_python(ticks, config, Marked.from_params)
    assert [log.is_new_day for log in logs if log] == [True]
    assert assert_equal_results(Marked, {}, ticks, config) == 4
    assert run_backtest(Marked.from_params(), tape(ticks), config).refusals == {code: 1}


def test_a_few_rows_are_applied_in_python() -> None:
    with collected_logs() as applied:
        run(walk(1, 30, 10.0, 1.0), WIDE, 1_000_000)
    assert applied == []


# ---- rows that something else keeps ----


class Part(RowPart):
    """Rows of one number, whose sum may be known."""

    def __init__(self, numbers: list[Decimal], has_total: bool) -> None:
        self._numbers = numbers
        self._has_total = has_total

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self) -> list[tuple[Any, ...]]:
        return [(number,) for number in self._numbers]

    def total(self, name: str) -> tuple[Decimal, Decimal] | None:
        if not self._has_total or name != "number":
            return None
        found = size = Decimal(0)
        for number in self._numbers:
            found, size = EXACT.add(found, number), EXACT.add(size, EXACT.abs(number))
        return found, size


NUMBERS = st.lists(
    st.builds(
        lambda whole, places: Decimal(whole).scaleb(-places),
        st.integers(-(10**24), 10**24),
        st.integers(0, 12),
    ),
    max_size=6,
)


@given(
    pieces=st.lists(st.tuples(st.sampled_from(("row", "part", "silent", "item")), NUMBERS)),
)
def test_parts_are_counted_and_summed_as_their_items(
    pieces: list[tuple[str, list[Decimal]]],
) -> None:
    column = Column(lambda row: row[0], lambda item: item)
    rows: LateRows[Decimal] = LateRows(lambda number: number, {"number": column})
    expected: list[Decimal] = []
    for kind, numbers in pieces:
        expected += numbers
        if kind in ("part", "silent"):
            rows.add_part(Part(numbers, kind == "part"))
        for number in numbers if kind not in ("part", "silent") else ():
            if kind == "row":
                rows.add_row((number,))
            else:
                rows.append(number)
    one_by_one = sum(expected, Decimal(0))
    for _ in range(2):  # before and after the items are made
        assert len(rows) == len(expected)
        assert repr(rows.total("number")) == repr(one_by_one)
        assert rows.column("number") == expected
        assert rows.floats("number") == [float(number) for number in expected]
        assert list(map(repr, rows)) == list(map(repr, expected))
