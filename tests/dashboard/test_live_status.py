"""The live status of a run: publishing, reading, and delivery to pages."""

from __future__ import annotations

import asyncio
import re
import resource
import socket as sockets
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSCloseCode, WSMsgType
from hypothesis import given
from hypothesis import strategies as st

from qts.app import DashboardLaunch, serve_dashboard
from qts.brokers import AccountLease
from qts.cache import CacheConfig
from qts.config import Config
from qts.dashboard import DashboardConfig, LiveStatusSource, read_live
from qts.dashboard.handlers import MAX_ENTRIES, QueryCache
from qts.dashboard.hub import Hub
from qts.dashboard.live_status import LiveReading, encode, largest_drops
from qts.dashboard.run_figures import RateMeter
from qts.dashboard.terminal.tables import banner, is_normal
from qts.database import Database, DatabaseConfig
from qts.domain import ManualClock, OperationError, Secret, SystemClock
from qts.embedded import Home
from qts.risk import FailSafe
from qts.verify.page_clients import UNREAD
from tests.accounts import PAPER
from tests.dashboard import statuses
from tests.dashboard.conftest import Client, Site
from tests.dashboard.timing import TIMEOUT_S, fastest


async def test_the_published_status_can_be_read(site: Site) -> None:
    assert await read_live(site.store, site.prefix) is None
    published = await statuses.publish(site.store, site.prefix)
    assert await read_live(site.store, site.prefix) == published


async def test_the_published_status_expires(site: Site, valkey_url: Any) -> None:
    from redis.asyncio import Redis

    await statuses.publish(site.store, site.prefix)
    async with Redis.from_url(valkey_url.reveal()) as client:
        left_ms = await client.pttl(f"{site.prefix}live")
    assert 0 < left_ms <= 5000


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**6)), min_size=2, max_size=30))
def test_a_rate_is_never_negative_and_of_the_last_seconds(steps: list[tuple[int, int]]) -> None:
    rates, now, count, past = RateMeter(2.0), 0, 0, []
    for wait_ns, more in steps:
        now, count = now + wait_ns, count + more
        past.append((now, count))
        rate = rates.rates(now, {"P0": count})["P0"]
        assert rate >= 0
        assert (
            rate
            <= 1
            + max((count - before) / ((now - then) / 1e9) for then, before in past if then < now)
            if len(past) > 1
            else rate == 0
        )


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.text(), st.integers(1, 99))))
def test_the_largest_drops_are_published(drops: dict[str, dict[str, int]]) -> None:
    found = largest_drops(drops, 5)
    published = sorted(count for keys in found.values() for count in keys.values())
    every = sorted(count for keys in drops.values() for count in keys.values())
    assert published == every[-5:]


async def test_concurrent_requests_share_a_result() -> None:
    clock = ManualClock()
    query_cache, calls = QueryCache(clock), []

    async def query() -> bytes:
        calls.append(1)
        await asyncio.sleep(0)
        return b"x"

    assert await asyncio.gather(*(query_cache.get("q", query) for _ in range(10))) == [b"x"] * 10
    assert len(calls) == 1
    await clock.advance(1)
    await query_cache.get("q", query)
    assert len(calls) == 2
    for number in range(3 * MAX_ENTRIES):
        await query_cache.get(f"q{number}", query)
    assert len(query_cache._entries) <= MAX_ENTRIES


async def test_a_failed_result_is_not_cached() -> None:
    query_cache = QueryCache(ManualClock())
    tried = []

    async def query() -> bytes:
        tried.append(1)
        if len(tried) == 1:
            raise RuntimeError("unavailable")
        return b"x"

    (first,) = await asyncio.gather(query_cache.get("q", query), return_exceptions=True)
    assert isinstance(first, RuntimeError)
    assert await query_cache.get("q", query) == b"x"


async def state(socket: Any) -> dict[str, Any]:
    await socket.send_str("next")
    message = await socket.receive_json(timeout=TIMEOUT_S)
    found: dict[str, Any] = message["state"]
    return found


async def test_a_page_shows_the_run_and_its_end(site: Site) -> None:
    async with site.connect() as operator, operator.socket() as socket:
        assert (await state(socket))["live"] is None
        site.run()
        while None in ((message := await state(socket))["live"], message["safety"]):
            pass
        assert message["live"]["ticks"] == 123_456
        assert message["safety"]["state"] == "NORMAL"
        await site.stop()
        await site.store.delete([f"{site.prefix}live"])  # as a run does on a normal end
        async with asyncio.timeout(TIMEOUT_S):
            while (message := await state(socket))["run"] != "ended":
                pass
        assert message["live_age_s"] > 3  # the last status is kept, as an old one
        assert message["live"]["notices"]
        assert message["verdict"]["en"].startswith("QTS does not run, its last status is")
        assert message["safety"]["state"] == "NORMAL"  # read from the database


