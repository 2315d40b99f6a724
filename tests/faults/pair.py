"""An active run and a standby on one PostgreSQL and one simulator, and the faults that strike them.

The judge is the simulator: the order in which it took orders, its order list and its holdings. The
epoch of an order is that of its attempt in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.embedded.process import read_pid
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.faults.whole_run import MARKET, PATIENCE_S, RESTARTING, STEP_S, WholeRun
from tests.homes import create_home

EPOCHS = "SELECT identifier, epoch FROM order_attempt WHERE epoch IS NOT NULL"


class Cut(NamedTuple):
    """A way into PostgreSQL that can be cut: bytes are taken and not passed on until it heals."""

    url: str
    is_open: asyncio.Event


class Member:
    """One of the two runs."""

    def __init__(self, name: str, folder: Path, line: Cut) -> None:
        self.name, self.folder, self.line = name, folder / name, line
        self.folder.mkdir()
        self.run: Run | None = None

    @property
    def pid(self) -> int:
        assert self.run is not None
        return self.run.process.pid


class Placed(NamedTuple):
    at: float
    identifier: str


class Pair(WholeRun):
    """Two runs; `active` trades, `standby` stands by."""

    def __init__(self, venue: SimulatedAccount, folder: Path, chance: random.Random) -> None:
        super().__init__(venue, folder, chance)
        self._settings["QTS_PIPELINE__STRATEGIES"] = "tests.faults.pacer:Pacer"
        self.placed: list[Placed] = []
        self.takeovers: dict[str, list[float]] = {}
        self.lease_s = 0.0  # until the standby had the lease, in the last round
        self._url = ""
        self._watch_venue()

    active: Member
    standby: Member

    def _watch_venue(self) -> None:
        """Note when each order arrives."""
        orders = self.venue.simulator.orders
        accept = orders._accept

        def accepting(entry: Any) -> None:
            self.placed.append(Placed(time.monotonic(), entry.identifier))
            accept(entry)

        orders._accept = accepting

    async def open(self, folder: Path) -> None:
        home = folder / "servers"
        create_home(home)
        self._servers = EmbeddedServers(Home.at(home), EmbeddedConfig(), valkey=False)
        await asyncio.to_thread(self._servers.start)
        self._stack.push_async_callback(asyncio.to_thread, self._servers.stop)
        self._pid_file = Home.at(home).data / "postmaster.pid"
        self._url = Home.at(home).postgres_url().reveal()
        members = [Member(name, folder, await self._line()) for name in "ab"]
        self.active, self.standby = members
        await self._start(self.active)
        await self._ready(self.active)
        await self._start(self.standby, "--standby")
        await self._stands_by(self.standby)

    async def _line(self) -> Cut:
        target = urlsplit(self._url)
        options = dict(parse_qsl(target.query))
        is_open = asyncio.Event()
        is_open.set()

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    await is_open.wait()
                    sink.write(data)
                    await sink.drain()
            await is_open.wait()
            sink.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await is_open.wait()
            try:
                there = await asyncio.open_unix_connection(
                    f"{options['host']}/.s.PGSQL.{options.get('port', 5432)}"
                )
            except OSError:
                writer.close()
                return
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._stack.callback(server.close)
        login, at_sign, _ = target.netloc.rpartition("@")
        port = server.sockets[0].getsockname()[1]
        netloc = f"{login}{at_sign}127.0.0.1:{port}"
        return Cut(target._replace(netloc=netloc, query="").geturl(), is_open)

    # The runs

    async def _start(self, member: Member, *words: str) -> None:
        settings = self._settings | {"QTS_DATABASE__URL": member.line.url}
        member.run = self._stack.enter_context(running(member.folder / "home", *words, **settings))
        if not words:
            self.run = member.run

    async def _ready(self, member: Member) -> None:
        assert member.run is not None
        await asyncio.to_thread(member.run.until, "Ready")
        self.run = member.run

    async def _stands_by(self, member: Member) -> None:
        assert member.run is not None
        await asyncio.to_thread(member.run.until, "Standing by")

    async def query(self, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    async def epochs(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with contextlib.suppress(*RESTARTING):
            found = {row["identifier"]: row["epoch"] for row in await self.query(EPOCHS)}
        return found

    async def epoch(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(*RESTARTING):
                    (row,) = await self.query("SELECT max(epoch) AS epoch FROM account")
                    return int(row["epoch"])
                await asyncio.sleep(STEP_S)

    # A round

    async def round(self, name: str) -> float:
        """Strike the active run, wait for the first order of the next epoch; return how long."""
        await self.trades(2)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        epoch, old = await self.epoch(), self.active
        self.struck[name] += 1
        struck, heal = time.monotonic(), await self._faults_of_pair()[name]()
        struck_at = time.time() - (time.monotonic() - struck)
        took = await self._first_after(epoch, struck) - struck
        self.takeovers.setdefault(name, []).append(took)
        (row,) = await self.query("SELECT held_at FROM account")
        self.lease_s = row["held_at"].timestamp() - struck_at
        await heal()
        (row,) = await self.query("SELECT pid FROM account")
        if row["pid"] != old.pid:  # after a restart of PostgreSQL the active run may be the first
            await self._swap(old, handed_over=name == "handed over")
        return took

    def _faults_of_pair(self) -> dict[str, Callable[[], Awaitable[Callable[[], Awaitable[None]]]]]:
        return {
            "killed": self._kill_active,
            "frozen": self._freeze_active,
            "cut off": self._cut_active,
            "PostgreSQL restarted": self._restart_postgres,
            "handed over": self._hand_over,
        }

    async def _kill_active(self) -> Callable[[], Awaitable[None]]:
        os.kill(self.active.pid, SIGKILL)
        return _nothing

    async def _freeze_active(self) -> Callable[[], Awaitable[None]]:
        pid, until = self.active.pid, time.monotonic() + self.chance.uniform(3, 20)
        os.kill(pid, SIGSTOP)

        async def thaw() -> None:
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            os.kill(pid, SIGCONT)

        return thaw

    async def _cut_active(self) -> Callable[[], Awaitable[None]]:
        line, until = self.active.line, time.monotonic() + self.chance.uniform(3, 8)
        line.is_open.clear()

        async def heal() -> None:
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            line.is_open.set()

        return heal

    async def _restart_postgres(self) -> Callable[[], Awaitable[None]]:
        pid = read_pid(self._pid_file)
        assert pid is not None
        os.kill(pid, SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(self._servers.restart_dead):  # noqa: ASYNC110
                await asyncio.sleep(STEP_S)
        return _nothing

    async def _hand_over(self) -> Callable[[], Awaitable[None]]:
        settings = self._settings | {"QTS_DATABASE__URL": self._url}
        clean = {name: text for name, text in os.environ.items() if not name.startswith("QTS_")}
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "qts", "ops", "handover"),
            env={**clean, **settings, "QTS_HOME": str(self.active.folder / "home")},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await command.communicate()
        assert command.returncode == 0, self._logs()
        assert f"process {self.standby.pid} on" in out.decode()
        return _nothing

    async def _first_after(self, epoch: int, struck: float) -> float:
        """Return when the venue took the first order of a later epoch."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    later = [each for each in self.placed if each.at > struck]
                    if later:
                        epochs = await self.epochs()
                        for each in later:
                            if epochs.get(each.identifier, 0) > epoch:
                                return each.at
                    await asyncio.sleep(STEP_S)
        raise AssertionError(f"no takeover: {self._logs()}")

    def _logs(self) -> str:
        runs = [each.run for each in (self.active, self.standby) if each.run is not None]
        return "\n---\n".join(f"{run.output[-1500:]}\n{run.errors[-4000:]}" for run in runs)

    async def _swap(self, old: Member, *, handed_over: bool) -> None:
        """The standby is active; the former active run has ended, and stands by again."""
        assert old.run is not None
        code = await asyncio.to_thread(old.run.end)
        errors = old.run.errors
        is_lost = code == 1 and "was taken by" in errors
        assert is_lost or code == (0 if handed_over else -SIGKILL), (code, errors[-4000:])
        self.active, self.standby = self.standby, old
        await self._ready(self.active)
        await self._start(old, "--standby")
        await self._stands_by(old)

    # The end

    async def end(self) -> None:
        """Stop both; wait for what is unresolved first."""
        await self.settle()
        for member in (self.standby, self.active):
            assert member.run is not None
            code = await asyncio.to_thread(member.run.end, SIGTERM)
            assert code == 0, f"{member.name} ended with {code}: {self._logs()}"

    async def wrong_epochs(self) -> list[str]:
        """Return orders of an epoch that the venue took after the first of a later one."""
        epochs, latest, wrong = await self.epochs(), 0, list[str]()
        for each in self.placed:
            epoch = epochs.get(each.identifier)
            if epoch is None or epoch < latest:
                wrong.append(f"order {each.identifier} of epoch {epoch} after one of {latest}")
            latest = max(latest, epoch or 0)
        doubled = Counter(each.identifier for each in self.placed)
        return wrong + [f"{each} was sent twice" for each, count in doubled.items() if count > 1]


async def _nothing() -> None:
    pass


@asynccontextmanager
async def pair(folder: Path, seed: int) -> AsyncIterator[Pair]:
    async with simulated_account("upbit", MARKET) as venue, AsyncExitStack() as stack:
        made = Pair(venue, folder, random.Random(seed))  # noqa: S311 - repeatable on purpose
        stack.push_async_callback(made.close)
        await made.open(folder)
        yield made
