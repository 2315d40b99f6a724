"""The dashboard beside a run: a process of its own, told by a pipe where everything is.

The run holds the socket that listens, so its address is known before the process is up and stays
the same when the process has to be started again. It is never a reason for the run to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

from qts import telemetry
from qts.app.servers import cache_url, database_url, resolve_home
from qts.cache import CacheConfig
from qts.cache.redis import RedisStore
from qts.config import Config, settings_of
from qts.dashboard import (
    DashboardConfig,
    DashboardSources,
    Role,
    Tokens,
    address_of,
    bind_socket,
    serve,
)
from qts.database import Database, DatabaseConfig
from qts.domain import Clock, OperationError, RefusedError, Secret
from qts.embedded import Home
from qts.embedded.process import Launch, spawn, stop
from qts.notify import public_key, read_key

log = telemetry.logger("app")

ADDRESS = "dashboard.address"  # in the home, while a run has one
WATCH_S = 1.0
PATIENCE_MS = 2000  # nobody trades on the answer
NICE = 10  # beside a run: what trades gets the processor first


class DashboardLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """All that the process needs to know; secrets go through a pipe, never through a command."""

    home: Path
    record: Path
    dashboard: DashboardConfig
    database: DatabaseConfig
    cache: CacheConfig
    settings: list[dict[str, Any]]
    push_key: str = ""
    fd: int | None = None  # of the socket that listens

    @classmethod
    def of(cls, config: Config, home: Home, fd: int | None = None) -> Self:
        patient = msgspec.structs.replace(
            config.cache,
            url=cache_url(config, home),
            socket_timeout_ms=PATIENCE_MS,
            connect_timeout_ms=PATIENCE_MS,
        )
        return cls(
            home=home.path,
            record=config.feed.record_dir or home.path / "record",
            dashboard=config.dashboard,
            database=msgspec.structs.replace(
                config.database, url=database_url(config, home), pool_min=1, pool_max=5
            ),
            cache=patient,
            settings=effective_settings(config),
            push_key=_push_key(config),
            fd=fd,
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=_open_text)

    @classmethod
    def decode(cls, text: bytes) -> DashboardLaunch:
        try:
            return msgspec.json.decode(
                text, type=DashboardLaunch, dec_hook=lambda kind, value: kind(value)
            )
        except msgspec.DecodeError as error:
            raise RefusedError(f"what was handed over is not understood: {error}") from None


def effective_settings(config: Config) -> list[dict[str, Any]]:
    """Every setting as a page may show it: secrets are three stars."""
    return [
        {
            "name": setting.name,
            "value": _shown(setting.of(config)),
            "is_default": setting.of(config) == setting.default,
            "description": setting.description,
            "allowed": setting.allowed,
        }
        for setting in settings_of()
    ]


async def serve_dashboard(
    handed: DashboardLaunch, ready: asyncio.Future[str] | None = None
) -> None:
    """Until cancelled."""
    tokens = Tokens.of(handed.home)
    config = handed.dashboard
    if handed.fd is not None:
        os.nice(NICE)
    listening = socket.socket(fileno=handed.fd) if handed.fd is not None else bind_socket(config)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listening.close)
        database = await stack.enter_async_context(
            Database.open(handed.database.url or Secret(""), handed.database)
        )
        store = await stack.enter_async_context(
            RedisStore.open(handed.cache.url or Secret(""), handed.cache)
        )
        sources = DashboardSources(
            database=database,
            store=store,
            cache=handed.cache,
            home=handed.home,
            record=handed.record,
            settings=handed.settings,
            push_key=handed.push_key,
        )
        await stack.enter_async_context(serve(config, sources, tokens, listening))
        address = address_of(config, listening)
        if ready is not None:
            ready.set_result(tokens.link(address) if tokens.fresh else address)
        await asyncio.Event().wait()


def dashboard_launch(config: Config) -> DashboardLaunch:
    """For a dashboard by itself: on the servers the settings name, or on those of a QTS at work."""
    home = resolve_home(config)
    if home.holder() is None and (config.database.url is None or config.cache.url is None):
        raise RefusedError(
            f"there is nothing to show: no QTS runs on home {home.path}; start one with qts run, "
            "or name database.url and cache.url in the settings"
        )
    return DashboardLaunch.of(config, home)


def login_link(config: Config, word: str, *, anew: bool = False) -> str:
    """To the dashboard that runs on the home, or that would."""
    if word.upper() not in Role.__members__:
        raise RefusedError(f"{word!r} is no role; expected read, trade or admin")
    home, settings = resolve_home(config), config.dashboard
    tokens = Tokens.of(home.path, anew=anew)
    try:
        address = (home.path / ADDRESS).read_text().strip()
    except FileNotFoundError:
        address = f"{settings.scheme}://{settings.host}:{settings.port}"
    return tokens.link(address, Role[word.upper()])


class DashboardProcess:
    """Use as an async context; `address` is where it is, with the login at its first start."""

    def __init__(self, config: Config, home: Home, clock: Clock) -> None:
        self._config = config
        self._home = home
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.address = ""
        self.link = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def __aenter__(self) -> Self:
        config = self._config.dashboard
        if not config.enabled:
            return self
        try:
            self._listening = bind_socket(config)
        except RefusedError as error:
            log.error("there is no dashboard", error=str(error))
            return self
        tokens = Tokens.of(self._home.path)
        self.address = address_of(config, self._listening)
        (self._home.path / ADDRESS).write_text(f"{self.address}\n")
        self.link = tokens.link(self.address, Role.ADMIN) if tokens.fresh else ""
        await asyncio.to_thread(self._start)
        self._watching = asyncio.create_task(self._watch(), name="dashboard")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is None:
            return
        self._watching.cancel()
        await asyncio.wait({self._watching})
        if self._process is not None:
            await asyncio.to_thread(stop, self._process, ((signal.SIGTERM, 5.0),))
        self._listening.close()
        (self._home.path / ADDRESS).unlink(missing_ok=True)

    def _start(self) -> None:
        fd = self._listening.fileno()
        self._process = spawn(
            Launch(
                argv=[sys.executable, "-m", "qts", "dashboard", "--handed"],
                log=self._home.log / "dashboard.log",
                stdin=DashboardLaunch.of(self._config, self._home, fd).encode(),
                fds=(fd,),
                death_signal=signal.SIGKILL,
            )
        )

    async def _watch(self) -> None:
        """Started again when it ends, more and more patiently."""
        wait_s = WATCH_S
        while True:
            await self._clock.sleep(wait_s)
            if self._process is not None and self._process.poll() is None:
                wait_s = WATCH_S
                continue
            wait_s = min(60.0, wait_s * 2)
            log.error("the dashboard ended and is started again", log=str(self._home.log))
            try:
                await asyncio.to_thread(self._start)
            except OperationError as error:
                log.error("the dashboard could not be started", error=str(error))


def _push_key(config: Config) -> str:
    """The public half, which browsers are given."""
    key = config.notify.push.key
    return public_key(read_key(key)) if key else ""


def _open_text(value: Any) -> str:
    """For the pipe to our own child, and for nothing else."""
    return value.reveal() if isinstance(value, Secret) else str(value)


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _shown(item) for name, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float) else str(value)
