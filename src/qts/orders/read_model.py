"""Reads of the ledger: orders, positions, account state, names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, get_args, get_type_hints
from uuid import UUID

import msgspec

from qts.brokers import BrokersConfig
from qts.database import Database, Row
from qts.domain import (
    AccountKey,
    Market,
    Position,
    RefusedError,
    Side,
    check_name,
    nearest_name,
)
from qts.orders.queries import SQL
from qts.orders.suspensions import ALL

_ALL_ACCOUNTS = (None, None)


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An intent with its latest attempt and broker order."""

    intent_id: UUID
    created_at: datetime
    strategy_key: str
    intent_type: str
    broker: str
    account: str
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
    good_until: datetime | None  # then what is left is cancelled


class PositionRow(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    account: str
    symbol: str
    quantity: Decimal
    average_price: Decimal
    realised_pnl: Decimal
    fees: Decimal
    opened_at: datetime | None
    updated_at: datetime


class OrderHistory(msgspec.Struct, frozen=True, kw_only=True):
    """An order with its attempts and fills."""

    order: OrderRow
    attempts: list[dict[str, Any]]
    fills: list[dict[str, Any]]


async def list_orders(
    database: Database,
    key: AccountKey | None,
    *,
    state: str | None = None,
    symbol: str | None = None,
    only_open: bool = False,
    limit: int = 50,
) -> list[OrderRow]:
    """Return the newest orders first, of all accounts without a key.

    `state` filters by attempt state.
    """
    rows = await database.fetch(
        SQL.list_orders, state, symbol, only_open, limit, None, *(key or _ALL_ACCOUNTS)
    )
    return [_order(row) for row in rows]


async def order_history(database: Database, intent_id: UUID) -> OrderHistory:
    rows = await database.fetch(SQL.list_orders, None, None, False, 1, intent_id, *_ALL_ACCOUNTS)
    if not rows:
        raise RefusedError(f"no order {intent_id}; see qts orders list")
    attempts = await database.fetch(SQL.show_attempts, intent_id)
    fills = await database.fetch(SQL.show_fills, intent_id)
    return OrderHistory(
        order=_order(rows[0]),
        attempts=[dict(row.items()) for row in attempts],
        fills=[dict(row.items()) for row in fills],
    )


async def list_positions(database: Database, key: AccountKey | None) -> list[PositionRow]:
    """Return the positions of an account, or of all accounts without a key."""
    rows = await database.fetch(SQL.positions, *(key or _ALL_ACCOUNTS))
    return [PositionRow(**dict(row.items())) for row in rows]


async def symbols_on_order(database: Database, key: AccountKey) -> list[str]:
    """Return the symbols of orders that may still be filled, ours and others'."""
    return [row["symbol"] for row in await database.fetch(SQL.symbols_on_order, *key)]


async def half_sold_symbols(database: Database, key: AccountKey) -> frozenset[str]:
    """Return the open positions of which a stop has sold, or is selling, a part."""
    return frozenset(row["symbol"] for row in await database.fetch(SQL.half_sold, *key))


def _order(row: Row) -> OrderRow:
    return OrderRow(**dict(row.items()))


class OpenOrder(msgspec.Struct, frozen=True):
    """A pending order; `price` is its limit, if it has one."""

    symbol: str
    side: Side
    remaining: Decimal
    price: Decimal | None
    unknown: bool


class AccountState(msgspec.Struct, frozen=True):
    """Positions, pending orders and the day's counts of an account, read at one moment."""

    held: dict[str, Position]
    pending: tuple[OpenOrder, ...]
    orders_today: int
    orders_last_minute: int
    earned_today: Decimal  # realised, after fees
    suspended: frozenset[str]  # * is the whole venue
    frozen: frozenset[str] = frozenset()


async def load_account_state(
    database: Database, key: AccountKey, day: datetime, now: datetime
) -> AccountState:
    """Read the state in one statement; `day` is the start of the trading day."""
    (row,) = await database.fetch_idempotent(SQL.account_state, *key, day, now)
    return AccountState(
        {
            symbol: Position(symbol, Decimal(quantity), Decimal(average))
            for symbol, quantity, average in row["held"]
        },
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


BROKERS: tuple[str, ...] = get_args(get_type_hints(BrokersConfig)["broker"])
_MARKETS = {"kis": (Market.KRX,), "upbit": (Market.UPBIT,)}  # the paper broker trades both
_FORMS = {
    Market.KRX: (re.compile(r"[0-9A-Z]{6}|Q[0-9]{6}"), "005930"),
    Market.UPBIT: (re.compile(r"KRW-[0-9A-Z]{1,15}"), "KRW-BTC"),
}


def check_broker(broker: str) -> None:
    check_name("broker", broker, BROKERS)


async def check_symbol(
    database: Database, key: AccountKey, symbol: str, *, or_whole_venue: bool = False
) -> None:
    """Raise RefusedError for a symbol that the broker cannot trade.

    A symbol is valid if it has the form of the broker's market or is in the account's ledger.
    """
    if or_whole_venue and symbol == ALL:
        return
    forms = [_FORMS[market] for market in _MARKETS.get(key.broker, tuple(Market))]
    if any(form.fullmatch(symbol) for form, _ in forms):
        return
    known = await _ledger_symbols(database, key)
    if symbol in known:
        return
    near = nearest_name(symbol, known)
    raise RefusedError(
        f"symbol {symbol!r} is unknown at {key.broker}; expected one as in"
        f" {' or '.join(example for _, example in forms)}"
        + (f"; did you mean {near}?" if near else "")
    )


async def check_ledger_symbol(
    database: Database, symbol: str, listed: Callable[[], Iterable[str]]
) -> None:
    """Raise RefusedError for a symbol that is neither in the ledger nor among those `listed`."""
    known = await _ledger_symbols(database)
    if symbol not in known:
        check_name("symbol", symbol, dict.fromkeys((*known, *listed())))


async def _ledger_symbols(database: Database, key: AccountKey | None = None) -> list[str]:
    rows = await database.fetch(SQL.ledger_symbols, *(key or _ALL_ACCOUNTS))
    return [row["symbol"] for row in rows]
