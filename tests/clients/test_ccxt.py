"""ccxt and ccxt.pro against the simulated Upbit; its hosts are patched, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ccxt.pro
import pytest

from tests.clients.conftest import ACCESS_KEY, SECRET_KEY, Venue

BTC = "BTC/KRW"


@pytest.fixture(scope="module")
async def upbit(upbit_venue: Venue) -> AsyncIterator[Any]:
    exchange = ccxt.pro.upbit({"apiKey": ACCESS_KEY, "secret": SECRET_KEY})
    ws_url = upbit_venue.ws_url + "/websocket/v1"
    exchange.urls["api"] = {"public": upbit_venue.url, "private": upbit_venue.url, "ws": ws_url}
    await exchange.load_markets()
    yield exchange
    await exchange.close()


@pytest.fixture
async def low(upbit: Any) -> float:
    """A price ten percent below the market."""
    last: float = (await upbit.fetch_ticker(BTC))["last"]
    return last * 0.9 // 1000 * 1000


@pytest.fixture
async def resting(upbit: Any, low: float) -> Any:
    return await upbit.create_order(BTC, "limit", "buy", 0.01, low)


async def test_auth(upbit: Any) -> None:
    assert upbit.markets[BTC]["quote"] == "KRW"
    assert (await upbit.fetch_balance())["KRW"]["total"] > 0
    upbit.secret, kept = "another " * 8, upbit.secret
    try:
        with pytest.raises(ccxt.AuthenticationError):
            await upbit.fetch_balance()
    finally:
        upbit.secret = kept


async def test_quote(upbit: Any) -> None:
    ticker = await upbit.fetch_ticker(BTC)
    assert ticker["low"] <= ticker["last"] <= ticker["high"]


async def test_many_quotes(upbit: Any) -> None:
    assert len(await upbit.fetch_tickers()) == 20


async def test_book(upbit: Any) -> None:
    book = await upbit.fetch_order_book(BTC, 5)
    assert len(book["bids"]) == len(book["asks"]) == 5
    assert book["bids"][0][0] < book["asks"][0][0]


@pytest.mark.parametrize("timeframe", ["1d", "1w", "1M"])
async def test_daily_candles(upbit: Any, timeframe: str) -> None:
    candles = await upbit.fetch_ohlcv(BTC, timeframe, limit=3)
    assert len(candles) == 3
    assert all(low <= close <= high for _, _, high, low, close, _ in candles)


@pytest.mark.parametrize("timeframe", ["1s", "1m", "1h", "4h"])
async def test_minute_candles(upbit: Any, timeframe: str) -> None:
    candles = await upbit.fetch_ohlcv(BTC, timeframe, limit=2)
    assert candles
    assert [each[0] for each in candles] == sorted(each[0] for each in candles)


async def test_balance_with_a_holding(upbit: Any, low: float) -> None:
    await upbit.create_order(BTC, "market", "buy", 0.01, low)
    assert (await upbit.fetch_balance())["BTC"]["total"] > 0


async def test_buying_power(upbit: Any) -> None:
    assert (await upbit.fetch_trading_fee(BTC))["taker"] == 0.0005
    assert (await upbit.fetch_balance())["KRW"]["free"] > 0


async def test_place(resting: Any) -> None:
    assert (resting["status"], resting["filled"]) == ("open", 0.0)


async def test_modify(upbit: Any, resting: Any, low: float) -> None:
    changed = await upbit.edit_order(resting["id"], BTC, "limit", "buy", 0.01, low - 10_000)
    assert changed["id"] != resting["id"]
    assert (await upbit.fetch_order(resting["id"], BTC))["status"] == "canceled"


async def test_cancel(upbit: Any, resting: Any) -> None:
    await upbit.cancel_order(resting["id"], BTC)
    gone = await upbit.fetch_canceled_orders(BTC)
    assert resting["id"] in [order["id"] for order in gone]


async def test_open_orders(upbit: Any, resting: Any) -> None:
    assert resting["id"] in [order["id"] for order in await upbit.fetch_open_orders(BTC)]


async def test_one_order(upbit: Any, resting: Any) -> None:
    order = await upbit.fetch_order(resting["id"], BTC)
    assert (order["status"], order["trades"]) == ("open", [])


async def test_own_order_stream(upbit: Any, low: float) -> None:
    watching = asyncio.create_task(upbit.watch_orders(BTC))
    for _ in range(100):  # the socket tells only what happens after it is subscribed
        await upbit.create_order(BTC, "limit", "buy", 0.01, low)
        if (await asyncio.wait([watching], timeout=0.5))[0]:
            break
    (order,) = watching.result()
    assert (order["symbol"], order["status"]) == (BTC, "open")


async def test_market_streams(upbit: Any) -> None:
    assert (await upbit.watch_ticker(BTC))["last"] > 0
    assert (await upbit.watch_order_book(BTC))["bids"]
    assert await upbit.watch_trades(BTC)
    assert await upbit.watch_ohlcv(BTC, "1s")


async def test_limit_exceeded(upbit_venue: Venue, upbit: Any) -> None:
    """It reads the name in the body before the status, so a 429 is an error like any other."""
    upbit_venue.limit_once()
    with pytest.raises(ccxt.ExchangeError, match="too_many_requests"):
        await upbit.fetch_ticker(BTC)


async def test_unknown_symbol(upbit: Any) -> None:
    with pytest.raises(ccxt.BadSymbol):
        await upbit.fetch_ticker("NONE/KRW")
    with pytest.raises(ccxt.ExchangeError, match="Code not found"):
        await upbit.public_get_ticker({"markets": "KRW-NONE"})
