"""What a run tells of itself, how it reaches a page, and how little a page can ask of us."""

from __future__ import annotations

import asyncio
import resource
import socket as sockets
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qts.dashboard import read_live
from qts.dashboard.hub import Hub
from qts.dashboard.live_status import most
from qts.dashboard.publisher import RateMeter
from qts.dashboard.queries import KEPT, QueryCache
from qts.domain import ManualClock, SystemClock
from qts.risk import FailSafe
from tests.dashboard import statuses
from tests.dashboard.conftest import Site, Visitor
from tests.dashboard.pace import PATIENCE_S, soonest


async def test_what_is_told_is_what_is_read(site: Site) -> None:
    assert await read_live(site.store, site.prefix) is None
    told = await statuses.tell(site.store, site.prefix)
    assert await read_live(site.store, site.prefix) == told


async def test_what_is_told_does_not_last(site: Site, valkey_url: Any) -> None:
    from redis.asyncio import Redis

    await statuses.tell(site.store, site.prefix)
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
def test_the_most_drops_are_told(drops: dict[str, dict[str, int]]) -> None:
    told = most(drops, 5)
    kept = sorted(many for keys in told.values() for many in keys.values())
    every = sorted(many for keys in drops.values() for many in keys.values())
    assert kept == every[-5:]


async def test_pages_that_ask_the_same_share_an_answer() -> None:
    clock = ManualClock()
    answers, made = QueryCache(clock), []

    async def make() -> bytes:
        made.append(1)
        await asyncio.sleep(0)
        return b"x"

    assert await asyncio.gather(*(answers.get("q", make) for _ in range(10))) == [b"x"] * 10
    assert len(made) == 1
    await clock.advance(1)
    await answers.get("q", make)
    assert len(made) == 2
    for number in range(3 * KEPT):
        await answers.get(f"q{number}", make)
    assert len(answers._made) <= KEPT


async def test_an_answer_that_failed_is_not_kept() -> None:
    answers = QueryCache(ManualClock())
    tried = []

    async def make() -> bytes:
        tried.append(1)
        if len(tried) == 1:
            raise RuntimeError("away")
        return b"x"

    (first,) = await asyncio.gather(answers.get("q", make), return_exceptions=True)
    assert isinstance(first, RuntimeError)
    assert await answers.get("q", make) == b"x"


async def state(socket: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    while "live" not in told:
        told = await socket.receive_json(timeout=PATIENCE_S)
    return told


async def test_a_page_hears_of_the_run_and_of_its_end(site: Site) -> None:
    async with site.come() as owner, owner.socket() as socket:
        assert (await state(socket))["live"] is None
        site.run()
        while (told := await state(socket))["live"] is None:
            pass
        assert told["live"]["ticks"] == 123_456
        assert told["safety"]["state"] == "NORMAL"
        await site.die()
        await site.store.delete([f"{site.prefix}live"])  # as a run does that ends well
        async with asyncio.timeout(PATIENCE_S):
            while (told := await state(socket))["live"] is not None:
                pass
        assert told["safety"]["state"] == "NORMAL"  # of that the database tells


async def test_a_new_page_is_given_the_past_for_its_charts(site: Site) -> None:
    site.run()
    async with site.come() as owner:
        async with owner.socket() as socket:
            while (await state(socket))["live"] is None:
                pass
        async with owner.socket() as socket:
            first = await socket.receive_json(timeout=PATIENCE_S)
    assert len(first["history"][0]) == 11


async def test_it_ends_though_news_come_at_that_very_moment(site: Site) -> None:
    hub = Hub(site.store, site.prefix, site.database, SystemClock())
    for _ in range(5):
        following = asyncio.create_task(hub.run())
        while hub.version < 2:
            await hub.changed(hub.version)
        await asyncio.sleep(0.05)  # it waits for the next look
        hub.look()
        following.cancel()
        done, _ = await asyncio.wait({following}, timeout=PATIENCE_S)
        assert done


# --- pages that do not read ---------------------------------------------------------------------


@asynccontextmanager
async def deaf(site: Site, visitor: Visitor) -> AsyncIterator[sockets.socket]:
    """A client that opens the socket and never reads; its window is as small as can be."""
    loop = asyncio.get_running_loop()
    host, port = site.address.split("//")[1].split(":")
    line = sockets.socket()
    line.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1024)
    line.setblocking(False)
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookie.items())
    try:
        await loop.sock_connect(line, (host, int(port)))
        request = (
            f"GET /api/live HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {site.address}\r\n"
            f"Cookie: {cookie}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await loop.sock_sendall(line, request.encode())
        yield line
    finally:
        line.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()


def resident() -> int:
    """Bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_ten_pages_and_one_that_never_reads_take_little_memory(site: Site) -> None:
    site.run(trades="x" * 200_000)
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(site.come())
        pages = [await stack.enter_async_context(owner.socket()) for _ in range(10)]
        await stack.enter_async_context(deaf(site, owner))
        for page in pages:
            while (await state(page))["live"] is None:
                pass
        before = resident()
        for _ in range(8):  # two seconds of states: 8 x 200 kB for each page
            for page in pages:
                assert (await state(page))["live"] is not None
        grown = resident() - before
        assert grown < 20e6, f"{grown / 1e6:.0f} MB more"
        assert len(site.dashboard._sockets) == 11  # the deaf one is waited for a while


async def test_a_page_that_takes_nothing_for_long_is_let_go(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("qts.dashboard.server.SEND_S", 0.5)
    site.run(trades="x" * 400_000)
    async with site.come() as owner, owner.socket() as page, deaf(site, owner):
        while len(site.dashboard._sockets) < 2:
            await state(page)
        async with asyncio.timeout(PATIENCE_S):
            while len(site.dashboard._sockets) > 1:
                await state(page)
        (left,) = site.dashboard._sockets
        assert not left.closed
        assert (await state(page))["live"] is not None  # who reads goes on being told


async def test_pages_are_not_without_number(site: Site, monkeypatch: Any) -> None:
    import aiohttp
    import pytest

    monkeypatch.setattr("qts.dashboard.server.SOCKETS", 1)
    async with site.come() as owner, owner.socket() as page:
        await page.receive_json(timeout=PATIENCE_S)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await owner.socket()
        assert refused.value.status == 503


async def test_a_change_of_the_fail_safe_is_told_at_once(site: Site) -> None:
    site.run()
    async with site.come() as owner, owner.socket() as socket:
        while (await state(socket))["safety"] is None:
            pass
        safety = FailSafe(site.database)

        async def tripped() -> None:
            await safety.release("test", "looked")
            await safety.trip("FS070", "books differ")
            while (told := await state(socket))["safety"]["state"] != "FAIL":
                pass
            assert told["safety"]["code"] == "FS070"

        assert await soonest(tripped) < 1.0


def test_the_pages_ship_with_the_package() -> None:
    from qts.dashboard.server import PAGE

    names = {path.name for path in Path(PAGE).iterdir()}
    assert {"index.html", "login.html", "app.js", "style.css"} <= names
    for path in Path(PAGE).iterdir():
        text = path.read_text("utf-8")
        assert "innerHTML" not in text
        assert "https://" not in text
