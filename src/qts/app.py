"""The composition root: turns settings into a running system. Only this file names adapters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Literal, Protocol

import msgspec
import uvloop
from redis.asyncio import Redis

from qts import telemetry
from qts.cache.redis import RedisStore, connect
from qts.config import Config
from qts.database import Database, migrate, status
from qts.domain import Clock, Secret, SystemClock, Unreachable
from qts.embedded import Home, Servers, default_home

WATCH_INTERVAL_S = 0.2  # how soon a dead server is noticed

log = telemetry.logger("app")


class Service(msgspec.Struct, frozen=True):
    """One server we use, as the owner sees it."""

    name: str
    version: str
    where: str
    pid: int | None  # of our own child; None where the settings name a server


class Ready(msgspec.Struct, frozen=True):
    """What runs where, once everything answers."""

    home: str
    services: list[Service]
    schema_version: int
    migrations_applied: int
    seconds: float


class Summary(msgspec.Struct, frozen=True):
    """How a run ended; the JSON that scripts rely on."""

    verdict: Literal["OK", "FAILED"]
    seconds: float
    services: list[Service]
    schema_version: int
    restarts: list[str]


class Watcher(Protocol):
    """Whoever is told how a run goes."""

    def starting(self) -> None: ...
    def ready(self, ready: Ready) -> None: ...
    def stopping(self) -> None: ...


def build(config: Config, clock: Clock | None = None) -> App:
    return App(config, _home(config), clock or SystemClock())


class App:
    """The whole system on one home."""

    def __init__(self, config: Config, home: Home, clock: Clock) -> None:
        self.config = config
        self.home = home
        self._clock = clock
        self._stop = asyncio.Event()
        self._restarts: list[str] = []

    def run(self, seconds: float | None, watcher: Watcher) -> Summary:
        """Serve until a signal comes or the time is up, then stop cleanly."""
        telemetry.configure(self.config.telemetry)
        try:
            return uvloop.run(self._run(seconds, watcher))
        finally:
            telemetry.shutdown()

    async def _run(self, seconds: float | None, watcher: Watcher) -> Summary:
        began_ns = self._clock.monotonic_ns()
        watcher.starting()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(_signals_set(self._stop))
            servers = await stack.enter_async_context(_own_servers(self.home, self.config))
            watching = asyncio.create_task(self._watch(servers))
            stack.push_async_callback(_end, watching)
            database = await stack.enter_async_context(
                Database.open(database_url(self.config, self.home), self.config.database)
            )
            cache = await connect(cache_url(self.config, self.home), self.config.cache)
            stack.push_async_callback(cache.aclose)
            applied = await migrate(database)
            services = await self._services(servers, database, cache)
            schema = (await status(database)).current
            watcher.ready(
                Ready(str(self.home.path), services, schema, len(applied), self._since(began_ns))
            )
            await self._until_stopped(seconds, watching)
            watcher.stopping()
        return Summary("OK", self._since(began_ns), services, schema, self._restarts)

    async def _until_stopped(self, seconds: float | None, watching: asyncio.Task[None]) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait(
            {stopped, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        stopped.cancel()
        if watching in done:
            watching.result()  # a server died and would not start again

    async def _watch(self, servers: Servers) -> None:
        """Start again whatever dies. Ends only by an error: then there is nothing to run on."""
        while True:
            await self._clock.sleep(WATCH_INTERVAL_S)
            for name in await asyncio.to_thread(servers.restart_dead):
                self._restarts.append(name)
                log.error("a server died and was started again", server=name)

    async def _services(self, servers: Servers, database: Database, cache: Redis) -> list[Service]:
        pids = {server["name"]: server["pid"] for server in servers.describe()}
        ping = await database.ping()
        info = await cache.info("server")
        kind = "valkey" if "valkey_version" in info else "redis"
        return [
            # Debian's server adds its package's version to its own.
            Service(
                "postgres",
                ping.server_version.split()[0],
                database.where,
                _pid(pids.get("postgres")),
            ),
            Service(kind, str(info[f"{kind}_version"]), _place(cache), _pid(pids.get("valkey"))),
        ]

    def _since(self, began_ns: int) -> float:
        return round((self._clock.monotonic_ns() - began_ns) / 1e9, 3)


def database_url(config: Config, home: Home) -> Secret:
    return config.database.url or home.postgres_url()


def cache_url(config: Config, home: Home) -> Secret:
    return config.cache.url or home.valkey_url()


@contextlib.asynccontextmanager
async def open_database(config: Config) -> AsyncIterator[Database]:
    """The database for one short errand: the settings' own, that of a QTS which runs on this
    home, or an embedded one started for the occasion."""
    async with contextlib.AsyncExitStack() as stack:
        home = _home(config)
        if config.database.url is None and home.holder() is None:
            await stack.enter_async_context(_started(Servers(home, config.embedded, valkey=False)))
        yield await stack.enter_async_context(
            Database.open(database_url(config, home), config.database)
        )


@contextlib.asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[RedisStore]:
    """The cache for one short errand: the settings' own, or that of a QTS on this home."""
    home = _home(config)
    if config.cache.url is None and home.holder() is None:
        raise Unreachable(
            f"there is no cache to look into: no QTS runs on home {home.path}, "
            "and the settings give no cache.url"
        )
    # Nobody trades on the answer: it may take its time.
    patient = msgspec.structs.replace(config.cache, socket_timeout_ms=5000, connect_timeout_ms=5000)
    async with RedisStore.open(cache_url(config, home), patient) as store:
        yield store


def _home(config: Config) -> Home:
    return Home.at(config.home or default_home(os.environ))


def _own_servers(home: Home, config: Config) -> contextlib.AbstractAsyncContextManager[Servers]:
    """The home is ours alone while we run, whether or not a server of ours lives in it."""
    return _started(
        Servers(
            home,
            config.embedded,
            postgres=config.database.url is None,
            valkey=config.cache.url is None,
        )
    )


@contextlib.asynccontextmanager
async def _started(servers: Servers) -> AsyncIterator[Servers]:
    try:
        await asyncio.to_thread(servers.start)
        yield servers
    finally:
        await asyncio.to_thread(servers.stop)


@contextlib.contextmanager
def _signals_set(event: asyncio.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set the event; a second one is no longer ours, and ends the process."""
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        event.set()
        release()

    def release() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    for number in handled:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        release()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _place(cache: Redis) -> str:
    where = cache.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host')}:{where.get('port')}")


def _pid(value: object) -> int | None:
    return value if isinstance(value, int) else None