async def test_a_new_page_receives_the_history_of_its_charts(site: Site) -> None:
    site.run()
    async with site.connect() as operator:
        async with operator.socket() as socket:
            while (await state(socket))["live"] is None:
                pass
        async with operator.socket() as socket:
            await socket.send_str("next")
            first = await socket.receive_json(timeout=TIMEOUT_S)
    assert len(first["history"][0]) == 11


async def test_the_hub_stops_while_an_update_arrives(site: Site) -> None:
    hub = Hub(site.store, site.prefix, site.database, [PAPER], SystemClock())
    for _ in range(5):
        hub_task = asyncio.create_task(hub.run())
        while hub.version < 2:
            await hub.wait_newer(hub.version)
        await asyncio.sleep(0.05)  # it waits for the next poll
        hub.refresh()
        hub_task.cancel()
        done, _ = await asyncio.wait({hub_task}, timeout=TIMEOUT_S)
        assert done


async def test_nothing_waits_for_a_hub_that_has_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qts.dashboard.hub.KEEPALIVE_S", 1000.0)
    hub = Hub(site.store, site.prefix, site.database, [PAPER], SystemClock())
    hub_task = asyncio.create_task(hub.run())
    await hub.wait_read()
    waiting = asyncio.create_task(hub.wait_newer(hub.version))
    await asyncio.sleep(0)
    hub_task.cancel()
    await asyncio.wait_for(waiting, TIMEOUT_S)


# --- pages that do not read ---------------------------------------------------------------------


