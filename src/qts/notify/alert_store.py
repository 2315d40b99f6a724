"""Alerts in the database: what a run raises stays open until an operator acknowledges it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, RefusedError
from qts.notify.alert_watcher import RecentAlert, RecentAlerts
from qts.notify.message import Severity

WRITE_INTERVAL_S = 0.25
_ADD = (
    "INSERT INTO alert AS a (account, severity, code, message, first_at, last_at)"
    " VALUES ($1, $2, $3, $4, $5, $5)"
    " ON CONFLICT (account, severity, code, md5(message)) WHERE acknowledged_at IS NULL"
    " DO UPDATE SET times = a.times + 1, last_at = greatest(a.last_at, $5)"
)
_LIST = (
    "SELECT id, account, severity, code, message, first_at, last_at, times, acknowledged_at,"
    " acknowledged_by, note FROM alert"
    " WHERE account = ANY ($1::text[]) AND ($3 OR acknowledged_at IS NULL)"
    " ORDER BY acknowledged_at IS NOT NULL, last_at DESC LIMIT $2"
)
_ACKNOWLEDGE = (
    "UPDATE alert SET acknowledged_at = clock_timestamp(), acknowledged_by = $3, note = $4"
    " WHERE account = ANY ($1::text[]) AND acknowledged_at IS NULL"
    " AND ($2::bigint[] IS NULL OR id = ANY ($2))"
)

log = telemetry.logger("notify")


class StoredAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Alert of a run; `times` counts how often it came while it was open."""

    id: int
    account: str
    severity: Severity
    code: str
    message: str
    first_at: datetime
    last_at: datetime
    times: int
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    note: str


class AlertStore:
    """Warnings and critical alerts of the runs of these accounts."""

    def __init__(self, database: Database, accounts: Sequence[AccountKey]) -> None:
        self._database = database
        self._accounts = [str(key) for key in accounts]

    async def add(self, alert: RecentAlert) -> None:
        """Add an alert of the first account; one that is open already counts up."""
        at = datetime.fromtimestamp(alert.at, UTC)
        account = self._accounts[0]
        await self._database.execute(_ADD, account, alert.severity, alert.code, alert.text, at)

    async def rows(self, limit: int, *, acknowledged: bool) -> list[StoredAlert]:
        """Return open alerts, newest first, then acknowledged ones if they are asked for."""
        rows = await self._database.fetch(_LIST, self._accounts, limit, acknowledged)
        return [StoredAlert(**dict(row.items())) for row in rows]

    async def mark_acknowledged(self, ids: Sequence[int] | None, actor: str, note: str) -> int:
        """Acknowledge open alerts, all of them without `ids`; return how many were open."""
        done = await self._database.execute(_ACKNOWLEDGE, self._accounts, ids, actor, note)
        count = int(done.split()[-1])
        if ids and not count:
            raise RefusedError(
                f"alert {', '.join(map(str, ids))} is not open; see qts ops alerts list"
            )
        return count


class AlertWriter:
    """Task of a run that stores its alerts; while the database is away, they wait in memory."""

    def __init__(self, store: AlertStore, alerts: RecentAlerts, clock: Clock) -> None:
        self._store = store
        self._alerts = alerts
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self.write()
            await self._clock.sleep(WRITE_INTERVAL_S)

    async def write(self) -> None:
        while (alert := self._alerts.next_unstored()) is not None:
            try:
                await self._store.add(alert)
            except OperationError as error:
                if due := telemetry.log_every(10.0, "alerts not stored"):
                    log.warning("alert not stored; retrying", error=str(error), **due)
                return
            self._alerts.stored(alert)
