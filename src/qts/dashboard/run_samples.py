"""Samples of a run in the database, one a minute: the account's value, and counts of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, OperationError

log = telemetry.logger("dashboard")

INTERVAL_S = 60.0
_INSERT = (
    "INSERT INTO run_sample (broker, account, started_at, taken_at, equity, cash, unrealised,"
    " counts) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING"
)
# The samples of a day, and of each run that began before it the last one before the day.
_SELECT = """
SELECT started_at, taken_at, equity, cash, unrealised, counts
  FROM run_sample
 WHERE broker = $1 AND account = $2 AND taken_at >= $3 AND taken_at < $4
UNION ALL
SELECT last.*
  FROM (SELECT DISTINCT started_at FROM run_sample
         WHERE broker = $1 AND account = $2 AND taken_at >= $3 AND taken_at < $4
           AND started_at < $3) AS run
 CROSS JOIN LATERAL (
        SELECT started_at, taken_at, equity, cash, unrealised, counts
          FROM run_sample
         WHERE broker = $1 AND account = $2 AND taken_at < $3 AND started_at = run.started_at
         ORDER BY taken_at DESC LIMIT 1) AS last
 ORDER BY taken_at
"""


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start of a run, and figures of its last minute."""

    ticks: int = 0
    p0_events: int = 0
    refusals: dict[str, int] = {}
    precheck_refusals: dict[str, int] = {}
    strategy_refusals: dict[str, int] = {}  # by strategy and code, as "breakout G_CAPITAL"
    polls_failed: int = 0
    quotes_lost: int = 0  # not recorded
    # Of the last minute:
    p0_p50_ms: float = 0.0
    p0_p99_ms: float = 0.0
    p0_max_ms: float = 0.0
    scan_lag_s: float = 0.0
    streaming: bool = False
    market_open: bool = True
    held: Mapping[str, tuple[Decimal, Decimal]] = {}  # by strategy: unrealised profit and value


class RunSample(msgspec.Struct, frozen=True, kw_only=True):
    """Row of run_sample."""

    started_at: datetime
    taken_at: datetime
    equity: Decimal
    cash: Decimal
    unrealised: Decimal
    counts: RunCounts


class AccountValue(msgspec.Struct, frozen=True):
    equity: Decimal
    cash: Decimal
    unrealised: Decimal


class SampleWriter:
    """Writer of the samples of one run."""

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        started_at: datetime,
        take: Callable[[], tuple[AccountValue, RunCounts]],
    ) -> None:
        self._database = database
        self._run = (*account, started_at)
        self._take = take
        self._written_at: datetime | None = None

    async def write_due(self, now: datetime) -> None:
        """Write the first sample, and one a minute."""
        last = self._written_at
        if last is None or (now - last).total_seconds() >= INTERVAL_S:
            await self.write(now)

    async def write(self, now: datetime) -> None:
        """Write a sample, unless the account is not loaded yet."""
        value, counts = self._take()
        if not value.equity:
            return
        row = (value.equity, value.cash, value.unrealised, msgspec.to_builtins(counts))
        try:
            await self._database.execute(_INSERT, *self._run, now, *row)
        except OperationError as error:
            if due := telemetry.log_every(60.0, "run sample"):
                log.warning("sample of the run not stored", error=str(error), **due)
        else:
            self._written_at = now


async def load_samples(
    database: Database, account: AccountKey, began: datetime, ended: datetime
) -> list[RunSample]:
    """Return the samples of a period, and the last one before it of a run that goes on in it."""
    rows = await database.fetch(_SELECT, *account, began, ended)
    return [msgspec.convert(dict(row.items()), RunSample) for row in rows]


def counted(samples: Sequence[RunSample], began: datetime) -> RunCounts:
    """Return what the period had: the growth of each run's counts, and the worst minute."""
    totals: Counter[str] = Counter()
    names = ("refusals", "precheck_refusals", "strategy_refusals")
    refusals: dict[str, Counter[str]] = {name: Counter() for name in names}
    worst: dict[str, Any] = {
        "p0_p50_ms": 0.0,
        "p0_p99_ms": 0.0,
        "p0_max_ms": 0.0,
        "scan_lag_s": 0.0,
    }
    for run in {each.started_at for each in samples}:
        own = [each for each in samples if each.started_at == run]
        before = own[0].counts if own[0].taken_at < began else RunCounts()
        last = own[-1].counts
        for name in ("ticks", "p0_events", "polls_failed", "quotes_lost"):
            totals[name] += getattr(last, name) - getattr(before, name)
        for name, codes in refusals.items():
            codes.update(_grown(getattr(before, name), getattr(last, name)))
    for sample in samples:
        if sample.taken_at >= began:
            for name, value in worst.items():
                worst[name] = max(value, getattr(sample.counts, name))
    codes_of: dict[str, Any] = {name: dict(each.most_common()) for name, each in refusals.items()}
    return msgspec.convert({**totals, **worst, **codes_of}, RunCounts)


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {
        code: count - before.get(code, 0)
        for code, count in after.items()
        if count > before.get(code, 0)
    }
