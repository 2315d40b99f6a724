"""Quotes of Upbit: an unknown market does not affect the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from qts.domain import SystemClock
from qts.simulators import MarketConfig, UpbitSimulator, UpbitSimulatorConfig
from qts.venues import RequestPriority, UpbitClient, UpbitConfig, UpbitQuoteSource
from tests.venues.kis import ScriptedServer, json_response

SMALL = UpbitSimulatorConfig(market=MarketConfig(symbols=20, suspended=0))


@asynccontextmanager
async def client_of_upbit() -> AsyncIterator[UpbitClient]:
    async with (
        UpbitSimulator(SMALL) as simulator,
        UpbitClient.open(UpbitConfig(url=simulator.url), SystemClock()) as client,
    ):
        yield client


async def test_an_unknown_market_is_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with client_of_upbit() as client:
        source, budget = UpbitQuoteSource(client), client.limiters["quotes"]
        known = [quote.symbol for quote in await client.tickers()][:3]
        asked = [known[0], "KRW-GONE", *known[1:]]
        found = await source.quotes(lambda: asked, RequestPriority.NORMAL)
        assert {quote.symbol for quote in found} == set(known)
        granted = budget.status().granted
        for _ in range(2):
            found = await source.quotes(lambda: asked, RequestPriority.NORMAL)
            assert [quote.symbol for quote in found] == known
        assert budget.status().granted == granted + 2
    assert capsys.readouterr().err.count("KRW-GONE") == 1


async def test_without_known_markets_a_poll_is_empty_and_keeps_its_pace() -> None:
    async with client_of_upbit() as client:
        source, budget = UpbitQuoteSource(client), client.limiters["quotes"]
        for granted in (1, 2):
            assert await source.quotes(lambda: ["KRW-GONE"], RequestPriority.NORMAL) == []
            assert budget.status().granted == granted


async def test_a_search_among_many_unknown_markets_is_bounded_and_continues() -> None:
    asked = ["KRW-BTC", *(f"KRW-GONE{n}" for n in range(20))]
    async with ScriptedServer(_knows_bitcoin_only) as upbit:
        config = UpbitConfig(url=upbit.url, quotes_per_second=100)
        async with UpbitClient.open(config, SystemClock()) as client:
            source = UpbitQuoteSource(client)
            assert await source.quotes(lambda: asked, RequestPriority.NORMAL) == []
            assert upbit.requests == 32
            (found,) = await source.quotes(lambda: asked, RequestPriority.NORMAL)
            assert found.symbol == "KRW-BTC"
            assert upbit.requests < 64


def _knows_bitcoin_only(request: web.Request) -> web.Response:
    if request.query["markets"] == "KRW-BTC":
        return json_response([{"market": "KRW-BTC", "trade_price": 1.0}])
    return json_response({"error": {"name": 404, "message": "Code not found"}}, 404)
