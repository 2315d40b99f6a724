"""Status of a run in the database: a row an account, written once a second by the lease's holder.

A run that lost its account to another one writes nothing: the row has the epoch of the account, or
of an earlier holder. Its age is measured on the clock of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from qts.dashboard.live_status import AccountStatus, LiveStatus, RunLabel, Verdict
from qts.database import Database, Row
from qts.domain import AccountKey

MAX_AGE_S = 5.0  # above this age a row is old: the views grey it and say its age
CURRENCY = "KRW"  # every venue trades in it

# Lost with the server it costs nothing, so that the commit need not wait for its disk or a replica.
_WRITE = """
WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO run_status (broker, account, epoch, status)
SELECT a.broker, a.account, a.epoch, $4
  FROM account a, lazily
 WHERE a.broker = $1 AND a.account = $2 AND a.epoch = $3
ON CONFLICT (broker, account) DO UPDATE
   SET epoch = excluded.epoch, status = excluded.status, written_at = clock_timestamp()
"""
_READ = """
SELECT s.status, s.epoch = a.epoch AS is_holders,
       extract(epoch FROM clock_timestamp() - s.written_at)::float8 AS age_s
  FROM run_status s JOIN account a USING (broker, account)
 WHERE s.broker = $1 AND s.account = $2
"""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a run stores of one of its accounts."""

    name: str  # of the run
    accounts: list[str]  # of the run, as BROKER:DIGEST
    venue: str
    label: RunLabel
    version: str
    started_at: datetime
    trades: str  # description of what is traded
    verdict: Verdict  # of the whole run
    positions: int
    currency: str = CURRENCY
    money: AccountStatus | None = None  # None: not loaded yet


class StoredRunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Row of an account, and how old it was when it was read."""

    account: str
    status: RunStatus
    age_s: float
    is_holders: bool  # no other run has held the account since

    @property
    def is_current(self) -> bool:
        return self.is_holders and self.age_s <= MAX_AGE_S


class RunStatusWriter:
    """Writer of the rows of one run; each account has the epoch of its lease."""

    def __init__(
        self,
        database: Database,
        name: str,
        accounts: Sequence[tuple[AccountKey, Callable[[], int]]],
    ) -> None:
        self._database = database
        self._name = name
        self._accounts = accounts

    async def write(self, live: LiveStatus, verdict: Verdict) -> None:
        """Write a row for each account; an account that another run holds keeps its own."""
        for (key, epoch), venue in zip(self._accounts, live.venues, strict=True):
            status = RunStatus(
                name=self._name,
                accounts=[str(each) for each, _ in self._accounts],
                venue=venue.venue,
                label=live.label,
                version=live.version,
                started_at=live.started_at,
                trades=live.trades,
                verdict=verdict,
                positions=sum(each.venue == venue.venue for each in live.positions),
                money=venue.money if venue.money.equity else None,
            )
            await self._database.execute(_WRITE, *key, epoch(), status)


async def load_run_status(database: Database, key: AccountKey) -> StoredRunStatus | None:
    """Return the row of an account; None: there is none that this version can read."""
    row = await database.fetchrow(_READ, *key)
    status = None if row is None else decode_status(row["status"])
    if row is None or status is None:
        return None
    return StoredRunStatus(
        account=str(key), status=status, age_s=age_of(row) or 0.0, is_holders=row["is_holders"]
    )


def decode_status(value: Any) -> RunStatus | None:
    """Return a stored status; None: there is none, or one of another version."""
    try:
        return None if value is None else msgspec.convert(value, RunStatus)
    except msgspec.ValidationError:
        return None


def age_of(row: Row) -> float | None:
    """Return the age of a row, at least 0 where the clock of the server was set back."""
    return None if row["age_s"] is None else max(0.0, row["age_s"])
