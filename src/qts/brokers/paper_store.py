"""Paper accounts in PostgreSQL. Opening an account fences out every earlier opener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from asyncpg import UniqueViolationError

from qts.brokers.paper_account import Lot, account_of
from qts.brokers.paper_matching import PaperOrder
from qts.database import Connection, Database, Row
from qts.domain import (
    Account,
    BrokerOrder,
    Fill,
    OrderRequest,
    OrderState,
    OrderType,
    Side,
    UnreachableError,
)
from qts.venues import VenueRejectedError

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
    """Orders, fills and balance of one paper account; every write checks the opener's epoch."""

    def __init__(self, database: Database, account: str, epoch: int) -> None:
        self._database = database
        self._account = account
        self._epoch = epoch

    @classmethod
    async def claim(
        cls, database: Database, account: str, cash: Decimal, at: datetime
    ) -> PaperStore:
        async with database.transaction() as tx:
            epoch = await tx.fetchval(_CLAIM, account, at)
            await tx.execute(_CASH, account, cash)
        return cls(database, account, epoch)

    # -- writes

    async def insert(self, order: PaperOrder, placed_at: datetime) -> None:
        request = order.request
        try:
            async with self._fenced() as tx:
                await tx.execute(
                    _ORDER, order.broker_order_id, self._account, request.client_order_id,
                    request.symbol, request.side, request.type, request.quantity,
                    request.price, placed_at,
                )  # fmt: skip
        except UniqueViolationError:
            raise VenueRejectedError(
                f"client order id {request.client_order_id} was used before", "identifier_used"
            ) from None

    async def write(self, changes: Sequence[Fill | PaperCancel]) -> list[BrokerOrder]:
        """Apply the changes, each at most once however often written; return the orders touched."""
        async with self._fenced() as tx:
            for change in changes:
                if isinstance(change, PaperCancel):
                    await tx.execute(_CANCEL, change.broker_order_id)
                else:
                    await tx.execute(
                        _FILL, change.trade_id, change.broker_order_id, self._account,
                        change.symbol, change.side, change.quantity, change.price,
                        change.fee, change.at,
                    )  # fmt: skip
            touched = list({change.broker_order_id for change in changes})
            rows = await tx.fetch("SELECT * FROM paper_order WHERE order_id = ANY($1)", touched)
        return [order_of(row) for row in rows]

    @asynccontextmanager
    async def _fenced(self) -> AsyncIterator[Connection]:
        async with self._database.transaction() as tx:
            if await tx.fetchval(_FENCE, self._account, self._epoch) is None:
                raise FencedOutError(
                    f"the paper account {self._account} was opened by another process"
                )
            yield tx

    # -- reads

    async def open_orders(self) -> list[tuple[PaperOrder, Decimal, int]]:
        """Return the open orders, each with its filled quantity and number of fills."""
        rows = await self._database.fetch(_OPEN, self._account)
        return [
            (PaperOrder(row["order_id"], request_of(row), 0), row["filled"], row["fills"])
            for row in rows
        ]

    async def lots(self) -> tuple[Decimal, dict[str, Lot]]:
        """Return the cash and the lots of every symbol."""
        rows = await self._database.fetch(
            "SELECT symbol, quantity, cost FROM paper_account WHERE book = $1", self._account
        )
        lots = {row["symbol"]: Lot(row["quantity"], row["cost"]) for row in rows}
        cash = lots.pop("KRW").quantity
        return cash, {symbol: lot for symbol, lot in lots.items() if lot.quantity}

    async def account(self) -> Account:
        return account_of(*await self.lots())

    async def by_client_order_id(self, client_order_id: str) -> list[BrokerOrder]:
        return await self._orders("identifier = $2", client_order_id)

    async def orders(self, since: datetime) -> list[BrokerOrder]:
        return await self._orders("(state = 'OPEN' OR placed_at >= $2)", since)

    async def _orders(self, condition: str, value: object) -> list[BrokerOrder]:
        query = f"SELECT * FROM paper_order WHERE book = $1 AND {condition} ORDER BY placed_at"  # noqa: S608 - two fixed conditions
        return [order_of(row) for row in await self._database.fetch(query, self._account, value)]

    async def fills(self, since: datetime) -> list[Fill]:
        rows = await self._database.fetch(
            "SELECT * FROM paper_fill WHERE book = $1 AND at >= $2 ORDER BY number",
            self._account,
            since,
        )
        return [fill_of(row) for row in rows]


class FencedOutError(UnreachableError):
    """Write refused: a later process has opened the account. Nothing was written."""


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
    return BrokerOrder.of(
        request_of(row), row["order_id"], row["placed_at"], row["filled"], OrderState(row["state"])
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
