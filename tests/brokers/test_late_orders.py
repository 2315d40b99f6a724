"""An order is not sent if its process was stopped for too long before it could send it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qts.brokers import BrokersConfig
from qts.brokers.error_boundary import send_before_deadline
from qts.database import Database
from qts.domain import ManualClock
from qts.venues import BeforeSend, RateLimitedError
from tests.brokers.test_upbit_broker import a_request
from tests.conformance.venues import KisVenue, UpbitVenue, kis, upbit

TIMEOUT_S = BrokersConfig().send_timeout_s


@pytest.fixture(params=["kis", "upbit"])
async def venue(
    request: Any, database: Database, tmp_path: Path
) -> AsyncIterator[KisVenue | UpbitVenue]:
    open_venue = kis if request.param == "kis" else upbit
    async with open_venue(database, tmp_path) as venue:
        yield venue


@pytest.mark.parametrize(("stopped_s", "is_sent"), [(TIMEOUT_S - 1, True), (TIMEOUT_S + 1, False)])
async def test_a_stop_while_the_connection_is_made(
    venue: KisVenue | UpbitVenue, monkeypatch: pytest.MonkeyPatch, stopped_s: float, is_sent: bool
) -> None:
    connect, request = aiohttp.TCPConnector.connect, venue.resting()
    await venue.broker.account()  # obtains a token

    async def stopped(connector: aiohttp.TCPConnector, *what: Any, **how: Any) -> Any:
        connection = await connect(connector, *what, **how)
        await venue.clock.advance(stopped_s)
        return connection

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", stopped)
    if is_sent:
        await venue.broker.place(request)
    else:
        with pytest.raises(RateLimitedError, match="nothing was sent"):
            await venue.broker.place(request)
    assert len(await venue.record()) == is_sent
    monkeypatch.undo()
    await venue.broker.place(venue.resting())
    assert len(await venue.record()) == is_sent + 1


@pytest.mark.parametrize(("slept_s", "is_sent"), [(3.0, True), (-3600.0, True), (6.0, False)])
async def test_a_machine_that_sleeps_while_the_connection_is_made(
    venue: KisVenue | UpbitVenue, monkeypatch: pytest.MonkeyPatch, slept_s: float, is_sent: bool
) -> None:
    """The monotonic clock stands still meanwhile; a wall clock that is set jumps the same way."""
    connect, clock = aiohttp.TCPConnector.connect, venue.clock
    request = venue.resting(expires_at=clock.now() + timedelta(seconds=5))
    await venue.broker.account()

    async def asleep(connector: aiohttp.TCPConnector, *what: Any, **how: Any) -> Any:
        connection = await connect(connector, *what, **how)
        clock.set_wall(clock.now() + timedelta(seconds=slept_s))
        return connection

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", asleep)
    if is_sent:
        await venue.broker.place(request)
    else:
        with pytest.raises(RateLimitedError, match="nothing was sent"):
            await venue.broker.place(request)
    assert len(await venue.record()) == is_sent


@pytest.mark.parametrize("writes_after_s", [0.01, 0.03])
async def test_timeout_and_send_in_one_iteration_of_the_loop(writes_after_s: float) -> None:
    """An order reported as unsent was not sent and will not be."""
    loop, sent = asyncio.get_running_loop(), []
    writing: asyncio.Future[asyncio.Task[None]] = loop.create_future()

    async def send(before_send: BeforeSend) -> None:
        async def write() -> None:  # aiohttp writes in a separate task
            before_send()
            sent.append("an order")

        loop.call_later(writes_after_s, lambda: writing.set_result(asyncio.create_task(write())))
        time.sleep(0.05)  # noqa: ASYNC251 - both are due when the loop continues
        await asyncio.sleep(60)

    with pytest.raises(RateLimitedError, match="nothing was sent"):
        await send_before_deadline(ManualClock(), 0.02, a_request(), send)
    with pytest.raises(RateLimitedError, match="nothing was sent"):
        await (await writing)
    assert sent == []
