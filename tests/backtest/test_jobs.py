"""Backtest jobs: one result per job, whatever fails on the way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from qts.backtest import (
    BacktestCompleted,
    BacktestFailed,
    BacktestJobHandler,
    BacktestRequested,
    JobRow,
    list_jobs,
    show_job,
    submit_job,
)
from qts.backtest.jobs import JobFailedError, JobRunner, run_in_subprocess
from qts.database import Database
from qts.domain import RefusedError
from qts.outbox import (
    BACKTEST_COMMAND,
    BACKTEST_EVENT,
    Delivery,
    Dispatcher,
    OutboxConfig,
    PostgresBus,
    RetryableError,
    uuid7,
)
from tests.backtest.tapes import walk

RESULT: dict[str, Any] = {"performance": {"trades": 3, "gain": 0.01}}
QUICK = OutboxConfig(
    backtest_command=msgspec.structs.replace(
        OutboxConfig().backtest_command, backoff_base_s=0.01, lock_ttl_s=0.4, poll_max_s=0.05
    )
)


@pytest.fixture
async def bus(database: Database) -> AsyncIterator[PostgresBus]:
    async with PostgresBus.open(database, QUICK.streams) as bus:
        yield bus


@pytest.fixture
def ticks(tmp_path: Path) -> Path:
    """A CSV file of ticks."""
    path = tmp_path / "ticks.csv"
    walked = [tick for tick in walk(7, 120) if 0 < tick.price < math.inf]
    rows = [f"{tick.at},{tick.symbol},{tick.price},{tick.volume}" for tick in walked]
    text = "\n".join(_dated(row) for row in rows)
    path.write_text(f"time,symbol,price,volume\n{text}\n")
    return path


def _dated(line: str) -> str:
    at, rest = line.split(",", 1)
    return f"{datetime.fromtimestamp(float(at), UTC).isoformat()},{rest}"


class JobEvents:
    """Published results of jobs."""

    def __init__(self) -> None:
        self.events: list[BacktestCompleted | BacktestFailed] = []
        self.received = asyncio.Event()

    def register(self, dispatcher: Dispatcher) -> None:
        for kind in (BacktestCompleted, BacktestFailed):

            async def record(payload: Any, _delivery: Delivery) -> None:
                self.events.append(payload)
                self.received.set()

            dispatcher.on(BACKTEST_EVENT, kind)(record)


@asynccontextmanager
async def working(database: Database, bus: PostgresBus, run: JobRunner) -> AsyncIterator[JobEvents]:
    dispatcher, results = Dispatcher(), JobEvents()
    BacktestJobHandler(database, bus, run).register(dispatcher)
    results.register(dispatcher)
    consumers = [bus.consumer(stream, dispatcher) for stream in (BACKTEST_COMMAND, BACKTEST_EVENT)]
    running = [asyncio.create_task(consumer.run()) for consumer in consumers]
    try:
        yield results
    finally:
        for consumer in consumers:
            consumer.stop()
        await asyncio.gather(*running)


async def ended(database: Database, job_id: UUID) -> JobRow:
    async with asyncio.timeout(20):
        while (row := await show_job(database, job_id)).status not in ("DONE", "FAILED"):  # noqa: ASYNC110 - no notification of the update
            await asyncio.sleep(0.01)
    return row


async def test_a_job_runs_and_its_result_is_published(database: Database, bus: PostgresBus) -> None:
    runs: list[tuple[str, ...]] = []

    async def run(arguments: tuple[str, ...]) -> dict[str, Any]:
        runs.append(arguments)
        return RESULT

    job_id = await submit_job(database, bus, ("rsi_scalper", "day.csv"))
    assert [row.status for row in await list_jobs(database)] == ["QUEUED"]
    async with working(database, bus, run) as results:
        await asyncio.wait_for(results.received.wait(), 20)
    row = await show_job(database, job_id)
    assert (row.status, row.result, row.attempts) == ("DONE", RESULT, 1)
    assert runs == [("rsi_scalper", "day.csv")]
    assert results.events == [BacktestCompleted(job_id=job_id, performance=RESULT["performance"])]


async def test_submitting_the_same_job_twice_changes_nothing(
    database: Database, bus: PostgresBus
) -> None:
    job_id = uuid7()
    for _ in range(3):
        assert await submit_job(database, bus, ("rsi_scalper",), job_id) == job_id
    assert len(await list_jobs(database)) == 1
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 1


async def test_an_event_that_comes_twice_runs_once(database: Database, bus: PostgresBus) -> None:
    runs = 0

    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        return RESULT

    handler, request = (
        BacktestJobHandler(database, bus, run),
        BacktestRequested(job_id=uuid7(), arguments=()),
    )
    await handler.handle(request)
    await handler.handle(request)
    assert runs == 1
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 1


async def test_a_job_runs_again_after_its_worker_died(database: Database, bus: PostgresBus) -> None:
    started = asyncio.Event()

    async def hangs(_arguments: tuple[str, ...]) -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        return RESULT

    job_id = await submit_job(database, bus, ("rsi_scalper",))
    dispatcher = Dispatcher()
    BacktestJobHandler(database, bus, hangs).register(dispatcher)
    lost = asyncio.create_task(bus.consumer(BACKTEST_COMMAND, dispatcher).run())
    await started.wait()
    assert (await show_job(database, job_id)).status == "RUNNING"
    lost.cancel()
    await asyncio.wait({lost})
    async with working(database, bus, run):
        row = await ended(database, job_id)
    assert (row.status, row.attempts) == ("DONE", 2)


async def test_a_stopped_handler_ends_its_job_and_leaves_it_to_the_next(
    database: Database, bus: PostgresBus
) -> None:
    started = asyncio.Event()

    async def hangs(_arguments: tuple[str, ...]) -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    handler = BacktestJobHandler(database, bus, hangs)
    request = BacktestRequested(job_id=uuid7(), arguments=())
    handling = asyncio.create_task(handler.handle(request))
    await started.wait()
    handler.stop()
    with pytest.raises(RetryableError, match="worker stopped"):
        await handling
    assert (await show_job(database, request.job_id)).status == "RUNNING"


async def test_bad_input_fails_at_once(database: Database, bus: PostgresBus) -> None:
    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        raise JobFailedError("unknown strategy 'nope'", retryable=False)

    job_id = await submit_job(database, bus, ("nope",))
    async with working(database, bus, run) as results:
        await asyncio.wait_for(results.received.wait(), 20)
    row = await show_job(database, job_id)
    assert (row.status, row.attempts, row.result) == ("FAILED", 1, None)
    assert results.events == [BacktestFailed(job_id=job_id, error="unknown strategy 'nope'")]


async def test_a_run_that_fails_is_retried_and_then_failed(
    database: Database, bus: PostgresBus
) -> None:
    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        raise JobFailedError("killed", retryable=True)

    handler, request = (
        BacktestJobHandler(database, bus, run),
        BacktestRequested(job_id=uuid7(), arguments=()),
    )
    with pytest.raises(RetryableError, match="killed"):
        await handler.handle(request)
    assert (await show_job(database, request.job_id)).status == "RUNNING"
    await handler.handle(request, last=True)
    row = await show_job(database, request.job_id)
    assert (row.status, row.attempts, row.error) == ("FAILED", 2, "killed")


async def test_the_loop_is_not_blocked_while_a_job_runs(ticks: Path) -> None:
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0.01)

    counting = asyncio.create_task(count())
    found = await run_in_subprocess(
        ("rsi_scalper", str(ticks), "--param", "length=4", "--way", "generic")
    )
    counting.cancel()
    assert found["performance"]["trades"] == len(found["trades"])
    assert found["events"] > 500
    assert iterations > 5


async def test_the_error_of_the_process_is_the_reason(ticks: Path) -> None:
    with pytest.raises(JobFailedError, match="unknown strategy 'nope'") as failure:
        await run_in_subprocess(("nope", str(ticks)))
    assert not failure.value.retryable


async def test_a_cancelled_job_leaves_no_process(ticks: Path) -> None:
    arguments = ("rsi_scalper", "--simulated-day", "1", "--way", "generic")
    task = asyncio.create_task(run_in_subprocess(arguments))
    while not (found := _children()):  # noqa: ASYNC110 - no notification of a new process
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not set(found) & set(_children())


def _children() -> list[str]:
    mine = Path("/proc/self/task")
    return [
        pid
        for thread in mine.iterdir()
        for pid in (thread / "children").read_text().split()
        if b"backtest" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def test_a_job_that_is_not_there_is_refused(database: Database) -> None:
    with pytest.raises(RefusedError, match="see qts ops jobs list"):
        await show_job(database, uuid7())
