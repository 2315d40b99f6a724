"""A dashboard on real servers, its HTTP clients, and a real browser."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from qts.brokers import open_account
from qts.cache import CacheConfig, CacheStore
from qts.cache.redis import RedisStore
from qts.dashboard import (
    Dashboard,
    DashboardConfig,
    DashboardSources,
    Role,
    Tokens,
    address_of,
    bind_socket,
    serve,
)
from qts.dashboard.session import COOKIE
from qts.database import Database
from qts.domain import Secret, UnreachableError
from qts.outbox import OutboxConfig
from tests.accounts import PAPER
from tests.dashboard import statuses
from tests.dashboard.chromium import Chromium, NotFoundError, find
from tests.no_skips import NO_BROWSER

_numbers = itertools.count(1)


class Site:
    """A dashboard; `connect` returns a client that is logged in."""

    def __init__(self, dashboard: Dashboard, address: str, tokens: Tokens, home: Path) -> None:
        self.dashboard = dashboard
        self.address = address
        self.tokens = tokens
        self.home = home
        self.database: Database
        self.store: CacheStore
        self.prefix = ""
        self.record = home / "record"
        self._publishing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def connect(
        self, role: Role | None = Role.ADMIN, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Client]:
        jar = aiohttp.CookieJar(unsafe=True)
        connector = aiohttp.TCPConnector(ssl=tls or True)
        session = aiohttp.ClientSession(self.address, cookie_jar=jar, connector=connector)
        async with session:
            client = Client(session, self.address)
            if role is not None:
                await client.login(self.tokens.token(role).reveal())
            yield client

    def run(self, **more: Any) -> None:
        """Publish the status of a run until `stop`, as a run does: a failed write is no end."""

        async def publish_forever() -> None:
            while True:
                with suppress(UnreachableError):
                    await statuses.publish(self.store, self.prefix, **more)
                await asyncio.sleep(0.25)

        self._publishing = asyncio.create_task(publish_forever())

    async def stop(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            with suppress(asyncio.CancelledError):
                await self._publishing
            self._publishing = None


class Client:
    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.client = session
        self.address = address
        self.csrf = ""

    async def login(self, token: str) -> int:
        async with self.client.post(
            "/login", json={"token": token}, headers={"Origin": self.address}
        ) as reply:
            status = reply.status
        if status == 200:
            self.csrf = (await self.get("/api/me"))["csrf"]
        return status

    @property
    def cookie(self) -> dict[str, str]:
        found = self.client.cookie_jar.filter_cookies(URL(self.address))
        return {COOKIE: found[COOKIE].value}

    async def get(self, path: str) -> Any:
        async with self.client.get(path) as reply:
            body = await reply.read()
            assert reply.status == 200, f"{path}: {reply.status} {body!r}"
            return msgspec.json.decode(body)

    async def status(self, path: str, method: str = "GET", **headers: str) -> int:
        async with self.client.request(
            method, path, headers=headers, allow_redirects=False
        ) as reply:
            await reply.read()
            return reply.status

    async def act(self, **action: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Origin": self.address, "X-QTS-CSRF": self.csrf}
        async with self.client.post("/api/action", json=action, headers=headers) as reply:
            return reply.status, await reply.json()

    def socket(self, **headers: str) -> Any:
        return self.client.ws_connect("/api/live", headers={"Origin": self.address} | headers)


@asynccontextmanager
async def opened(
    database: Database,
    valkey_url: Secret,
    home: Path,
    config: DashboardConfig,
    prefix: str,
    push_key: str = "",
) -> AsyncIterator[Site]:
    cache = CacheConfig(prefix=prefix, socket_timeout_ms=2000, connect_timeout_ms=2000)
    tokens = Tokens.of(home)
    (home / "record").mkdir(exist_ok=True)
    await open_account(database, PAPER, is_live=False)
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(closing(bind_socket(config)))
        address = address_of(config, listening)
        store = await stack.enter_async_context(RedisStore.open(valkey_url, cache))
        sources = DashboardSources(
            database=database,
            store=store,
            cache=cache,
            account=PAPER,
            streams=OutboxConfig().streams,
            home=home,
            record=home / "record",
            settings=[{"name": "home", "value": "x", "is_default": True, "description": "where"}],
            push_key=push_key,
        )
        async with serve(config, sources, tokens, listening) as dashboard:
            site = Site(dashboard, address, tokens, home)
            site.database, site.store, site.prefix = database, store, prefix
            yield site
            await site.stop()
            await store.delete([prefix + "live"])


@pytest.fixture(scope="session")
def port() -> int:
    """One port for the dashboards of a process: a browser keeps the files of an address.

    Below those that the system gives to connections.
    """
    for each in range(20_000 + os.getpid() % 10_000, 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", each)):
            return each
    raise AssertionError("no port is free")


@pytest.fixture
async def site(
    database: Database, valkey_url: Secret, tmp_path: Path, port: int
) -> AsyncIterator[Site]:
    prefix = f"qts-{os.getpid()}-{next(_numbers)}:"
    async with opened(database, valkey_url, tmp_path, DashboardConfig(port=port), prefix) as found:
        yield found


# --- the browser --------------------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install Chromium, where it must be, before a test's time limit runs."""
    needed = any("chromium" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly:
        find()


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    found = find()
    if isinstance(found, NotFoundError):
        pytest.skip(f"{NO_BROWSER}: {found}")
    return found


@pytest.fixture(scope="session")
async def browser(chromium: Chromium) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.executable,
            args=list(chromium.arguments),
            env={**os.environ, **chromium.environment},
        )
        yield browser
        await browser.close()
