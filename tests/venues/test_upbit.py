"""The Upbit client and stream against the simulator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from qts.domain import OutcomeUnknownError, RefusedError, Secret, SystemClock, UnreachableError
from qts.simulators import MarketConfig, UpbitKey, UpbitSimulator, UpbitSimulatorConfig
from qts.simulators.control import Fault
from qts.venues import (
    Quote,
    RateLimitedError,
    RequestPriority,
    UpbitClient,
    UpbitConfig,
    UpbitStream,
)
from tests.venues.kis import ScriptedServer

KEY = UpbitKey()
SMALL = UpbitSimulatorConfig(market=MarketConfig(symbols=20, suspended=0, speed=10))


@asynccontextmanager
async def client_of(simulator: UpbitSimulator, **changes: Any) -> AsyncIterator[UpbitClient]:
    settings: dict[str, Any] = {
        "access_key": Secret(KEY.access_key),
        "secret_key": Secret(KEY.secret_key),
        "url": simulator.url,
        "stream_url": simulator.ws_url + "/websocket/v1",
    }
    async with UpbitClient.open(UpbitConfig(**(settings | changes)), SystemClock()) as client:
        yield client


async def test_all_won_symbols_come_in_one_request() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        found = await client.tickers()
        assert {quote.symbol for quote in found} == set(simulator.market.universe.codes)
        assert all(quote.price > 0 for quote in found)
        assert client.remaining["ticker"] == 9
        two = await client.tickers(["KRW-BTC", "KRW-ETH"])
        assert [quote.symbol for quote in two] == ["KRW-BTC", "KRW-ETH"]


async def test_an_order_is_placed_read_and_cancelled_by_its_identifier() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        price = (await client.tickers(["KRW-BTC"]))[0].price
        order = [
            ("market", "KRW-BTC"),
            ("side", "bid"),
            ("ord_type", "limit"),
            ("volume", "0.01"),
            ("price", str(int(price * 0.8 // 1000 * 1000))),
            ("identifier", "qts-1"),
        ]
        placed = await client.call("POST", "/v1/orders", order, "order", RequestPriority.ORDER)
        asked = [("identifier", "qts-1")]
        read = await client.call("GET", "/v1/order", asked, "default", RequestPriority.ACCOUNT)
        assert read["uuid"] == placed["uuid"]
        await client.call("DELETE", "/v1/order", asked, "default", RequestPriority.ORDER)
        with pytest.raises(OutcomeUnknownError, match="identifier_already_exists"):
            await client.call("POST", "/v1/orders", order, "order", RequestPriority.ORDER)


async def test_lists_in_a_query_are_signed_as_they_are_sent() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        asked = [("states[]", "wait"), ("states[]", "watch")]
        assert (
            await client.call("GET", "/v1/orders/open", asked, "default", RequestPriority.ACCOUNT)
            == []
        )


async def test_a_wrong_secret_is_refused_by_name_and_never_shown() -> None:
    async with (
        UpbitSimulator(SMALL) as simulator,
        client_of(simulator, secret_key=Secret("canary" * 8)) as client,
    ):
        with pytest.raises(RefusedError, match=r"venues\.upbit") as caught:
            await client.call("GET", "/v1/accounts", [], "default", RequestPriority.ACCOUNT)
        assert "canary" not in str(caught.value)


async def test_signed_requests_without_a_key_are_refused() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator, access_key=None) as client:
        assert await client.tickers()
        with pytest.raises(RefusedError, match="not set"):
            await client.call("GET", "/v1/accounts", [], "default", RequestPriority.ACCOUNT)


async def test_a_greedy_client_is_never_rate_limited() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        began = time.monotonic()
        await asyncio.gather(*(client.tickers(["KRW-BTC"]) for _ in range(25)))
        assert time.monotonic() - began > 2.0  # 10 at once, and 10 a second later
        (stats,) = [each for name, each in simulator.gateway.stats().items() if "ticker" in name]
        assert stats["refused"] == 0
        assert stats["worst"]["second"] <= 10


async def test_a_429_halves_the_rate() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        simulator.faults.add(Fault(kind="limit", path="/v1/ticker", count=1))
        with pytest.raises(RateLimitedError):
            await client.tickers()
        assert client.limiters["quotes"].status().rate_per_s == 5
        assert client.limiters["order"].status().rate_per_s == 12


async def test_a_lost_reply_leaves_an_order_unknown() -> None:
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        simulator.faults.add(Fault(kind="drop_reply", path="/v1/ticker", count=1))
        with pytest.raises(UnreachableError):
            await client.tickers()
        assert await client.tickers()


@pytest.mark.parametrize("status", [200, 500])
async def test_a_reply_that_is_not_utf_8_is_unreadable(status: int) -> None:
    body = '{"error":{"name":"x","message":"점검"}}'.encode("cp949")
    config = UpbitConfig(access_key=Secret(KEY.access_key), secret_key=Secret(KEY.secret_key))
    async with ScriptedServer(lambda _: web.Response(body=body, status=status)) as upbit:
        at = msgspec.structs.replace(config, url=upbit.url)
        async with UpbitClient.open(at, SystemClock()) as client:
            with pytest.raises(UnreachableError):
                await client.tickers()
            with pytest.raises(OutcomeUnknownError):
                await client.call("POST", "/v1/orders", [], "order", RequestPriority.ORDER)


async def test_quotes_stream_and_resume_after_a_drop() -> None:
    quotes: asyncio.Queue[Quote] = asyncio.Queue()
    live: list[int] = []
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        stream = UpbitStream(
            client, SystemClock(), quotes.put_nowait, on_live=lambda: live.append(1)
        )
        await stream.subscribe(["KRW-BTC"])
        task = asyncio.create_task(stream.run())
        async with asyncio.timeout(60):
            first = await quotes.get()
            assert (first.symbol, first.source) == ("KRW-BTC", "upbit_ws")
            simulator.drop_streams()
            while len(live) < 2:
                await quotes.get()
            await stream.subscribe(["KRW-ETH"])
            while (await quotes.get()).symbol != "KRW-ETH":
                pass
        task.cancel()
        await asyncio.wait({task})
        assert stream.malformed_frames == 0


async def test_events_of_own_orders_stream() -> None:
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    live = asyncio.Event()
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        stream = UpbitStream(
            client, SystemClock(), lambda _: None, on_order=events.put_nowait, on_live=live.set
        )
        task = asyncio.create_task(stream.run())
        async with asyncio.timeout(60):
            await live.wait()
            await client.call("GET", "/v1/accounts", [], "default", RequestPriority.ACCOUNT)
            order = [
                ("market", "KRW-BTC"),
                ("side", "bid"),
                ("ord_type", "price"),
                ("price", "10000"),
                ("identifier", "qts-2"),
            ]
            await client.call("POST", "/v1/orders", order, "order", RequestPriority.ORDER)
            event = await events.get()
            assert event["identifier"] == "qts-2"
            assert event["code"] == "KRW-BTC"
        task.cancel()
        await asyncio.wait({task})
