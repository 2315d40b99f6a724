"""Source of the terminal's figures: the live status of a run, and the orders in the database."""

from __future__ import annotations

from typing import Protocol

import msgspec

from qts.cache import CacheStore
from qts.dashboard.live_status import LiveReading, LiveStatus, read_text
from qts.dashboard.verdict import Observed, StoredState, Verdict, judge, read_stored
from qts.database import Database
from qts.domain import AccountKey, OperationError, SystemClock
from qts.orders import OrderRow, list_orders
from qts.risk import KillSwitch

MAX_ORDERS = 50


class TerminalSnapshot(msgspec.Struct, frozen=True):
    """Status at one moment; `trouble` says why figures are missing, if they are."""

    live: LiveStatus | None = None
    orders: list[OrderRow] = []
    trouble: str = ""
    verdict: Verdict = Verdict(state="unknown", en="", ko="")


class StatusSource(Protocol):
    async def read(self) -> TerminalSnapshot: ...

    async def kill(self, actor: str) -> None:
        """Stop trading of every account of the run."""
        ...


class LiveStatusSource:
    """Status of the run of these accounts."""

    def __init__(
        self, store: CacheStore, database: Database, prefix: str, *accounts: AccountKey
    ) -> None:
        self._accounts = accounts
        self._store = store
        self._database = database
        self._prefix = prefix
        self._clock = SystemClock()
        self._live = LiveReading(self._clock)

    async def read(self) -> TerminalSnapshot:
        problems: dict[str, str] = {}
        try:
            if (text := await read_text(self._store, self._prefix)) is None:
                self._live = LiveReading(self._clock)
            else:
                self._live.update(text)
        except (OperationError, msgspec.DecodeError, UnicodeError) as error:
            problems["status"] = " ".join(str(error).split())
        orders: list[OrderRow] = []
        stored: StoredState | None = None
        try:
            orders = [
                row
                for key in self._accounts
                for row in await list_orders(self._database, key, limit=MAX_ORDERS)
            ]
            orders = sorted(orders, key=lambda row: row.created_at, reverse=True)[:MAX_ORDERS]
            stored = await read_stored(self._database, *self._accounts)
        except OperationError as error:
            problems["database"] = " ".join(str(error).split())
        live, age_s = self._live.status, self._live.age_s
        seen = Observed(live=live, age_s=age_s, stored=stored, problems=problems)
        trouble = "; ".join(problems.values())
        if seen.run != "reporting" and age_s is not None:
            trouble = f"status is {age_s:.0f} s old"
        return TerminalSnapshot(live, orders, trouble, judge(seen))

    async def kill(self, actor: str) -> None:
        for key in self._accounts:
            await KillSwitch(self._database, key).set(False, actor, "stopped in qts top")
