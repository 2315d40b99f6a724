"""Backtests through the bus: one outcome for a job, whatever dies on the way."""

from __future__ import annotations

import asyncio
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
from qts.backtest.jobs import JobFailedError, Run, run_in_subprocess
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
    """A file of ticks."""
    path = tmp_path / "ticks.csv"
    rows = [f"{tick.at},{tick.symbol},{tick.price},{tick.volume}" for tick in walk(7, 120)]
    lines = [row for row in rows if "nan" not in row and "inf" not in row]
    text = "\n".join(_dated(line) for line in lines)
    path.write_text(f"time,symbol,price,volume\n{text}\n")
    return path


def _dated(line: str) -> str:
    at, rest = line.split(",", 1)
    return f"{datetime.fromtimestamp(float(at), UTC).isoformat()},{rest}"


class Told:
    """What was published about the jobs."""

    def __init__(self) -> None:
        self.events: list[BacktestCompleted | BacktestFailed] = []
        self.news = asyncio.Event()

    def register(self, dispatcher: Dispatcher) -> None:
        for kind in (BacktestCompleted, BacktestFailed):

            async def heard(payload: Any, _delivery: Delivery) -> None:
                self.events.append(payload)
                self.news.set()

            dispatcher.on(BACKTEST_EVENT, kind)(heard)


@asynccontextmanager
async def working(database: Database, bus: PostgresBus, run: Run) -> AsyncIterator[Told]:
    dispatcher, told = Dispatcher(), Told()
    BacktestJobHandler(database, bus, run).register(dispatcher)
    told.register(dispatcher)
    consumers = [bus.consumer(stream, dispatcher) for stream in (BACKTEST_COMMAND, BACKTEST_EVENT)]
    running = [asyncio.create_task(consumer.run()) for consumer in consumers]
    try:
        yield told
    finally:
        for consumer in consumers:
            consumer.stop()
        await asyncio.gather(*running)


async def ended(database: Database, job_id: UUID) -> JobRow:
    async with asyncio.timeout(20):
        while (row := await show_job(database, job_id)).status not in ("DONE", "FAILED"):  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.01)
    return row


async def test_a_job_is_run_and_told_of(database: Database, bus: PostgresBus) -> None:
    asked: list[tuple[str, ...]] = []

    async def run(arguments: tuple[str, ...]) -> dict[str, Any]:
        asked.append(arguments)
        return RESULT

    job_id = await submit_job(database, bus, ("rsi_scalper", "day.csv"))
    assert [row.status for row in await list_jobs(database)] == ["QUEUED"]
    async with working(database, bus, run) as told:
        await asyncio.wait_for(told.news.wait(), 20)
    row = await show_job(database, job_id)
    assert (row.status, row.result, row.attempts) == ("DONE", RESULT, 1)
    assert asked == [("rsi_scalper", "day.csv")]
    assert told.events == [BacktestCompleted(job_id=job_id, performance=RESULT["performance"])]


async def test_the_same_job_again_asks_for_nothing(database: Database, bus: PostgresBus) -> None:
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

    jobs, asked = (
        BacktestJobHandler(database, bus, run),
        BacktestRequested(job_id=uuid7(), arguments=()),
    )
    await jobs.handle(asked)
    await jobs.handle(asked)
    assert runs == 1
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 1


async def test_a_worker_that_dies_in_the_middle_leaves_a_job_that_is_run_again(
    database: Database, bus: PostgresBus
) -> None:
    begun = asyncio.Event()

    async def hangs(_arguments: tuple[str, ...]) -> dict[str, Any]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        return RESULT

    job_id = await submit_job(database, bus, ("rsi_scalper",))
    dispatcher = Dispatcher()
    BacktestJobHandler(database, bus, hangs).register(dispatcher)
    lost = asyncio.create_task(bus.consumer(BACKTEST_COMMAND, dispatcher).run())
    await begun.wait()
    assert (await show_job(database, job_id)).status == "RUNNING"
    lost.cancel()
    await asyncio.wait({lost})
    async with working(database, bus, run):
        row = await ended(database, job_id)
    assert (row.status, row.attempts) == ("DONE", 2)


async def test_bad_input_fails_at_once(database: Database, bus: PostgresBus) -> None:
    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        raise JobFailedError("strategy 'nope' is not known", again=False)

    job_id = await submit_job(database, bus, ("nope",))
    async with working(database, bus, run) as told:
        await asyncio.wait_for(told.news.wait(), 20)
    row = await show_job(database, job_id)
    assert (row.status, row.attempts, row.result) == ("FAILED", 1, None)
    assert told.events == [BacktestFailed(job_id=job_id, error="strategy 'nope' is not known")]


async def test_a_run_that_breaks_is_tried_again_and_then_failed(
    database: Database, bus: PostgresBus
) -> None:
    async def run(_arguments: tuple[str, ...]) -> dict[str, Any]:
        raise JobFailedError("killed", again=True)

    jobs, asked = (
        BacktestJobHandler(database, bus, run),
        BacktestRequested(job_id=uuid7(), arguments=()),
    )
    with pytest.raises(RetryableError, match="killed"):
        await jobs.handle(asked)
    assert (await show_job(database, asked.job_id)).status == "RUNNING"
    await jobs.handle(asked, last=True)
    row = await show_job(database, asked.job_id)
    assert (row.status, row.attempts, row.error) == ("FAILED", 2, "killed")


async def test_the_loop_goes_on_while_a_job_runs_in_its_process(ticks: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.create_task(count())
    found = await run_in_subprocess(
        ("rsi_scalper", str(ticks), "--param", "length=4", "--way", "generic")
    )
    counting.cancel()
    assert found["performance"]["trades"] == len(found["trades"])
    assert found["events"] > 500
    assert turns > 5


async def test_what_the_process_says_is_the_reason(ticks: Path) -> None:
    with pytest.raises(JobFailedError, match="strategy 'nope' is not known") as broke:
        await run_in_subprocess(("nope", str(ticks)))
    assert not broke.value.again


async def test_a_cancelled_job_leaves_no_process(ticks: Path) -> None:
    words = ("rsi_scalper", "--simulated-day", "1", "--way", "generic")
    task = asyncio.create_task(run_in_subprocess(words))
    while not (found := _children()):  # noqa: ASYNC110 - the kernel tells nobody
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
