"""Workers that are killed, stopped or crash; checked by the effects table."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from qts.database import Database
from qts.domain import Secret
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, PostgresBus, StreamConfig
from tests.outbox.kit import QUICK, accepted, publish, until, until_statuses
from tests.outbox.worker_group import (
    TABLES,
    effects_by_aggregate,
    kill_at_random,
    seed,
    worker_group,
)

AGGREGATES = 40


@pytest.fixture(autouse=True)
async def _tables(database: Database) -> None:
    await database.execute(TABLES)


async def _kill_and_check(
    database: Database, url: Secret, kills: int, events: int, gap_s: float
) -> None:
    rng = random.Random(seed())  # noqa: S311 - repeatable on purpose
    config = StreamConfig(ordered=True, **QUICK)
    async with (
        PostgresBus.open(database, {TRADE_COMMAND: config}) as bus,
        worker_group(url, TRADE_COMMAND, config) as workers,
    ):

        async def feed() -> None:
            for start in range(0, events, 100):
                numbers = range(start, start + 100)
                await publish(
                    database,
                    bus,
                    *(accepted(str(n % AGGREGATES), n, stream=TRADE_COMMAND) for n in numbers),
                )
                await asyncio.sleep(0.8 * kills * gap_s / 2 / (events / 100))

        feeding = asyncio.create_task(feed())
        await kill_at_random(workers, kills, rng, gap_s)
        await feeding
        await until_statuses(database, {"DONE": events}, 120)
        assert await workers.stop() == 0
    expected = {str(line): list(range(line, events, AGGREGATES)) for line in range(AGGREGATES)}
    assert await effects_by_aggregate(database) == expected  # each once, in order, none missing


async def test_killed_workers_lose_nothing_and_do_nothing_twice(
    database: Database, database_url: Secret
) -> None:
    await _kill_and_check(database, database_url, kills=10, events=600, gap_s=0.2)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_two_hundred_kills_lose_nothing_and_do_nothing_twice(
    database: Database, database_url: Secret
) -> None:
    await _kill_and_check(database, database_url, kills=200, events=20_000, gap_s=0.3)


async def test_a_worker_stopped_beyond_its_lock_cannot_complete(
    database: Database, database_url: Secret
) -> None:
    config = StreamConfig(**QUICK)
    async with (
        PostgresBus.open(database, {TRADE_EVENT: config}) as bus,
        worker_group(database_url, TRADE_EVENT, config, handler="hold", workers=1) as first,
    ):
        await publish(database, bus, accepted("x", 1))
        await until(lambda: _has_row(database, "began"))
        os.kill(first.pids[0], signal.SIGSTOP)
        async with worker_group(database_url, TRADE_EVENT, config, workers=1) as second:
            await until_statuses(database, {"DONE": 1})
            await asyncio.sleep(2 * config.lock_ttl_s)  # until its lock has expired
            before = await database.fetch("SELECT * FROM outbox_event_all")
            os.kill(first.pids[0], signal.SIGCONT)
            assert await first.stop() == 0  # it has tried to complete
            after = await database.fetch("SELECT * FROM outbox_event_all")
            assert await second.stop() == 0
    assert [tuple(row) for row in after] == [tuple(row) for row in before]
    assert f":{second.pids[0]}:" in after[0]["locked_by"]
    assert after[0]["attempt_count"] == 2
    assert await effects_by_aggregate(database) == {"x": [1]}


@pytest.mark.parametrize("poison", ["Exit", "Hang"])
async def test_only_the_event_that_crashes_its_process_is_a_dead_letter(
    database: Database, database_url: Secret, poison: str
) -> None:
    config = StreamConfig(**{**QUICK, "lock_ttl_s": 0.4}, max_attempts=3)
    workers = 2 if poison == "Exit" else 4
    async with (
        PostgresBus.open(database, {TRADE_EVENT: config}) as bus,
        worker_group(database_url, TRADE_EVENT, config, workers=workers) as _,
    ):
        bad = accepted("bad", type=poison)
        await publish(database, bus, bad, *(accepted("good", n) for n in range(60)))
        await until_statuses(database, {"DONE": 60, "DEAD": 1})
        (letter,) = await bus.dead_letters(TRADE_EVENT)
    assert letter.event_id == bad.envelope.event_id
    assert (letter.error_code, letter.attempts) == ("WORKER_LOST", 3)
    assert sorted((await effects_by_aggregate(database))["good"]) == list(range(60))


async def _has_row(database: Database, table: str) -> bool:
    return bool(await database.fetchval(f"SELECT EXISTS (SELECT FROM {table})"))  # noqa: S608
