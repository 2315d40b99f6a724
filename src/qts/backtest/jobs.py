"""Backtest jobs: requested through the outbox, run in separate processes of low priority.

    submit ─▶ QUEUED ─▶ BacktestRequested ─▶ RUNNING ─▶ DONE    and BacktestCompleted
                                                 └────▶ FAILED  and BacktestFailed

A job has one result, however often its event is delivered. If a worker dies, the job stays RUNNING
and the event is delivered again; a backtest is deterministic, so the second run gives the same.
`qts run` and `qts ops jobs work` both take jobs; each job goes to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
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
NICENESS = 15  # a job yields the CPU to a run beside it
_COLUMNS = "job_id, request, status, attempts, error, created_at, started_at, finished_at"


class BacktestRequested(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Request to run `qts backtest` with these arguments."""

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
    """Run that ended without a result; `retryable` if another attempt may succeed."""

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


JobRunner = Callable[[tuple[str, ...]], Awaitable[dict[str, Any]]]


async def submit_job(
    database: Database, bus: EventBus, arguments: tuple[str, ...], job_id: UUID | None = None
) -> UUID:
    """Insert a job and publish its event in one transaction; an existing id changes nothing."""
    request = BacktestRequested(job_id=job_id or uuid7(), arguments=arguments)
    async with database.transaction() as tx:
        status = await tx.execute(
            "INSERT INTO backtest_job (job_id, request) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            request.job_id,
            {"arguments": list(arguments)},
        )
        if status == "INSERT 0 1":
            aggregate = (AGGREGATE, str(request.job_id))
            await bus.publish(tx, OutboxEvent.of(BACKTEST_COMMAND, request, aggregate))
    return request.job_id


async def list_jobs(database: Database, limit: int = 50) -> list[JobRow]:
    """Return the newest jobs first, without their results."""
    rows = await database.fetch(
        f"SELECT {_COLUMNS} FROM backtest_job ORDER BY created_at DESC LIMIT $1",  # noqa: S608 - constant column names
        limit,
    )
    return [_row(row) for row in rows]


async def show_job(database: Database, job_id: UUID) -> JobRow:
    row = await database.fetchrow(
        f"SELECT {_COLUMNS}, result FROM backtest_job WHERE job_id = $1",  # noqa: S608 - constant column names
        job_id,
    )
    if row is None:
        raise RefusedError(f"no backtest job {job_id}; see qts ops jobs list")
    return _row(row)


def _row(row: Any) -> JobRow:
    fields = dict(row)
    arguments = tuple(fields.pop("request")["arguments"])
    return JobRow(arguments=arguments, **fields)


async def run_in_subprocess(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Run `qts backtest` in a separate process of low priority and return its JSON report."""
    with tempfile.TemporaryDirectory(prefix="qts-backtest-") as folder:
        target = Path(folder) / "result.json"
        command = ("-m", "qts", "backtest", "--json", str(target), *arguments)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        try:
            _, stderr = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if target.exists() and process.returncode in (0, 1):
            report: dict[str, Any] = json.loads(target.read_bytes())
            return report
    lines = stderr.decode(errors="replace").strip().splitlines()
    text = lines[-1].removeprefix("qts: ") if lines else f"exit code {process.returncode}"
    raise JobFailedError(text, retryable=process.returncode != RefusedError.exit_code)


class BacktestJobHandler:
    """Handler of BacktestRequested; `stop` ends its processes, and the jobs are retried later."""

    def __init__(
        self, database: Database, bus: EventBus, run: JobRunner = run_in_subprocess
    ) -> None:
        self._database = database
        self._bus = bus
        self._run = run
        self._running: set[asyncio.Task[dict[str, Any]]] = set()

    def register(self, dispatcher: Dispatcher) -> None:
        async def handle(request: BacktestRequested, delivery: Delivery) -> None:
            await self.handle(request, last=delivery.attempt >= delivery.max_attempts)

        dispatcher.on(BACKTEST_COMMAND, BacktestRequested)(handle)

    def stop(self) -> None:
        """End the jobs that run; their events are delivered again."""
        for job in self._running:
            job.cancel()

    async def handle(self, request: BacktestRequested, *, last: bool = False) -> None:
        status = await self._database.execute(
            "INSERT INTO backtest_job AS job (job_id, request, status, attempts, started_at)"
            " VALUES ($1, $2, 'RUNNING', 1, clock_timestamp()) ON CONFLICT (job_id) DO UPDATE SET"
            " status = 'RUNNING', attempts = job.attempts + 1, started_at = clock_timestamp()"
            " WHERE job.status IN ('QUEUED', 'RUNNING')",
            request.job_id,
            {"arguments": list(request.arguments)},
        )
        if status != "INSERT 0 1":
            return  # the job has its result
        try:
            result = await self._result(request.arguments)
        except JobFailedError as error:
            if error.retryable and not last:
                raise RetryableError(str(error), code="BACKTEST_BROKE") from None
            failed = BacktestFailed(job_id=request.job_id, error=str(error))
            await self._finish(request.job_id, failed, None, str(error))
        else:
            done = BacktestCompleted(job_id=request.job_id, performance=result["performance"])
            await self._finish(request.job_id, done, result, "")

    async def _result(self, arguments: tuple[str, ...]) -> dict[str, Any]:
        job = asyncio.ensure_future(self._run(arguments))
        self._running.add(job)
        try:
            return await job
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise JobFailedError("its worker stopped before the end", retryable=True) from None
        finally:
            self._running.discard(job)

    async def _finish(
        self,
        job_id: UUID,
        event: BacktestCompleted | BacktestFailed,
        result: dict[str, Any] | None,
        error: str,
    ) -> None:
        async with self._database.transaction() as tx:
            status = await tx.execute(
                "UPDATE backtest_job SET status = $2, result = $3, error = $4,"
                " finished_at = clock_timestamp() WHERE job_id = $1 AND status = 'RUNNING'",
                job_id,
                "FAILED" if result is None else "DONE",
                result,
                error,
            )
            if status == "UPDATE 1":
                await self._bus.publish(
                    tx, OutboxEvent.of(BACKTEST_EVENT, event, (AGGREGATE, str(job_id)))
                )
        log.info("backtest job finished", job_id=str(job_id), error=error)
