"""Feed, strategies and execution in three processes on one PostgreSQL, one simulator and NATS.

The judge is the simulator: its order list and its holdings.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Protocol

import asyncpg
import nats

from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.roles.connection import SIGNALS
from qts.simulators import MarketConfig
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.faults.whole_run import MARKET, WholeRun
from tests.homes import create_home

ROLES = ("feed", "strategies", "execution")


class Servers(Protocol):
    """One NATS server, or a cluster of them."""

    @property
    def url(self) -> Secret: ...


class Roles(WholeRun):
    """The three roles of a system, any of which may be killed and started again."""

    def __init__(
        self, venue: SimulatedAccount, folder: Path, chance: random.Random, servers: Servers
    ) -> None:
        super().__init__(venue, folder, chance)
        self._folder = folder
        self._settings |= {
            "QTS_PIPELINE__STRATEGIES": "tests.faults.pacer:Pacer",
            "QTS_OUTBOX__NATS__URL": servers.url.reveal(),
        }
        self.runs: dict[str, Run] = {}
        self.summaries: dict[str, dict[str, Any]] = {}

    def set(self, **settings: str) -> None:
        self._settings |= settings

    async def open(self) -> None:
        home = self._folder / "servers"
        create_home(home)
        servers = EmbeddedServers(Home.at(home), EmbeddedConfig(), valkey=False)
        await asyncio.to_thread(servers.start)
        self._stack.push_async_callback(asyncio.to_thread, servers.stop)
        self._url = Home.at(home).postgres_url().reveal()
        self._settings["QTS_DATABASE__URL"] = self._url
        await asyncio.gather(*map(self.start_role, ROLES))

    def spawn(self, role: str, name: str, *words: str) -> Run:
        """Start a process of a role, which others may have too."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        home = folder / "home"
        return self._stack.enter_context(running(home, "--role", role, *words, **self._settings))

    async def start_role(self, role: str) -> None:
        await self.use(role, self.spawn(role, role))

    async def use(self, role: str, run: Run) -> None:
        """Take a process as the one of its role, once it is ready."""
        self.runs[role] = run
        if role == "execution":
            self.run = run
        await asyncio.to_thread(run.until, "Ready")

    async def kill_role(self, role: str) -> None:
        self.struck[f"{role} killed"] += 1
        os.kill(self.runs[role].process.pid, SIGKILL)
        await asyncio.to_thread(self.runs[role].end)
        await self.start_role(role)

    async def query(self, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    async def end(self) -> None:
        """Stop the roles, the feed last; wait for what is unresolved first."""
        await self.settle()
        for role in ("strategies", "execution", "feed"):
            run, began = self.runs[role], time.monotonic()
            try:
                code = await asyncio.to_thread(run.end, SIGTERM)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{role} does not end: {run.errors[-6000:]}") from None
            assert code == 0, f"{role} ended with {code}: {run.output}\n{run.errors[-6000:]}"
            print(f"{role} stopped in {time.monotonic() - began:.1f} s")
            self.summaries[role] = run.summary
            if role == "strategies":
                await self._signals_consumed()

    async def _signals_consumed(self) -> None:
        """Wait until execution has acknowledged every signal that NATS has stored."""
        client = await nats.connect(self._settings["QTS_OUTBOX__NATS__URL"].split(","))
        jetstream = client.jetstream()

        async def left() -> int:
            return (await jetstream.stream_info(SIGNALS.name)).state.messages

        try:
            await self.until("empty", left)
        finally:
            await client.close()

    def link(self, role: str) -> dict[str, int]:
        counts: dict[str, int] = self.summaries[role]["link"]
        return counts


@asynccontextmanager
async def roles(
    folder: Path,
    seed: int,
    servers: Servers,
    prepare: Callable[[Roles], Awaitable[None]] | None = None,
    venue: tuple[str, MarketConfig] = ("upbit", MARKET),
) -> AsyncIterator[Roles]:
    async with simulated_account(*venue) as account, AsyncExitStack() as stack:
        made = Roles(account, folder, random.Random(seed), servers)  # noqa: S311 - repeatable
        stack.push_async_callback(made.close)
        if prepare is not None:
            await prepare(made)
        await made.open()
        yield made
