"""Reads of the ledger: orders, positions, account state, names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from qts.database import Database, Row
from qts.domain import (
    AccountKey,
    IntentType,
    Market,
    OrderRequest,
    OrderTerms,
    Position,
    RefusedError,
    Side,
    check_name,
    nearest_name,
)
from qts.orders.attempts import ALL
from qts.orders.ledger_values import SQL
from qts.venues import venue_names

WAITING = "WAITING"  # status of a stop order
_ALL_ACCOUNTS = (None, None)
_EPOCH = datetime.fromtimestamp(0, UTC)
_LATEST = timedelta(seconds=5)  # longer than the statement of an order may take


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An intent with its latest attempt and broker order, or a stop order whose status is WAITING.

    The order that a triggered stop order becomes is another row, with another id.
    """

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
    name: str = ""  # of the instrument, as the venue lists it
    trigger: Decimal | None = None  # price that a stop order waits for


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
    name: str = ""  # of the instrument


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
    before: tuple[datetime, UUID] | None = None,
) -> list[OrderRow]:
    """Return the newest orders first, of all accounts without a key.

    `state` filters by attempt state, or is WAITING; `before` is the time and the intent that they
    come before.
    """
    wanted = (state, symbol, only_open, limit, None, *(key or _ALL_ACCOUNTS))
    rows = await database.fetch(SQL.list_orders, *wanted, *(before or (None, None)))
    return [_order(row) for row in rows]


async def order_history(database: Database, intent_id: UUID) -> OrderHistory:
    wanted = (None, None, False, 1, intent_id, *_ALL_ACCOUNTS)
    rows = await database.fetch(SQL.list_orders, *wanted, None, None)
    if not rows:
        raise RefusedError(f"no order {intent_id}; see qts orders list")
    attempts = await database.fetch(SQL.show_attempts, intent_id)
    fills = await database.fetch(SQL.show_fills, intent_id)
    return OrderHistory(
        order=_order(rows[0]),
        attempts=[dict(row.items()) for row in attempts],
        fills=[dict(row.items()) for row in fills],
    )


async def order_terms(database: Database, key: AccountKey, intent_id: UUID) -> OrderTerms | None:
    """Return whose order it is, and what a replacement takes over; None: not of this account."""
    row = await database.fetchrow(SQL.order_terms, intent_id, *key)
    if row is None:
        return None
    request = msgspec.json.decode(row["request"], type=OrderRequest)
    intent_type = IntentType(row["intent_type"])
    return OrderTerms(
        row["strategy_key"], intent_type, request.time_in_force, row["reason"], request.exits
    )


async def list_positions(database: Database, key: AccountKey | None) -> list[PositionRow]:
    """Return the positions of an account, or of all accounts without a key."""
    rows = await database.fetch(SQL.positions, *(key or _ALL_ACCOUNTS))
    return [PositionRow(**dict(row.items())) for row in rows]


class OrderLatency(msgspec.Struct, frozen=True):
    """Time from the tick that a strategy decided on to the request of its order."""

    orders: int
    p50_ms: float
    p99_ms: float
    max_ms: float


async def order_latency(
    database: Database,
    keys: Sequence[AccountKey],
    since: datetime,
    until: datetime | None = None,
) -> OrderLatency | None:
    """Return the latency of the orders of accounts in a period; None without orders."""
    brokers, accounts = [each.broker for each in keys], [each.account for each in keys]
    row = await database.fetchrow(SQL.order_latency, brokers, accounts, since, until)
    spans = row[0] if row else None
    if row is None or not spans:
        return None
    return OrderLatency(row[1], *(round(float(span), 3) for span in spans))


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

    held: Mapping[str, Position]
    pending: tuple[OpenOrder, ...]
    orders_today: int
    orders_last_minute: int
    earned_today: Decimal  # realised, after fees
    suspended: frozenset[str]  # * is the whole venue
    frozen: frozenset[str] = frozenset()
    orders_of: Mapping[str, int] = {}  # the day's orders by strategy
    latest_since: datetime = _EPOCH  # shortly before the state was read
    latest_orders: int = 0  # sent since


async def load_account_state(
    database: Database, key: AccountKey, day: datetime, now: datetime
) -> AccountState:
    """Read the state in one statement; `day` is the start of the trading day."""
    since = now - _LATEST
    (row,) = await database.fetch_idempotent(SQL.account_state, *key, day, now, since)
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
        row["orders_of"],
        since,
        row["latest_orders"],
    )


_MARKETS = {"kis": (Market.KRX,), "upbit": (Market.UPBIT,)}  # the paper broker trades both
_FORMS = {
    Market.KRX: (re.compile(r"[0-9A-Z]{6}|Q[0-9]{6}"), "005930"),
    Market.UPBIT: (re.compile(r"KRW-[0-9A-Z]{1,15}"), "KRW-BTC"),
}


def check_broker(broker: str) -> None:
    check_name("broker", broker, ("paper", *venue_names()))


async def check_symbol(
    database: Database, key: AccountKey, symbol: str, *, or_whole_venue: bool = False
) -> None:
    """Raise RefusedError for a symbol that the broker cannot trade.

    A symbol is valid if it has the form of the broker's market, a venue lists it, or it is in the
    account's ledger.
    """
    if or_whole_venue and symbol == ALL:
        return
    forms = [_FORMS[market] for market in _MARKETS.get(key.broker, tuple(_FORMS))]
    if any(form.fullmatch(symbol) for form, _ in forms):
        return
    if await database.fetchval(SQL.listed_symbol, symbol, key.broker):
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


async def check_instrument(database: Database, symbol: str) -> None:
    """Raise RefusedError for a symbol that no venue lists, where lists are known."""
    if await database.fetchval("SELECT true FROM instrument WHERE symbol = $1 LIMIT 1", symbol):
        return
    rows = await database.fetch("SELECT DISTINCT symbol FROM instrument ORDER BY symbol")
    if rows:
        check_name("symbol", symbol, [row["symbol"] for row in rows])


async def _ledger_symbols(database: Database, key: AccountKey | None = None) -> list[str]:
    rows = await database.fetch(SQL.ledger_symbols, *(key or _ALL_ACCOUNTS))
    return [row["symbol"] for row in rows]
