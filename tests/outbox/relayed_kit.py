"""Child processes on a relayed bus."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from qts.domain import Secret
from qts.outbox import KafkaBusConfig, NatsBusConfig
from tests.outbox.relayed_program import Order

ROOT = Path(__file__).parents[2]


def order_of(
    database: Secret, role: str, stream: str, server: NatsBusConfig | KafkaBusConfig
) -> Order:
    order = Order(database.reveal(), role, stream)
    if isinstance(server, NatsBusConfig):
        order.nats = server.url.reveal() if server.url else None
    else:
        order.kafka = {
            name: getattr(server, name) for name in ("bootstrap", "group", "topic_prefix")
        }
    return order


class Process:
    """Child process that can be restarted."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.outbox.relayed_program",
            msgspec.json.encode(self._order).decode(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            assert await self._process.stdout.readline() == b"ready\n"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def ended(self) -> int:
        assert self._process is not None
        async with asyncio.timeout(60):
            return await self._process.wait()


@asynccontextmanager
async def process(order: Order) -> AsyncIterator[Process]:
    one = Process(order)
    try:
        await one.start()
        yield one
    finally:
        await one.kill()
