"""An active run and a standby on one PostgreSQL and one simulator, and the faults that strike them.

The judge is the simulator: the order in which it took orders, its order list and its holdings. The
epoch of an order is that of its attempt in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

import asyncpg
from msgspec.structs import replace

from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.embedded.process import read_pid
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.faults import evaluated_ticks, stepped_clock
from tests.faults.lines import Line, open_line
from tests.faults.whole_run import MARKET, PATIENCE_S, RESTARTING, STEP_S, WholeRun
from tests.homes import create_home

MAX_SKEW_S = 0.4  # beside the second that replies are cut to; entries stop at one
SETTLED_S = 3.0  # after a fault: a lease that was lost by it is taken by then
EPOCHS = "SELECT identifier, epoch FROM order_attempt WHERE epoch IS NOT NULL"


class Member:
    """One of the two runs, with its own ways to PostgreSQL and to the venue, and its own clock."""

    def __init__(self, name: str, folder: Path, lines: dict[str, Line]) -> None:
        self.name, self.folder = name, folder / name
        self.lines = lines  # to the database, the venue and its stream
        self.folder.mkdir()
        self.clock = self.folder / "clock"
        stepped_clock.create(self.clock)
        self.run: Run | None = None

    @property
    def pid(self) -> int:
        assert self.run is not None
        return self.run.process.pid


Heal = Callable[[], Awaitable[None]]


class Struck(NamedTuple):
    """What a fault left: it is healed so many seconds later."""

    at: float
    heal: Heal
    after_s: float = 0.0


class Placed(NamedTuple):
    at: float
    identifier: str


class Pair(WholeRun):
    """Two runs; `active` trades, `standby` stands by."""

    def __init__(
        self, venue: SimulatedAccount, folder: Path, chance: random.Random, strategy: str
    ) -> None:
        super().__init__(venue, folder, chance)
        self.evaluated = folder / "evaluated-ticks"
        self._settings |= {
            "QTS_PIPELINE__STRATEGIES": strategy,
            "QTS_RISK__LIMITS__MAX_OPEN_SYMBOLS": "1000",
            "QTS_RISK__STOPS__HOLDING__SCALP_S": "0",  # the clock of a faster market is behind
            evaluated_ticks.VARIABLE: str(self.evaluated),
        }
        self.placed: list[Placed] = []
        self.takeovers: dict[str, list[float]] = {}
        self.lease_s = 0.0  # until the standby had the lease, in the last round
        self.took_over = False
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
        members = [Member(name, folder, await self._lines()) for name in "ab"]
        self.active, self.standby = members
        await self._start(self.active)
        await self._ready(self.active)
        await self._start(self.standby, "--standby")
        await self._stands_by(self.standby)

    async def _lines(self) -> dict[str, Line]:
        options = dict(parse_qsl(urlsplit(self._url).query))
        socket = f"{options['host']}/.s.PGSQL.{options.get('port', 5432)}"
        lines = {
            "database": await open_line(self._stack, lambda: asyncio.open_unix_connection(socket))
        }
        simulator = self.venue.simulator
        for name, url in (("venue", simulator.url), ("stream", simulator.ws_url)):
            host, port = urlsplit(url).hostname, urlsplit(url).port
            lines[name] = await open_line(
                self._stack, functools.partial(asyncio.open_connection, host, port)
            )
        return lines

    def _settings_of(self, member: Member) -> dict[str, str]:
        target, lines = urlsplit(self._url), member.lines
        login, at_sign, _ = target.netloc.rpartition("@")
        netloc = f"{login}{at_sign}127.0.0.1:{lines['database'].port}"
        return self._settings | {
            "QTS_DATABASE__URL": target._replace(netloc=netloc, query="").geturl(),
            "QTS_VENUES__UPBIT__URL": f"http://127.0.0.1:{lines['venue'].port}",
            "QTS_VENUES__UPBIT__STREAM_URL": f"ws://127.0.0.1:{lines['stream'].port}/websocket/v1",
            stepped_clock.VARIABLE: str(member.clock),
        }

    # The runs

    async def _start(self, member: Member, *words: str) -> None:
        settings = self._settings_of(member)
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
        """Strike, wait for the first order of the next epoch, or of this one; return how long."""
        await self.trades(2)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        epoch, old = await self.epoch(), self.active
        self.struck[name] += 1
        fault = await self.faults[name]()
        struck, struck_at = fault.at, time.time() - (time.monotonic() - fault.at)
        healing = asyncio.create_task(self._heal(fault))
        took, self.took_over = await self._first_after(epoch, struck, healing)
        if self.took_over:
            self.takeovers.setdefault(name, []).append(took)
            (row,) = await self.query("SELECT held_at FROM account")
            self.lease_s = row["held_at"].timestamp() - struck_at
        await healing
        (row,) = await self.query("SELECT pid FROM account")
        if row["pid"] != old.pid:  # after a restart of PostgreSQL the active run may be the first
            await self._swap(old, handed_over=name == "handed over")
        return took

    async def _heal(self, fault: Struck) -> float:
        """Return when the fault ended."""
        await asyncio.sleep(fault.after_s)
        await fault.heal()
        return time.monotonic()

    @property
    def faults(self) -> dict[str, Callable[[], Awaitable[Struck]]]:
        return {
            "killed": self._kill_active,
            "killed, clocks apart": self._kill_with_clocks_apart,
            "frozen": self._freeze_active,
            "cut off": self._cut_active,
            "PostgreSQL restarted": self._restart_postgres,
            "handed over": self._hand_over,
            "clock stepped": self._step_clock,
            "active cut off from the venue": lambda: self._cut_venue(self.active),
            "standby cut off from the venue": lambda: self._cut_venue(self.standby),
        }

    async def _kill_active(self) -> Struck:
        at = time.monotonic()
        os.kill(self.active.pid, SIGKILL)
        return Struck(at, _nothing)

    async def _kill_with_clocks_apart(self) -> Struck:
        """Kill the active run while either clock is wrong, by less than forbids an entry."""
        member = self.chance.choice((self.active, self.standby))
        stepped_clock.step(member.clock, self.chance.uniform(-MAX_SKEW_S, MAX_SKEW_S))
        await asyncio.sleep(self.chance.uniform(0, 2))
        return (await self._kill_active())._replace(heal=self._clock_back(member), after_s=2.0)

    async def _step_clock(self) -> Struck:
        """Step either wall clock, far: nothing of the lease follows it."""
        member = self.chance.choice((self.active, self.standby))
        stepped_clock.step(member.clock, self.chance.choice((-1, 1)) * self.chance.uniform(1, 60))
        return Struck(time.monotonic(), self._clock_back(member), self.chance.uniform(1, 6))

    def _clock_back(self, member: Member) -> Heal:
        async def back() -> None:
            stepped_clock.step(member.clock, 0.0)

        return back

    async def _freeze_active(self) -> Struck:
        pid, at = self.active.pid, time.monotonic()
        os.kill(pid, SIGSTOP)

        async def thaw() -> None:
            os.kill(pid, SIGCONT)

        return Struck(at, thaw, self.chance.uniform(1, 20))

    async def _cut_active(self) -> Struck:
        return self._cut(self.active, "database")

    async def _cut_venue(self, member: Member) -> Struck:
        return self._cut(member, "venue", "stream")

    def _cut(self, member: Member, *names: str) -> Struck:
        lines = [member.lines[name] for name in names]
        for line in lines:
            line.is_open.clear()

        async def heal() -> None:
            for line in lines:
                line.is_open.set()

        return Struck(time.monotonic(), heal, self.chance.uniform(1, 8))

    async def _restart_postgres(self) -> Struck:
        pid, at = read_pid(self._pid_file), time.monotonic()
        assert pid is not None
        os.kill(pid, SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(self._servers.restart_dead):  # noqa: ASYNC110
                await asyncio.sleep(STEP_S)
        return Struck(at, _nothing)

    async def _hand_over(self) -> Struck:
        at = time.monotonic()
        out = await self.command("ops", "handover")
        assert f"process {self.standby.pid} on" in out
        return Struck(at, _nothing)

    async def command(self, *words: str) -> str:
        """Run a command of the operator; return what it printed."""
        settings = self._settings | {"QTS_DATABASE__URL": self._url}
        clean = {name: text for name, text in os.environ.items() if not name.startswith("QTS_")}
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "qts", *words),
            env={**clean, **settings, "QTS_HOME": str(self.active.folder / "home")},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await command.communicate()
        assert command.returncode == 0, f"{words}: {out.decode()}\n{self._logs()}"
        return out.decode()

    async def _first_after(
        self, epoch: int, struck: float, healing: asyncio.Task[float]
    ) -> tuple[float, bool]:
        """Return how long the venue took no order, and whether a later epoch sent the next one.

        Where nobody takes over, the time counts from the end of the fault.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    later = [each for each in self.placed if each.at > struck]
                    epochs = await self.epochs() if later else {}
                    for each in later:
                        if epochs.get(each.identifier, 0) > epoch:
                            return each.at - struck, True
                    healed = healing.result() if healing.done() else None
                    if healed is not None and time.monotonic() > healed + SETTLED_S:
                        for each in later:
                            if each.at > healed:
                                return each.at - healed, False
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
async def pair(
    folder: Path, seed: int, strategy: str = "tests.faults.pacer:Pacer", speed: float = 1.0
) -> AsyncIterator[Pair]:
    """Open a pair; a faster market begins in the past, so that its clock is never ahead of ours."""
    market = MARKET
    if speed > 1:
        start = datetime.now(ZoneInfo("Asia/Seoul")).replace(tzinfo=None) - timedelta(hours=5)
        market = replace(MARKET, speed=speed, start=start, symbols=8)
    async with simulated_account("upbit", market) as venue, AsyncExitStack() as stack:
        chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        made = Pair(venue, folder, chance, strategy)
        stack.push_async_callback(made.close)
        await made.open(folder)
        yield made
