"""Backtests through the bus: asked for in a transaction, run in a process of their own.

    submit ─▶ QUEUED ─▶ BacktestRequested ─▶ RUNNING ─▶ DONE    and BacktestCompleted
                                                 └────▶ FAILED  and BacktestFailed

A job has one outcome, however often its event comes. A worker that dies leaves it RUNNING, and the
event comes again: the run is a function of its request, so doing it anew gives the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import RefusedError
from qts.outbox import (
    BACKTEST_COMMAND,
    BACKTEST_EVENT,
    Delivery,
    Dispatcher,
    EventBus,
    OutboxEvent,
    RetryableError,
    uuid7,
)

log = telemetry.logger("backtest")

AGGREGATE = "Backtest"
_COLUMNS = "job_id, request, status, attempts, error, created_at, started_at, finished_at"


class BacktestRequested(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`arguments` are those of `qts backtest`: the strategy, the data and options."""

    job_id: UUID
    arguments: tuple[str, ...]


class BacktestCompleted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    job_id: UUID
    performance: dict[str, Any]


class BacktestFailed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    job_id: UUID
    error: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    arguments: tuple[str, ...]
    status: str
    attempts: int
    error: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: dict[str, Any] | None = None


class JobFailedError(Exception):
    """The run ended without a result; `again` when another attempt may have one."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text)
        self.again = again


Run = Callable[[tuple[str, ...]], Awaitable[dict[str, Any]]]


async def submit_job(
    database: Database, bus: EventBus, arguments: tuple[str, ...], job_id: UUID | None = None
) -> UUID:
    """The row and its event in one transaction; the same id again asks for nothing new."""
    asked = BacktestRequested(job_id=job_id or uuid7(), arguments=arguments)
    async with database.transaction() as tx:
        made = await tx.execute(
            "INSERT INTO backtest_job (job_id, request) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            asked.job_id,
            {"arguments": list(arguments)},
        )
        if made == "INSERT 0 1":
            address = (AGGREGATE, str(asked.job_id))
            await bus.publish(tx, OutboxEvent.of(BACKTEST_COMMAND, asked, address))
    return asked.job_id


async def list_jobs(database: Database, limit: int = 50) -> list[JobRow]:
    """The youngest first, without their results."""
    rows = await database.fetch(
        f"SELECT {_COLUMNS} FROM backtest_job ORDER BY created_at DESC LIMIT $1",  # noqa: S608 - our own names
        limit,
    )
    return [_row(row) for row in rows]


async def show_job(database: Database, job_id: UUID) -> JobRow:
    row = await database.fetchrow(
        f"SELECT {_COLUMNS}, result FROM backtest_job WHERE job_id = $1",  # noqa: S608 - our own names
        job_id,
    )
    if row is None:
        raise RefusedError(f"there is no backtest {job_id}; see qts ops jobs list")
    return _row(row)


def _row(row: Any) -> JobRow:
    known = dict(row)
    arguments = tuple(known.pop("request")["arguments"])
    return JobRow(arguments=arguments, **known)


async def run_in_subprocess(arguments: tuple[str, ...]) -> dict[str, Any]:
    """`qts backtest` as a process of its own: nothing it does holds anybody up here."""
    with tempfile.TemporaryDirectory(prefix="qts-backtest-") as folder:
        target = Path(folder) / "result.json"
        words = ("-m", "qts", "backtest", "--json", str(target), *arguments)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if target.exists() and process.returncode in (0, 1):
            found: dict[str, Any] = json.loads(target.read_bytes())
            return found
    lines = said.decode(errors="replace").strip().splitlines()
    text = lines[-1].removeprefix("qts: ") if lines else f"ended with {process.returncode}"
    raise JobFailedError(text, again=process.returncode != RefusedError.exit_code)


class BacktestJobHandler:
    """The handler of BacktestRequested."""

    def __init__(self, database: Database, bus: EventBus, run: Run = run_in_subprocess) -> None:
        self._database = database
        self._bus = bus
        self._run = run

    def register(self, dispatcher: Dispatcher) -> None:
        async def requested(asked: BacktestRequested, delivery: Delivery) -> None:
            await self.handle(asked, last=delivery.attempt >= delivery.max_attempts)

        dispatcher.on(BACKTEST_COMMAND, BacktestRequested)(requested)

    async def handle(self, asked: BacktestRequested, *, last: bool = False) -> None:
        begun = await self._database.execute(
            "INSERT INTO backtest_job AS job (job_id, request, status, attempts, started_at)"
            " VALUES ($1, $2, 'RUNNING', 1, clock_timestamp()) ON CONFLICT (job_id) DO UPDATE SET"
            " status = 'RUNNING', attempts = job.attempts + 1, started_at = clock_timestamp()"
            " WHERE job.status IN ('QUEUED', 'RUNNING')",
            asked.job_id,
            {"arguments": list(asked.arguments)},
        )
        if begun != "INSERT 0 1":
            return  # it has its outcome
        try:
            result = await self._run(asked.arguments)
        except JobFailedError as error:
            if error.again and not last:
                raise RetryableError(str(error), code="BACKTEST_BROKE") from None
            failed = BacktestFailed(job_id=asked.job_id, error=str(error))
            await self._end(asked.job_id, failed, None, str(error))
        else:
            done = BacktestCompleted(job_id=asked.job_id, performance=result["performance"])
            await self._end(asked.job_id, done, result, "")

    async def _end(
        self,
        job_id: UUID,
        told: BacktestCompleted | BacktestFailed,
        result: dict[str, Any] | None,
        error: str,
    ) -> None:
        async with self._database.transaction() as tx:
            ended = await tx.execute(
                "UPDATE backtest_job SET status = $2, result = $3, error = $4,"
                " finished_at = clock_timestamp() WHERE job_id = $1 AND status = 'RUNNING'",
                job_id,
                "FAILED" if result is None else "DONE",
                result,
                error,
            )
            if ended == "UPDATE 1":
                await self._bus.publish(
                    tx, OutboxEvent.of(BACKTEST_EVENT, told, (AGGREGATE, str(job_id)))
                )
        log.info("a backtest ended", job=str(job_id), error=error)
