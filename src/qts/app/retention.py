"""Retention: the end of everything that a run lets grow.

    PostgreSQL   account snapshots (thinned), safety log, dashboard actions, notifications, backtest
                 jobs, manual commands, requests of the API, alerts, replayed dead letters, the
                 outbox's history, samples of runs (thinned)
    files        logs of the servers and of child processes, decision journals, daily reports

Orders, fills and positions are the books of the account and are kept. So are dead letters until an
operator has decided about them; `everbit_outbox_dead` and `qts ops outbox status` count them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date, timedelta
from pathlib import Path

from qts import telemetry
from qts.config import Config
from qts.config.schema import RetentionConfig
from qts.database import Database
from qts.domain import Clock
from qts.embedded import Home
from qts.embedded.server import LogFile
from qts.outbox.admin import rotate_partitions
from qts.outbox.handling import TRANSIENT_ERRORS
from qts.pipeline.decision_journal import SUFFIX

LOG_INTERVAL_S = 30.0
ROWS_INTERVAL_S = 3600.0
BATCH = 20_000  # rows that one statement deletes

log = telemetry.logger("app")
_deleted = telemetry.counter("qts_retention_deleted_total", "Rows deleted for age.", ("table",))

# Keeps all of the newest, then the last of every five minutes, then the last of every day, of each
# account.
_THIN_SNAPSHOTS = """
DELETE FROM account_snapshot WHERE id = ANY (ARRAY(
    SELECT id FROM (
        SELECT id, taken_at, row_number() OVER (
                   PARTITION BY broker, account, taken_at < clock_timestamp() - $2::interval,
                       CASE WHEN taken_at < clock_timestamp() - $2::interval
                            THEN date_trunc('day', taken_at, 'Asia/Seoul')
                            ELSE date_bin('5 minutes', taken_at, 'epoch') END
                   ORDER BY taken_at DESC, id DESC) AS place
          FROM account_snapshot
         WHERE taken_at < clock_timestamp() - $1::interval) AS aged
     WHERE place > 1 OR taken_at < clock_timestamp() - $3::interval
     LIMIT $4))
"""
# Keeps all of the newest, then the last of every day, of each account: the curve of the equity.
_THIN_SAMPLES = """
DELETE FROM run_sample WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM (
        SELECT ctid, taken_at, row_number() OVER (
                   PARTITION BY broker, account, date_trunc('day', taken_at, 'Asia/Seoul')
                   ORDER BY taken_at DESC) AS place
          FROM run_sample
         WHERE taken_at < clock_timestamp() - $1::interval) AS aged
     WHERE place > 1 OR taken_at < clock_timestamp() - $2::interval
     LIMIT $3))
