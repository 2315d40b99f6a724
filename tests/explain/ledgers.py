"""Ledgers for tests: orders by hand, and those of two backtests as a run and its backtest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from qts.backtest import BacktestConfig, default_instruments, run_backtest
from qts.brokers import FeesConfig
from qts.domain import Fill, Side, Tick
from qts.explain import DayLedger, DayOrder, Item, attribute
from qts.explain.attribution import earned, last_prices, needed_moments
from qts.explain.replayed import Prices, _orders, read_prices
from qts.pipeline import SignalOutcome
from qts.strategies import Strategy
from tests.backtest.tapes import BEGIN, tape

D = Decimal
SYMBOL = "005930"


def fill(
    side: Side, quantity: Decimal, price: Decimal, at: float, fee: Decimal, symbol: str = SYMBOL
) -> Fill:
    return Fill(
        trade_id="t",
        broker_order_id="b",
        symbol=symbol,
        side=side,
        quantity=quantity,
        price=price,
        fee=fee,
        at=datetime.fromtimestamp(at, UTC),
    )


def order(side: Side, quantity: int, *fills: Fill, at: float = BEGIN, **more: Any) -> DayOrder:
    values: dict[str, Any] = {
        "strategy": "s",
        "symbol": SYMBOL,
        "side": side,
        "decided_at": at,
        "reached_at": at,
        "quantity": D(quantity),
        "fills": fills,
    }
    return DayOrder(**(values | more))


def backtest_ledger(strategy: Strategy[Any], ticks: Sequence[Tick], **settings: Any) -> DayLedger:
    """Return the orders of a backtest, as `qts explain` reads them."""
    outcomes: list[SignalOutcome] = []
    settings = {"use_stops": False, **settings}
    result = run_backtest(
        strategy,
        tape(ticks),
        BacktestConfig(**settings),
        on_signal=outcomes.append,
        way="generic",
    )
    refused = [each for each in outcomes if each.reason]
    return DayLedger(orders=_orders(result, outcomes), refused=refused)


def explained(
    live: DayLedger, backtest: DayLedger, ticks: Sequence[Tick], costs: FeesConfig | None = None
) -> dict[str, Decimal]:
    """Return the won of each part that is not 0, after a check that they add up."""
    prices = read_prices(tape(ticks), needed_moments((live, backtest)))
    items = items_of(live, backtest, prices, costs or FeesConfig())
    found: defaultdict[str, Decimal] = defaultdict(Decimal)
    for item in items:
        found[item.part] += item.won
    last = last_prices((live, backtest), prices)
    assert sum(found.values()) == earned(live, last) - earned(backtest, last)
    return {part: won for part, won in found.items() if won}


def items_of(
    live: DayLedger, backtest: DayLedger, prices: dict[str, Prices], costs: FeesConfig
) -> list[Item]:
    instruments = default_instruments()

    def charge(symbol: str, side: Side, amount: Decimal) -> Decimal:
        return costs.charge(instruments[symbol], side, amount)

    return attribute(live, backtest, prices, charge, 5.0)
