"""The dashboard process of a run: launched with its settings on a pipe, restarted when it ends.

The run holds the listening socket: the address is known before the process is up and stays the same
after a restart. A failing dashboard never ends the run.
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
from qts.app.account_configs import run_accounts
from qts.app.servers import cache_url, database_url, has_cache, resolve_home
from qts.cache import CacheConfig, CacheStore
from qts.config import Config, settings_of
from qts.dashboard import (
    DashboardConfig,
    Role,
    Tokens,
    address_of,
    bind_socket,
)
from qts.database import Database, DatabaseConfig, require_schema
from qts.domain import AccountKey, Clock, OperationError, RefusedError, Secret
from qts.embedded import Home
from qts.embedded.process import Launch, spawn, stop
from qts.notify import public_key, read_key
from qts.outbox import StreamConfig

log = telemetry.logger("app")

ADDRESS = "dashboard.address"  # in the home, while a run has one
CHECK_INTERVAL_S = 1.0
MAX_RESTART_BACKOFF_S = 60.0
CACHE_TIMEOUT_MS = 2000
NICE = 10  # trading gets the CPU first


class DashboardLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process; secrets go through a pipe, never through arguments."""

    home: Path
    record: Path
    dashboard: DashboardConfig
    database: DatabaseConfig
    cache: CacheConfig
    account: AccountKey
    streams: dict[str, StreamConfig]
    settings: list[dict[str, Any]]
    push_key: str = ""
    fd: int | None = None  # the listening socket
    others: tuple[AccountKey, ...] = ()  # further accounts, of a run on several venues

    @classmethod
    def of(cls, config: Config, home: Home, fd: int | None = None) -> Self:
        account, *others = run_accounts(config).values()
        cache = msgspec.structs.replace(
            config.cache.of_account(account.account),
            url=cache_url(config, home) if has_cache(config) else None,
            socket_timeout_ms=CACHE_TIMEOUT_MS,
            connect_timeout_ms=CACHE_TIMEOUT_MS,
        )
        return cls(
            home=home.path,
            record=config.feed.record_dir or home.path / "record",
            dashboard=config.dashboard,
            database=msgspec.structs.replace(
                config.database, url=database_url(config, home), pool_min=1, pool_max=5
            ),
            cache=cache,
            account=account,
            streams=config.outbox.streams,
            settings=effective_settings(config),
            push_key=_push_key(config),
            fd=fd,
            others=tuple(others),
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=_revealed)

    @classmethod
    def decode(cls, text: bytes) -> DashboardLaunch:
        try:
            return msgspec.json.decode(
                text, type=DashboardLaunch, dec_hook=lambda kind, value: kind(value)
            )
        except msgspec.DecodeError as error:
            raise RefusedError(f"launch settings do not decode: {error}") from None


def effective_settings(config: Config) -> list[dict[str, Any]]:
    """Return every setting for display; secrets are three stars."""
    return [
        {
            "name": setting.name,
            "value": _shown(setting.of(config)),
            "is_default": setting.of(config) == setting.default,
            "description": setting.description,
            "allowed": setting.allowed,
        }
        for setting in settings_of(config)
    ]


async def serve_dashboard(
    launch: DashboardLaunch, ready: asyncio.Future[str] | None = None
) -> None:
    """Serve until cancelled or the status cannot be followed; `ready` gets the address."""
    # Here: a run and `qts dashboard --link` import this module, and do not serve.
    from qts.cache.redis import RedisStore
    from qts.cache.store import MemoryStore
    from qts.dashboard import DashboardSources, serve

    tokens = Tokens.of(launch.home)
    config = launch.dashboard
    if launch.fd is not None:
        os.nice(NICE)
    listening = socket.socket(fileno=launch.fd) if launch.fd is not None else bind_socket(config)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listening.close)
        database = await stack.enter_async_context(
            Database.open(launch.database.url or Secret(""), launch.database)
        )
        if launch.fd is None:
            await require_schema(database)
        store: CacheStore = MemoryStore()  # no live status: the database has what runs store
        if launch.cache.url is not None:
            store = await stack.enter_async_context(RedisStore.open(launch.cache.url, launch.cache))
        sources = DashboardSources(
            database=database,
            store=store,
            cache=launch.cache,
            account=launch.account,
            streams=launch.streams,
            home=launch.home,
            record=launch.record,
            settings=launch.settings,
            push_key=launch.push_key,
            others=launch.others,
        )
        dashboard = await stack.enter_async_context(serve(config, sources, tokens, listening))
        address = address_of(config, listening)
        if ready is not None:
            ready.set_result(_shown_address(tokens, address, sys.stdout.isatty()))
        await dashboard.failed.wait()
        raise OperationError("dashboard: reading the status failed; see the log")


def _shown_address(tokens: Tokens, address: str, on_terminal: bool) -> str:
    """Return the address, at the first start with how to log in; the link only on a terminal."""
    if not tokens.is_new:
        return address
    return tokens.link(address) if on_terminal else f"{address}, log in: qts dashboard --link admin"


def dashboard_launch(config: Config) -> DashboardLaunch:
    """Return the launch of a separate dashboard, on the settings' servers or a running QTS."""
    home = resolve_home(config)
    if home.holder() is None and config.database.url is None:
        raise RefusedError(
            f"nothing to show: no QTS runs on home {home.path}; start one with qts run, "
            "or name database.url in the settings"
        )
    return DashboardLaunch.of(config, home)


def login_link(config: Config, role: str, *, renew: bool = False) -> str:
    """Return the login link of the home's dashboard; `renew` replaces its tokens."""
    if role.upper() not in Role.__members__:
        raise RefusedError(f"{role!r} is not a role; expected read, trade or admin")
    home, settings = resolve_home(config), config.dashboard
    tokens = Tokens.of(home.path, renew=renew)
    try:
        address = (home.path / ADDRESS).read_text().strip()
    except FileNotFoundError:
        address = f"{settings.scheme}://{settings.host}:{settings.port}"
    return tokens.link(address, Role[role.upper()])


class DashboardProcess:
    """Async context manager; `link` is the login link, at the first start only."""

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
            log.error("dashboard not started", error=str(error))
            return self
        tokens = Tokens.of(self._home.path)
        self.address = address_of(config, self._listening)
        (self._home.path / ADDRESS).write_text(f"{self.address}\n")
        self.link = tokens.link(self.address, Role.ADMIN) if tokens.is_new else ""
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
                argv=[sys.executable, "-m", "qts", "dashboard", "--launched"],
                log=self._home.log / "dashboard.log",
                stdin=DashboardLaunch.of(self._config, self._home, fd).encode(),
                fds=(fd,),
                death_signal=signal.SIGKILL,
            )
        )

    async def _watch(self) -> None:
        """Restart the process when it ends, with growing backoff."""
        wait_s = CHECK_INTERVAL_S
        while True:
            await self._clock.sleep(wait_s)
            if self._process is not None and self._process.poll() is None:
                wait_s = CHECK_INTERVAL_S
                continue
            wait_s = min(MAX_RESTART_BACKOFF_S, wait_s * 2)
            log.error("dashboard ended; restarting", log=str(self._home.log))
            try:
                await asyncio.to_thread(self._start)
            except OperationError as error:
                log.error("dashboard restart failed", error=str(error))


def _push_key(config: Config) -> str:
    """Return the public key for browsers."""
    key = config.notify.push.key
    return public_key(read_key(key)) if key else ""


def _revealed(value: Any) -> str:
    """Return a secret in the open: for the pipe to the child process alone."""
    return value.reveal() if isinstance(value, Secret) else str(value)


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _shown(item) for name, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float) else str(value)
