"""Worker processes: their pids, their exit, and the rows of their handlers in `effect`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from qts.database import Database
from qts.domain import Secret
from qts.outbox import StreamConfig

ROOT = Path(__file__).parents[2]
TABLES = """
    CREATE TABLE effect (
        place bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, line text, number int);
    CREATE TABLE began (pid int);
    CREATE TABLE ended (pid int);
"""


class WorkerGroup:
    """Workers of one program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pids: list[int] = []  # of all workers, the newest last
        self._gone: set[int] = set()
        self.changed = asyncio.Event()

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.pids.append(int(line.split()[1]))
            self.changed.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.pids) < count:
                self.changed.clear()
                await self.changed.wait()

    async def kill_one(self, rng: random.Random) -> None:
        """Kill a random worker and wait for its replacement."""
        known = len(self.pids)
        victim = rng.choice([pid for pid in self.pids if pid not in self._gone])
        self._gone.add(victim)
        with contextlib.suppress(ProcessLookupError):  # it may have exited by itself
            os.kill(victim, signal.SIGKILL)
            await self.has(known + 1)

    async def stop(self) -> int:
        self._process.terminate()
        async with asyncio.timeout(60):
            return await self._process.wait()


@asynccontextmanager
async def worker_group(
    url: Secret, stream: str, config: StreamConfig, *, handler: str = "effect", workers: int = 2
) -> AsyncIterator[WorkerGroup]:
    order = {
        "url": url.reveal(),
        "stream": stream,
        "config": config,
        "handler": handler,
        "workers": workers,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.outbox.program",
        msgspec.json.encode(order).decode(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
    )
    group = WorkerGroup(process)
    reading = asyncio.create_task(group.read())
    try:
        await group.has(workers)
        yield group
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await reading


def seed() -> int:
    """Return the seed of this run; QTS_SEED repeats one."""
    value = int(os.environ.get("QTS_SEED") or secrets.randbelow(2**32))
    print(f"QTS_SEED={value}")
    return value


async def kill_at_random(
    workers: WorkerGroup, kills: int, rng: random.Random, gap_s: float
) -> None:
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0, gap_s))  # a random moment is the point
        await workers.kill_one(rng)


async def effects_by_aggregate(database: Database) -> dict[str, list[int]]:
    rows = await database.fetch("SELECT line, number FROM effect ORDER BY place")
    lines: dict[str, list[int]] = {}
    for row in rows:
        lines.setdefault(row["line"], []).append(row["number"])
    return lines
