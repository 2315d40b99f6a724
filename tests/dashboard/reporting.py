"""Runs on one database that hold their accounts and store their status, as `qts run` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import Any

from qts.brokers import AccountLease
from qts.dashboard.live_status import AccountStatus, SafetyStatus, VenueStatus
from qts.dashboard.runs import RunStatusWriter
from qts.dashboard.verdict import Observed, judge
from qts.database import Database
from qts.domain import AccountKey, SystemClock
from tests.dashboard import statuses

SAFE = SafetyStatus(
    state="NORMAL", code=None, message="", trading=True, suspended="", may_trade=True
)


def money(equity: int, realised: int = 0, unrealised: int = 0) -> AccountStatus:
    return AccountStatus(
        cash=Decimal(equity), equity=Decimal(equity), realised_today=Decimal(realised),
        unrealised=Decimal(unrealised), orders_today=1,
    )  # fmt: skip


class ReportingRun:
    """A run of some accounts; `write` stores its status."""

    def __init__(self, database: Database, name: str, leases: list[AccountLease]) -> None:
        self.leases = leases
        self._writer = RunStatusWriter(
            database, name, [(each.key, partial(getattr, each, "epoch")) for each in leases]
        )

    async def write(self, *figures: AccountStatus, **more: Any) -> None:
        venues = [
            VenueStatus(
                venue=lease.key.broker, broker=lease.key.broker, account=lease.key.account,
                ticks=1, feed=statuses.feed(), money=each, safety=SAFE,
            )
            for lease, each in zip(self.leases, figures, strict=True)
        ]  # fmt: skip
        live = statuses.live(venues=venues, **more)
        await self._writer.write(live, judge(Observed(live=live, age_s=0.0)))


@asynccontextmanager
async def reporting_run(
    database: Database, name: str, *keys: AccountKey
) -> AsyncIterator[ReportingRun]:
    leases = [
        AccountLease(database, key, f"/home/{name}", SystemClock(), is_live=False) for key in keys
    ]
    try:
        for lease in leases:
            await lease.acquire()
        yield ReportingRun(database, name, leases)
    finally:
        for lease in leases:
            await lease.release()


async def make_older(database: Database, key: AccountKey, seconds: float) -> None:
    """Let the stored status of an account be as old as if its run had hung."""
    await database.execute(
        "UPDATE run_status SET written_at = written_at - make_interval(secs => $3)"
        " WHERE broker = $1 AND account = $2",
        *key,
        seconds,
    )
