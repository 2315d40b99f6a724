"""The official Upbit client against the simulator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import upbit as official

from tests.simulators.clients import Upbit

BTC = "KRW-BTC"


@pytest.fixture
async def sdk(upbit: Upbit) -> AsyncIterator[official.AsyncUpbit]:
    async with httpx.AsyncClient() as http:
        yield official.AsyncUpbit(
            access_key=upbit.key.access_key,
            secret_key=upbit.key.secret_key,
            base_url=upbit.simulator.url,
            max_retries=0,
            http_client=http,
        )


async def test_it_places_reads_and_cancels(sdk: official.AsyncUpbit) -> None:
    placed = await sdk.orders.create(
        market=BTC,
        side="bid",
        ord_type="limit",
        volume="0.01",
        price="100000000",
        identifier="from the sdk & back",
    )
    assert (placed.state, placed.market, placed.volume) == ("wait", BTC, "0.01")
    read = await sdk.orders.retrieve(identifier="from the sdk & back")
    assert read.uuid == placed.uuid
    open_orders = await sdk.orders.list_open(market=BTC, states=["wait", "watch"])
    assert [order.uuid async for order in open_orders] == [placed.uuid]
    cancelled = await sdk.orders.cancel(uuid=placed.uuid)
    assert cancelled.uuid == placed.uuid
    assert (await sdk.orders.retrieve(uuid=placed.uuid)).state == "cancel"


async def test_it_buys_and_sees_its_coins(sdk: official.AsyncUpbit) -> None:
    placed = await sdk.orders.create(market=BTC, side="bid", ord_type="price", price="1000000")
    order = await sdk.orders.retrieve(uuid=placed.uuid)
    assert float(order.executed_volume) > 0
    assert order.trades
    accounts = await sdk.accounts.list()
    assert {account.currency for account in accounts} == {"KRW", "BTC"}


async def test_it_reads_the_market(sdk: official.AsyncUpbit) -> None:
    pairs = await sdk.trading_pairs.list()
    assert pairs[0].market == BTC
    (ticker,) = await sdk.tickers.list_by_trading_pairs(markets=BTC)
    (book,) = await sdk.orderbooks.list(markets=BTC)
    best = book.orderbook_units[0]
    assert float(best.bid_price) <= float(ticker.trade_price) <= float(best.ask_price)


async def test_it_parses_our_errors(sdk: official.AsyncUpbit) -> None:
    with pytest.raises(official.BadRequestError, match="insufficient_funds_bid"):
        await sdk.orders.create(
            market=BTC, side="bid", ord_type="limit", volume="10", price="100000000"
        )
    with pytest.raises(official.NotFoundError):
        await sdk.orders.retrieve(uuid="00000000-0000-4000-8000-000000000000")


async def test_it_detects_rate_limiting(sdk: official.AsyncUpbit) -> None:
    for _ in range(10):
        await sdk.tickers.list_by_trading_pairs(markets=BTC)
    with pytest.raises(official.RateLimitError):
        await sdk.tickers.list_by_trading_pairs(markets=BTC)
