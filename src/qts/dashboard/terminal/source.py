"""Source of the terminal's figures: the live status of a run, and what the database has of it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from qts.cache import CacheStore
from qts.dashboard.live_status import LiveReading, LiveStatus, Verdict, read_text
from qts.dashboard.run_status import StoredRunStatus
from qts.dashboard.runs import RunsPage, accounts_of_run, load_runs, status_prefix
from qts.dashboard.verdict import Observed, RunState, StoredState, judge, read_stored
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
    run: RunState = "unknown"
    stored: StoredRunStatus | None = None  # in the database, of a run whose live status is not here
    runs: RunsPage | None = None  # all runs on the database; None: not read


class StatusSource(Protocol):
    async def read(self) -> TerminalSnapshot: ...

    async def kill(self, actor: str) -> None:
        """Stop trading of every account of the run."""
        ...

    async def choose(self, account: str) -> None:
        """Show the run of another account, as BROKER:DIGEST, from the next reading on."""
        ...


class LiveStatusSource:
    """Status of the run of these accounts, or of the run that was chosen."""

    def __init__(
        self, store: CacheStore, database: Database, prefix: str, *accounts: AccountKey
    ) -> None:
        self._accounts = accounts
        self._own = accounts
        self._store = store
        self._database = database
        self._own_prefix = self._prefix = prefix
        self._clock = SystemClock()
        self._live = LiveReading(self._clock)

    async def choose(self, account: str) -> None:
        keys = await accounts_of_run(self._database, account)
        self._accounts = tuple(keys)
        self._prefix = status_prefix(self._own_prefix, self._own[0], keys[0])
        self._live = LiveReading(self._clock)

    async def read(self) -> TerminalSnapshot:
        problems: dict[str, str] = {}
        await self._read_live(problems)
        orders: list[OrderRow] = []
        stored: StoredState | None = None
        runs: RunsPage | None = None
        try:
            orders = await self._read_orders()
            stored = await read_stored(self._database, *self._accounts)
            runs = await load_runs(self._database, self._accounts)
        except OperationError as error:
            problems["database"] = " ".join(str(error).split())
        live, age_s = self._live.status, self._live.age_s
        seen = Observed(live=live, age_s=age_s, stored=stored, problems=problems)
        status = stored.status if stored is not None and live is None else None
        trouble = "; ".join(problems.values())
        if seen.run not in ("reporting", "remote") and (age_s := seen.status_age_s) is not None:
            trouble = f"status is {age_s:.0f} s old"
        return TerminalSnapshot(live, orders, trouble, judge(seen), seen.run, status, runs)

    async def _read_live(self, problems: dict[str, str]) -> None:
        try:
            if (text := await read_text(self._store, self._prefix)) is None:
                self._live = LiveReading(self._clock)
            else:
                self._live.update(text)
        except (OperationError, msgspec.DecodeError, UnicodeError) as error:
            problems["status"] = " ".join(str(error).split())

    async def _read_orders(self) -> list[OrderRow]:
        orders = [
            row
            for key in self._accounts
            for row in await list_orders(self._database, key, limit=MAX_ORDERS)
        ]
        return sorted(orders, key=lambda row: row.created_at, reverse=True)[:MAX_ORDERS]

    async def kill(self, actor: str) -> None:
        for key in self._accounts:
            await KillSwitch(self._database, key).set(False, actor, "stopped in qts top")
