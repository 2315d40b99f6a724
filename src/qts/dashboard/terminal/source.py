"""Source of the terminal's figures: the live status of a run, and the orders in the database."""

from __future__ import annotations

from typing import Protocol

import msgspec

from qts.cache import CacheStore
from qts.dashboard.live_status import LiveStatus, read_live
from qts.database import Database
from qts.domain import AccountKey, OperationError
from qts.orders import OrderRow, list_orders
from qts.risk import KillSwitch

MAX_ORDERS = 50


class TerminalSnapshot(msgspec.Struct, frozen=True):
    """Status at one moment; `trouble` says why figures are missing, if they are."""

    live: LiveStatus | None = None
    orders: list[OrderRow] = []
    trouble: str = ""


class StatusSource(Protocol):
    async def read(self) -> TerminalSnapshot: ...

    async def kill(self, actor: str) -> None:
        """Stop trading of the account."""
        ...


class LiveStatusSource:
    """Status of the run of one account."""

    def __init__(
        self, store: CacheStore, database: Database, prefix: str, account: AccountKey
    ) -> None:
        self._account = account
        self._store = store
        self._database = database
        self._prefix = prefix

    async def read(self) -> TerminalSnapshot:
        try:
            live = await read_live(self._store, self._prefix)
            orders = await list_orders(self._database, self._account, limit=MAX_ORDERS)
        except (OperationError, msgspec.DecodeError) as error:
            return TerminalSnapshot(trouble=" ".join(str(error).split()))
        if live is None:
            return TerminalSnapshot(None, orders, "no run found; start one with qts run")
        return TerminalSnapshot(live, orders)

    async def kill(self, actor: str) -> None:
        await KillSwitch(self._database, self._account).set(False, actor, "stopped in qts top")