@asynccontextmanager
async def non_reading(site: Site, client: Client) -> AsyncIterator[sockets.socket]:
    """Open a socket that requests states and never reads, with the smallest receive buffer."""
    loop = asyncio.get_running_loop()
    host, port = site.address.split("//")[1].split(":")
    connection = sockets.socket()
    connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1024)
    connection.setblocking(False)
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookie.items())
    try:
        await loop.sock_connect(connection, (host, int(port)))
        request = (
            f"GET /api/live HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {site.address}\r\n"
            f"Cookie: {cookie}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await loop.sock_sendall(connection, request.encode() + 1000 * UNREAD)
        yield connection
    finally:
        connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_ten_pages_and_one_that_never_reads_take_little_memory(site: Site) -> None:
    site.run(trades="x" * 200_000)
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(site.connect())
        pages = [await stack.enter_async_context(operator.socket()) for _ in range(10)]
        await stack.enter_async_context(non_reading(site, operator))
        for page in pages:
            while (await state(page))["live"] is None:
                pass
        before = resident()
        for _ in range(8):  # two seconds of states: 8 x 200 kB for each page
            for page in pages:
                assert (await state(page))["live"] is not None
        grown = resident() - before
        assert grown < 20e6, f"{grown / 1e6:.0f} MB more"
        assert len(site.dashboard._sockets) == 11  # the one that never reads has not timed out yet


async def test_a_page_that_never_reads_is_disconnected(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("qts.dashboard.server.SEND_TIMEOUT_S", 0.5)
    site.run(trades="x" * 400_000)
    async with site.connect() as operator, operator.socket() as page, non_reading(site, operator):
        while len(site.dashboard._sockets) < 2:
            await state(page)
        async with asyncio.timeout(TIMEOUT_S):
            while len(site.dashboard._sockets) > 1:
                await state(page)
        (left,) = site.dashboard._sockets
        assert not left.closed
        assert (await state(page))["live"] is not None  # the reading page still receives updates


async def test_the_number_of_pages_is_limited(site: Site, monkeypatch: Any) -> None:
    import aiohttp

    monkeypatch.setattr("qts.dashboard.server.MAX_SOCKETS", 1)
    async with site.connect() as operator, operator.socket() as page:
        await state(page)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await operator.socket()
        assert refused.value.status == 503


async def test_a_change_of_the_fail_safe_is_delivered_at_once(site: Site) -> None:
    site.run()
    async with site.connect() as operator, operator.socket() as socket:
        while (await state(socket))["safety"] is None:
            pass
        safety = FailSafe(site.database, PAPER)

        async def tripped() -> None:
            await safety.release("test", "checked")
            await safety.trip("FS070", "positions differ")
            while (message := await state(socket))["safety"]["state"] != "FAIL":
                pass
            assert message["safety"]["code"] == "FS070"

        assert await fastest(tripped) < 1.0


def test_the_pages_ship_with_the_package() -> None:
    from qts.dashboard.server import PAGE

    library = {"lightweight-charts.js", "NOTICE"}
    names = {path.name for path in Path(PAGE).iterdir()}
    assert {"index.html", "login.html", "app.js", "style.css"} | library <= names
    for name in names - library:
        text = (Path(PAGE) / name).read_text("utf-8")
        assert "innerHTML" not in text
        links = {"https://www.tradingview.com/"}  # a link, which its licence requires
        assert set(re.findall(r"https://[^\"\s]*", text)) <= links, name


async def test_a_status_that_no_longer_changes_says_its_age(site: Site, database: Database) -> None:
    """The run keeps a status readable while its lane P3 is paused."""
    old = time.time() - 60
    await statuses.publish(site.store, site.prefix, ttl_ms=60_000, at=old)
    async with AccountLease(database, PAPER, "home", SystemClock(), is_live=False):
        async with site.connect() as client, client.socket() as socket:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    message = await state(socket)
                    if message["run"] == "silent" and message["live_age_s"] is not None:
                        break
        assert 60 <= message["live_age_s"] < 60 + TIMEOUT_S
        assert message["verdict"]["state"] == "unknown"
        assert "a run holds the account, but its last status is 6" in message["verdict"]["en"]
        source = LiveStatusSource(site.store, database, site.prefix, PAPER)
        snapshot = await source.read()
    assert snapshot.trouble.startswith("status is 6")
    assert banner(snapshot)[0].startswith(snapshot.trouble)
    assert not is_normal(snapshot)


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0, 100), max_size=10))
async def test_a_status_is_never_younger_than_the_time_it_is_known(
    ahead_s: float, waits: list[float]
) -> None:
    """Whatever the clock of the run shows; while it shows ours, the age counts from there."""
    clock = ManualClock()
    assert LiveReading(clock).age_s is None
    reading = LiveReading(clock)
    at = clock.now().timestamp() + ahead_s
    text = encode(statuses.live(at=at))
    assert reading.update(text)
    known_s = 0.0
    for wait in waits:
        await clock.advance(wait)
        known_s += wait
        assert not reading.update(text)
        age_s = reading.age_s
        assert age_s is not None
        assert age_s >= known_s - 1e-6
        assert age_s >= known_s - ahead_s - 1e-3


async def test_a_lock_that_was_read_before_the_last_status_ends_no_run(site: Site) -> None:
    """The database is read once a second; a run may have taken the account since."""
    site.run()  # without a lock, as one that was started after the last reading
    async with site.connect() as operator, operator.socket() as socket:
        while (await state(socket))["run"] != "reporting":
            pass
        hub = site.dashboard.hub
        hub._stored_ns = 0
        hub._live.status = None
        assert hub._observe().run == "unknown"
        await site.stop()
        async with asyncio.timeout(TIMEOUT_S):
            while (await state(socket))["run"] != "ended":
                pass


async def test_a_failed_reader_ends_the_dashboard(
    database_url: Secret, valkey_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run starts it again (test_run.py); a page of a dead reader would stay as it was."""

    async def fail(_hub: Hub) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Hub, "_follow_safety", fail)
    config = Config(
        database=DatabaseConfig(url=database_url), cache=CacheConfig(url=valkey_url),
        dashboard=DashboardConfig(port=0),
    )  # fmt: skip
    launch = DashboardLaunch.of(config, Home.at(tmp_path / "home"))
    with pytest.raises(OperationError, match="reading the status failed"):
        async with asyncio.timeout(TIMEOUT_S):
            await serve_dashboard(launch)


async def test_a_page_of_a_failed_reader_is_disconnected(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.connect() as operator, operator.socket() as socket:
        await state(socket)

        def fail(_text: str | None) -> bool:
            raise RuntimeError("a bug")

        monkeypatch.setattr(site.dashboard.hub, "_take", fail)
        async with asyncio.timeout(TIMEOUT_S):
            await site.dashboard.failed.wait()
        await socket.send_str("next")
        while (message := await socket.receive(timeout=TIMEOUT_S)).type != WSMsgType.CLOSE:
            pass
        assert message.data == WSCloseCode.GOING_AWAY
