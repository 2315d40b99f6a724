"""The paper venue's books in PostgreSQL: who opens a book shuts out whoever had it before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec
from asyncpg import UniqueViolationError

from qts.brokers.paper_account import Lot
from qts.brokers.paper_matching import PaperOrder
from qts.database import Connection, Database, Row
from qts.domain import (
    Account,
    BrokerOrder,
    Fill,
    Holding,
    OrderRequest,
    OrderState,
    OrderType,
    Side,
    UnreachableError,
)
from qts.venues import VenueRejectedError

_AVERAGE = Decimal("0.00000001")

_CLAIM = """
    INSERT INTO paper_book (name, epoch, opened_at) VALUES ($1, 1, $2)
    ON CONFLICT (name) DO UPDATE SET epoch = paper_book.epoch + 1, opened_at = $2
    RETURNING epoch
"""
_FENCE = "SELECT 1 FROM paper_book WHERE name = $1 AND epoch = $2 FOR SHARE"
_CASH = """
    INSERT INTO paper_account (book, symbol, quantity, cost) VALUES ($1, 'KRW', $2, $2)
    ON CONFLICT DO NOTHING
"""
_ORDER = """
    INSERT INTO paper_order
        (order_id, book, identifier, symbol, side, type, quantity, price, placed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_FILL = """
    INSERT INTO paper_fill (trade_id, order_id, book, symbol, side, quantity, price, fee, at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (trade_id) DO NOTHING
"""
_CANCEL = "UPDATE paper_order SET state = 'CANCELLED' WHERE order_id = $1 AND state = 'OPEN'"
_OPEN = """
    SELECT o.*, (SELECT count(*) FROM paper_fill f WHERE f.order_id = o.order_id) AS fills
    FROM paper_order o WHERE book = $1 AND state = 'OPEN' ORDER BY placed_at, order_id
"""


class PaperCancel(NamedTuple):
    broker_order_id: str


class PaperStore:
    """One book; every change is fenced by the number of its opening."""

    def __init__(self, database: Database, book: str, epoch: int) -> None:
        self._database = database
        self._book = book
        self._epoch = epoch

    @classmethod
    async def claim(cls, database: Database, book: str, cash: Decimal, at: datetime) -> PaperStore:
        async with database.transaction() as tx:
            epoch = await tx.fetchval(_CLAIM, book, at)
            await tx.execute(_CASH, book, cash)
        return cls(database, book, epoch)

    # -- changes

    async def insert(self, order: PaperOrder, placed_at: datetime) -> None:
        request = order.request
        try:
            async with self._fenced() as tx:
                await tx.execute(
                    _ORDER, order.order_id, self._book, request.client_order_id, request.symbol,
                    request.side, request.type, request.quantity, request.price, placed_at,
                )  # fmt: skip
        except UniqueViolationError:
            raise VenueRejectedError(
                f"identifier {request.client_order_id} was used before", "identifier_used"
            ) from None

    async def write(self, changes: Sequence[Fill | PaperCancel]) -> list[BrokerOrder]:
        """All of them, each once however often it is written; the orders as they are then."""
        async with self._fenced() as tx:
            for change in changes:
                if isinstance(change, PaperCancel):
                    await tx.execute(_CANCEL, change.broker_order_id)
                else:
                    await tx.execute(
                        _FILL, change.trade_id, change.broker_order_id, self._book, change.symbol,
                        change.side, change.quantity, change.price, change.fee, change.at,
                    )  # fmt: skip
            touched = list({change.broker_order_id for change in changes})
            rows = await tx.fetch("SELECT * FROM paper_order WHERE order_id = ANY($1)", touched)
        return [order_of(row) for row in rows]

    @asynccontextmanager
    async def _fenced(self) -> AsyncIterator[Connection]:
        async with self._database.transaction() as tx:
            if await tx.fetchval(_FENCE, self._book, self._epoch) is None:
                raise FencedOutError(f"the paper book {self._book} was opened by another process")
            yield tx

    # -- looking

    async def open_orders(self) -> list[tuple[PaperOrder, Decimal, int]]:
        """As the engine takes them back: the order, what was filled, in how many fills."""
        rows = await self._database.fetch(_OPEN, self._book)
        return [
            (PaperOrder(row["order_id"], request_of(row), 0), row["filled"], row["fills"])
            for row in rows
        ]

    async def lots(self) -> tuple[Decimal, dict[str, Lot]]:
        """Cash, and what is held."""
        rows = await self._database.fetch(
            "SELECT symbol, quantity, cost FROM paper_account WHERE book = $1", self._book
        )
        lots = {row["symbol"]: Lot(row["quantity"], row["cost"]) for row in rows}
        cash = lots.pop("KRW").quantity
        return cash, {symbol: lot for symbol, lot in lots.items() if lot.quantity}

    async def account(self) -> Account:
        cash, lots = await self.lots()
        return Account(
            cash=cash,
            holdings=tuple(
                Holding(
                    symbol=symbol,
                    quantity=lot.quantity,
                    average_price=(lot.cost / lot.quantity).quantize(_AVERAGE),
                )
                for symbol, lot in sorted(lots.items())
            ),
        )

    async def by_identifier(self, identifier: str) -> list[BrokerOrder]:
        return await self._orders("identifier = $2", identifier)

    async def orders(self, since: datetime) -> list[BrokerOrder]:
        return await self._orders("(state = 'OPEN' OR placed_at >= $2)", since)

    async def _orders(self, condition: str, value: object) -> list[BrokerOrder]:
        query = f"SELECT * FROM paper_order WHERE book = $1 AND {condition} ORDER BY placed_at"  # noqa: S608 - two fixed conditions
        return [order_of(row) for row in await self._database.fetch(query, self._book, value)]

    async def fills(self, since: datetime) -> list[Fill]:
        rows = await self._database.fetch(
            "SELECT * FROM paper_fill WHERE book = $1 AND at >= $2 ORDER BY number",
            self._book,
            since,
        )
        return [fill_of(row) for row in rows]


class FencedOutError(UnreachableError):
    """Nothing was written: the book belongs to a later opening."""


def request_of(row: Row) -> OrderRequest:
    return OrderRequest(
        client_order_id=row["identifier"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        type=OrderType(row["type"]),
        quantity=row["quantity"],
        price=row["price"],
    )


def order_of(row: Row) -> BrokerOrder:
    request = request_of(row)
    return BrokerOrder(
        broker_order_id=row["order_id"],
        filled=row["filled"],
        state=OrderState(row["state"]),
        placed_at=row["placed_at"],
        **msgspec.structs.asdict(request),
    )


def fill_of(row: Row) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=row["quantity"],
        price=row["price"],
        fee=row["fee"],
        at=row["at"],
    )
