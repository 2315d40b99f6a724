"""PostgreSQL crashes, or its answer to a COMMIT is lost: what was accepted is there, once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from qts.database import Database, DatabaseConfig, migrate
from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from tests.faults.orders.rig import rig, submit_for_sure, worker
from tests.faults.proxy import COMMIT, CommitProxy
from tests.outbox.worker_group import seed


@pytest.mark.timeout(90)
async def test_a_server_that_crashes_loses_no_accepted_order(tmp_path: Path, log: Path) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    with EmbeddedServers(Home.at(tmp_path / "home"), EmbeddedConfig(), valkey=False) as servers:
        assert servers.postgres is not None
        url = servers.postgres.url
        config = DatabaseConfig(pool_min=1, pool_max=10, connect_timeout_s=10)
        async with Database.open(url, config) as database:
            await migrate(database)
            async with rig(database) as made, worker(made, url, log):
                submitting = asyncio.create_task(submit_for_sure(made, 30))
                for _ in range(2):
                    await asyncio.sleep(chance.uniform(0.05, 0.4))  # any moment will do
                    assert servers.postgres.pid is not None
                    os.kill(servers.postgres.pid, signal.SIGQUIT)  # as `pg_ctl stop -m immediate`
                    while not await asyncio.to_thread(servers.restart_dead):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                await submitting
                await made.settle()
                found = await made.states()
                intents = await database.fetchval("SELECT count(*) FROM order_intent")
    assert intents == 30
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}


async def test_lost_answers_to_commits_double_no_order(
    database: Database, database_url: Secret, log: Path
) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with rig(database) as made, CommitProxy.to(database_url) as proxy:
        async with worker(made, proxy.url, log):
            for _ in range(20):
                proxy.spoil(chance.choice(["before", "after"]), chance.choice([COMMIT, b""]))
                await made.submit(1)
                await asyncio.sleep(chance.uniform(0, 0.1))  # at any state of the worker
            await made.settle()
        assert proxy.cut > 5
    found = await made.states()
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}
    assert sum(found.values()) == 20
