"""A server that crashes, or whose answer to a COMMIT is lost, loses and doubles nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import msgspec

from qts.database import Database, DatabaseConfig, migrate
from qts.domain import OutcomeUnknownError, Secret, UnreachableError
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.outbox import TRADE_COMMAND, Delivery, OutboxEvent, PostgresBus, StreamConfig, mark_handled
from tests.faults.proxy import CommitProxy
from tests.outbox.kit import QUICK, Recorder, accepted, running, until_statuses
from tests.outbox.worker_group import TABLES, effects_by_aggregate, seed

CONFIG = StreamConfig(ordered=True, **QUICK)
STREAMS = {TRADE_COMMAND: CONFIG}


async def publish_for_sure(database: Database, bus: PostgresBus, event: OutboxEvent) -> int:
    """Publish with the same event_id until the commit is confirmed."""
    lost = 0
    while True:
        try:
            async with database.transaction() as tx:
                await bus.publish(tx, event)
        except OutcomeUnknownError:
            lost += 1
        except UnreachableError:
            await asyncio.sleep(0.02)
        else:
            return lost


def effects(database: Database) -> Recorder:
    async def handle(delivery: Delivery) -> None:
        async with database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id):
                await tx.execute(
                    "INSERT INTO effect (event_id, line, number) VALUES ($1, $2, $3)",
                    delivery.event_id,
                    delivery.aggregate_id,
                    msgspec.json.decode(delivery.envelope.payload)["number"],
                )

    return Recorder(handle)


async def test_a_lost_answer_to_a_commit_neither_loses_nor_doubles(
    database: Database, database_url: Secret
) -> None:
    await database.execute(TABLES)
    rng = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with (
        CommitProxy.to(database_url) as proxy,
        Database.open(proxy.url, DatabaseConfig(pool_min=1, pool_max=3)) as through,
        PostgresBus.open(through, STREAMS) as bus,
    ):
        lost = 0
        for number in range(60):
            if rng.random() < 0.5:
                proxy.spoil(rng.choice(["before", "after"]))
            lost += await publish_for_sure(
                through, bus, accepted(str(number % 3), number, stream=TRADE_COMMAND)
            )
        assert lost == proxy.cut > 0
    async with (
        PostgresBus.open(database, STREAMS) as bus,
        running(bus.consumer(TRADE_COMMAND, effects(database))),
    ):
        await until_statuses(database, {"DONE": 60})
    assert await effects_by_aggregate(database) == {str(n): list(range(n, 60, 3)) for n in range(3)}


async def test_a_server_that_crashes_under_load_loses_nothing(tmp_path: Path) -> None:
    events = 600
    rng = random.Random(seed())  # noqa: S311 - repeatable on purpose
    with EmbeddedServers(Home.at(tmp_path / "home"), EmbeddedConfig(), valkey=False) as servers:
        assert servers.postgres is not None
        config = DatabaseConfig(pool_min=1, pool_max=20, connect_timeout_s=10)
        async with Database.open(servers.postgres.url, config) as database:
            await migrate(database)
            await database.execute(TABLES)
            async with PostgresBus.open(database, STREAMS) as bus:

                async def feed(line: int) -> None:
                    for number in range(line, events, 4):
                        await publish_for_sure(
                            database, bus, accepted(str(line), number, stream=TRADE_COMMAND)
                        )

                recorders = [effects(database), effects(database)]
                async with running(*(bus.consumer(TRADE_COMMAND, one) for one in recorders)):
                    feeding = asyncio.gather(*(feed(line) for line in range(4)))
                    for _ in range(3):
                        await asyncio.sleep(rng.uniform(0.05, 0.4))  # any moment will do
                        pid = servers.postgres.pid
                        assert pid is not None
                        os.kill(pid, signal.SIGQUIT)  # what `pg_ctl stop -m immediate` sends
                        while not await asyncio.to_thread(servers.restart_dead):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                    await feeding
                    await until_statuses(database, {"DONE": events}, 120)
            assert await effects_by_aggregate(database) == {
                str(line): list(range(line, events, 4)) for line in range(4)
            }
