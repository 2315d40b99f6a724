"""Rows of the ledger as values."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from qts.database import Row
from qts.domain import Fill, Side
from qts.orders.position import ZERO, PositionState


class LedgerOrder(msgspec.Struct, frozen=True):
    """The row of an order after an update."""

    attempt_id: UUID | None
    origin: str
    symbol: str
    side: str
    quantity: Decimal | None
    filled: Decimal
    applied: Decimal
    state: str


TradeKey = tuple[datetime, str]
_KNOWN = (
    "order_attempt_id",
    "origin",
    "symbol",
    "side",
    "quantity",
    "filled",
    "applied",
    "state",
)


def known_order(row: Row | None) -> LedgerOrder:
    if row is None:
        raise AssertionError("an upsert returns its row")
    return LedgerOrder(*(row[name] for name in _KNOWN))


def trade_key(fill: Fill) -> TradeKey:
    return fill.at, fill.trade_id


def last_trade_key(at: datetime | None, trade_id: str | None) -> TradeKey | None:
    return None if at is None or trade_id is None else (at, trade_id)


def applicable_fills(waiting: list[Fill], row: Row) -> list[Fill]:
    """Return the fills that keep a long-only position at zero or above; the newest sells wait."""
    if row["allows_short"]:
        return waiting
    left = row["quantity"] + sum((fill.quantity * fill.side.sign for fill in waiting), ZERO)
    applicable = list(waiting)
    for fill in reversed(waiting):
        if left >= 0:
            break
        if fill.side is Side.SELL:
            applicable.remove(fill)
            left += fill.quantity
    return applicable


def position_state(row: Row) -> PositionState:
    return PositionState(
        quantity=row["quantity"],
        average_price=row["average_price"],
        realised_pnl=row["realised_pnl"],
        fees=row["fees"],
        opened_at=row["opened_at"],
    )


def fill_of(row: Row) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["broker_order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=row["quantity"],
        price=row["price"],
        fee=row["fee"],
        at=row["traded_at"],
    )
