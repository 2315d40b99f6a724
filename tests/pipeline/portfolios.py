"""A small world for strategies and steps."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from qts.domain import Account, Position, Side, Tick
from qts.strategies import Signal, View

NOW = datetime(2026, 11, 16, 1, 0, tzinfo=UTC)


def tick(symbol: str = "005930", price: float = 10_000.0, at: float | None = None) -> Tick:
    return Tick(symbol, price, 1000.0, price - 10, price + 10, at or NOW.timestamp())


def view(
    *ticks: Tick, held: dict[str, tuple[int, int]] | None = None, cash: str = "10000000"
) -> View:
    positions = {
        symbol: Position(symbol, Decimal(quantity), Decimal(average))
        for symbol, (quantity, average) in (held or {}).items()
    }
    latest = {each.symbol: each for each in ticks or (tick(),)}
    worth = sum(
        (
            Decimal(str(latest[s].price if s in latest else p.average_price)) * p.quantity
            for s, p in positions.items()
        ),
        Decimal(0),
    )
    account = Account(cash=Decimal(cash), holdings=())
    return View(NOW, latest, positions, account, Decimal(cash) + worth)


def signal(**other: Any) -> Signal:
    known: dict[str, Any] = {"symbol": "005930", "side": Side.BUY, "at": NOW.timestamp()}
    return Signal(**{**known, **other})
