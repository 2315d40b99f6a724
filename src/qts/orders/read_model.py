"""What people ask of orders: lists, one order's whole life, positions, holdings taken over.

How we stand at a broker: what is held, what is under way, how the day has been.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from qts.database import Database, Row
from qts.domain import Clock, Fill, RefusedError, Side, SystemClock
from qts.orders.ledger import Ledger
from qts.orders.queries import SQL
from qts.outbox import EventBus, uuid7


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An intent with its latest attempt and the order it became."""

    intent_id: UUID
    created_at: datetime
    strategy_key: str
    intent_type: str
    broker: str
    symbol: str
    side: str
    order_type: str
    quantity: Decimal
    price: Decimal | None
    status: str
    reason_code: str
    attempt_id: UUID | None
    attempt_no: int | None
    attempt_state: str | None
    error: str | None
    needs_person: bool
    broker_order_id: str | None
    order_state: str | None
    filled: Decimal


class PositionRow(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    symbol: str
    quantity: Decimal
    average_price: Decimal
    realised_pnl: Decimal
    fees: Decimal
    opened_at: datetime | None
    updated_at: datetime


class OrderHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one order."""

    order: OrderRow
    attempts: list[dict[str, Any]]
    fills: list[dict[str, Any]]


async def list_orders(
    database: Database,
    *,
    state: str | None = None,
    symbol: str | None = None,
    only_open: bool = False,
    limit: int = 50,
) -> list[OrderRow]:
    """The youngest first; `state` is of the attempt."""
    rows = await database.fetch(SQL.list_orders, state, symbol, only_open, limit, None)
    return [_order(row) for row in rows]


async def order_history(database: Database, intent_id: UUID) -> OrderHistory:
    rows = await database.fetch(SQL.list_orders, None, None, False, 1, intent_id)
    if not rows:
        raise RefusedError(f"no order {intent_id} is known here; see qts orders list")
    attempts = await database.fetch(SQL.show_attempts, intent_id)
    fills = await database.fetch(SQL.show_fills, intent_id)
    return OrderHistory(
        order=_order(rows[0]),
        attempts=[dict(row.items()) for row in attempts],
        fills=[dict(row.items()) for row in fills],
    )


async def list_positions(database: Database, broker: str | None = None) -> list[PositionRow]:
    rows = await database.fetch(SQL.positions, broker)
    return [PositionRow(**dict(row.items())) for row in rows]


async def adopt_holding(
    database: Database, bus: EventBus, broker: str, holding: Fill, clock: Clock | None = None
) -> None:
    """Take a holding that others bought, or the loss of one, into our position.

    `holding` says how much and at what price; its ids are made here.
    """
    name = f"external-{uuid7()}"
    at = (clock or SystemClock()).now()
    entry = msgspec.structs.replace(holding, trade_id=name, order_id=name, at=at)
    ledger = Ledger(database, bus, broker)
    async with database.transaction() as tx:
        await tx.execute(
            SQL.external_order, broker, name, entry.symbol, entry.side, entry.quantity, at
        )
        changes = await ledger.apply_fill(tx, entry)
        if not any(getattr(change, "counted", False) for change in changes):
            raise RefusedError(f"that would leave less than nothing of {entry.symbol}")


def external_fill(symbol: str, quantity: Decimal, price: Decimal) -> Fill:
    """A change of a holding, as `adopt` takes it; a negative quantity takes away."""
    if not quantity.is_finite() or not quantity or not price.is_finite() or price <= 0:
        raise RefusedError(f"{quantity} of {symbol} at {price}: a quantity and a price are needed")
    return Fill(
        trade_id="",
        broker_order_id="",
        symbol=symbol,
        side=Side.BUY if quantity > 0 else Side.SELL,
        quantity=abs(quantity),
        price=price,
        fee=Decimal(0),
        at=SystemClock().now(),
    )


def _order(row: Row) -> OrderRow:
    return OrderRow(**dict(row.items()))


class Held(msgspec.Struct, frozen=True):
    quantity: Decimal  # signed
    average_price: Decimal


class OpenOrder(msgspec.Struct, frozen=True):
    """An order under way; `price` is its limit, if it has one."""

    symbol: str
    side: Side
    remaining: Decimal
    price: Decimal | None
    unknown: bool


class AccountState(msgspec.Struct, frozen=True):
    held: dict[str, Held]
    pending: tuple[OpenOrder, ...]
    orders_today: int
    orders_last_minute: int
    earned_today: Decimal  # realised, after fees
    suspended: frozenset[str]  # * is the whole venue
    frozen: frozenset[str] = frozenset()


async def load_account_state(
    database: Database, broker: str, day: datetime, now: datetime
) -> AccountState:
    """All of one moment. `day` is when the trading day began."""
    (row,) = await database.fetch_idempotent(SQL.account_state, broker, day, now)
    return AccountState(
        {symbol: Held(Decimal(has), Decimal(average)) for symbol, has, average in row["held"]},
        tuple(
            OpenOrder(symbol, Side(side), Decimal(left), Decimal(price) if price else None, unknown)
            for symbol, side, left, price, unknown in row["pending"]
        ),
        row["orders_today"],
        row["orders_last_minute"],
        row["earned"],
        frozenset(row["suspended"]),
        frozenset(row["frozen"]),
    )