"""
_OLD_ROWS = {
    "notification_log": "state <> 'PENDING' AND created_at < clock_timestamp() - $1::interval",
    "backtest_job": "finished_at < clock_timestamp() - $1::interval",
    "event_dead_letter": "replayed_at < clock_timestamp() - $1::interval",
    "alert": "last_at < clock_timestamp() - $1::interval",
    "manual_command": "requested_at < clock_timestamp() - $1::interval",
    "api_request": "started_at < clock_timestamp() - $1::interval",
}
# Logs that are written once: this function alone may delete from them, and records that it did.
_RETAIN_LOG = "SELECT retain_log($1, $2, $3)"
_KEYS = {
    "notification_log": "id",
    "backtest_job": "job_id",
    "event_dead_letter": "number",
    "alert": "id",
    "manual_command": "id",
    "api_request": "id",
}


class Retention:
    """Periodic task, once per system; a second instance is harmless."""

    def __init__(self, database: Database, config: Config, home: Home, clock: Clock) -> None:
        self._database = database
        self._config = config
        self._home = home
        self._clock = clock

    async def run(self) -> None:
        """Run until cancelled; an error is logged and the next turn tries again."""
        rows_at_ns = self._clock.monotonic_ns()
        while True:
            async with _log_errors("log files"):
                await asyncio.to_thread(self.rotate_logs)
            if self._clock.monotonic_ns() >= rows_at_ns:
                rows_at_ns += round(ROWS_INTERVAL_S * 1e9)
                await self.apply()
            await self._clock.sleep(LOG_INTERVAL_S)

    async def apply(self) -> dict[str, int]:
        """Delete what is too old; return the number of rows and files by name."""
        config, counts = self._config.retention, dict[str, int]()
        async with _log_errors("outbox_archive"):  # a running backup may block it
            dropped = await rotate_partitions(self._database, self._config.outbox.keep_days)
            counts["outbox_archive"] = len(dropped)
        async with _log_errors("account_snapshot"):
            counts["account_snapshot"] = await self._delete(
                "account_snapshot",
                _THIN_SNAPSHOTS,
                timedelta(hours=config.snapshots_all_hours),
                timedelta(days=config.snapshots_5min_days),
                timedelta(days=config.snapshots_daily_days),
            )
        async with _log_errors("run_sample"):
            counts["run_sample"] = await self._delete(
                "run_sample",
                _THIN_SAMPLES,
                timedelta(days=config.samples_days),
                timedelta(days=config.snapshots_daily_days),
            )
        for table, days in days_by_table(self._config).items():
            async with _log_errors(table):
                counts[table] = await self._delete(table, _statement(table), timedelta(days=days))
        for name, days in {
            "safety_log": config.safety_log_days,
            "dashboard_action": config.actions_days,
        }.items():
            async with _log_errors(name):
                counts[name] = await self._retain_log(name, timedelta(days=days))
        if (folder := self._config.pipeline.journal) is not None:
            async with _log_errors("journals"):
                counts["journals"] = await asyncio.to_thread(
                    prune_journals, folder, config, self._clock.now().timestamp()
                )
        async with _log_errors("reports"):
            folder, today = self._home.path / "reports", self._clock.now().date()
            counts["reports"] = await asyncio.to_thread(
                prune_reports, folder, today - timedelta(days=config.reports_days)
            )
        if any(counts.values()):
            log.info("old data deleted", **{name: n for name, n in counts.items() if n})
        return counts

    def rotate_logs(self) -> list[str]:
        """Rotate the logs in the home that are too large; return their names."""
        own = self._config.telemetry.log_file  # rotates itself
        limit = self._config.retention.log_mb * 10**6
        return [
            path.name
            for path in sorted(self._home.log.glob("*.log"))
            if path != own and LogFile(path).rotate(limit)
        ]

    async def _delete(self, table: str, statement: str, *args: object) -> int:
        async def delete_batch() -> int:
            return int((await self._database.execute(statement, *args, BATCH)).split()[-1])

        return await _in_batches(table, delete_batch)

    async def _retain_log(self, name: str, keep: timedelta) -> int:
        async def delete_batch() -> int:
            return int(await self._database.fetchval(_RETAIN_LOG, name, keep, BATCH))

        return await _in_batches(name, delete_batch)


async def _in_batches(table: str, delete_batch: Callable[[], Awaitable[int]]) -> int:
    """Delete in batches, so that no statement holds its locks for long; return how many rows."""
    total = 0
    while True:
        count = await delete_batch()
        total += count
        _deleted.labels(table).inc(count)
        if count < BATCH:
            return total


def days_by_table(settings: Config) -> dict[str, int]:
    """Return how many days the rows of each table are kept."""
    config = settings.retention
    return {
        # A message of an event that the bus delivers again must be known.
        "notification_log": max(config.notifications_days, settings.outbox.keep_days),
        "backtest_job": config.backtest_jobs_days,
        "event_dead_letter": config.replayed_letters_days,
        "alert": config.actions_days,
        "manual_command": config.actions_days,
        "api_request": config.actions_days,
    }


def _statement(table: str) -> str:
    key = _KEYS[table]
    return (
        f"DELETE FROM {table} WHERE {key} = ANY (ARRAY("  # noqa: S608 - names of a constant table
        f"SELECT {key} FROM {table} WHERE {_OLD_ROWS[table]} LIMIT $2))"
    )


def prune_journals(folder: Path, config: RetentionConfig, now_s: float) -> int:
    """Delete old journals, then the oldest above the total size; return how many.

    The newest one may be open and is kept; it ends by itself at the same size.
    """
    files = [(path, path.stat()) for path in folder.glob(f"*{SUFFIX}")]
    files.sort(key=lambda each: each[1].st_mtime, reverse=True)
    sizes = itertools.accumulate(stat.st_size for _, stat in files)
    limit_bytes, age_s = config.journal_mb * 10**6, config.journal_days * 86_400
    old = [
        path
        for (path, stat), size in list(zip(files, sizes, strict=True))[1:]
        if now_s - stat.st_mtime > age_s or size > limit_bytes
    ]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def prune_reports(folder: Path, before: date) -> int:
    """Delete the daily reports of days before this one; return how many files."""
    old = [
        path
        for path in folder.glob("????-??-??.*")
        if path.suffix in (".html", ".json") and path.stem < before.isoformat()
    ]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


@asynccontextmanager
async def _log_errors(name: str) -> AsyncIterator[None]:
    try:
        yield
    except TRANSIENT_ERRORS as error:
        log.warning("retention failed; retrying later", what=name, error=str(error))
