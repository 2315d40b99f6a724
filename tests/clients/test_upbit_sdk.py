"""The official Upbit client against the simulator; its base URLs are set, nothing else."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import upbit as official

from tests.clients.conftest import ACCESS_KEY, BTC, SECRET_KEY, Venue


@pytest.fixture(scope="module")
async def upbit(upbit_venue: Venue) -> AsyncIterator[official.AsyncUpbit]:
    async with official.AsyncUpbit(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        base_url=upbit_venue.url,
        websocket_base_url=upbit_venue.ws_url,
        max_retries=0,
    ) as client:
        yield client


@pytest.fixture
async def low(upbit: official.AsyncUpbit) -> str:
    """A price ten percent below the market."""
    (ticker,) = await upbit.tickers.list_by_trading_pairs(markets=BTC)
    return str(int(float(ticker.trade_price) * 0.9 // 1000 * 1000))


@pytest.fixture
async def resting(upbit: official.AsyncUpbit, low: str) -> Any:
    return await upbit.orders.create(
        market=BTC, side="bid", ord_type="limit", volume="0.01", price=low
    )


async def test_auth(upbit: official.AsyncUpbit) -> None:
    assert (await upbit.accounts.list())[0].currency == "KRW"
    assert (await upbit.api_keys.list())[0].access_key == ACCESS_KEY
    with pytest.raises(official.AuthenticationError):
        await upbit.with_options(secret_key="another " * 8).accounts.list()


async def test_quote(upbit: official.AsyncUpbit) -> None:
    (ticker,) = await upbit.tickers.list_by_trading_pairs(markets=BTC)
    assert float(ticker.trade_price) > 0


async def test_many_quotes(upbit: official.AsyncUpbit) -> None:
    assert len(await upbit.trading_pairs.list(is_details=True)) == 20
    found = await upbit.tickers.list_by_trading_pairs(markets=f"{BTC},KRW-ETH")
    assert [ticker.market for ticker in found] == [BTC, "KRW-ETH"]
    assert len(await upbit.tickers.list_by_quote_currencies(quote_currencies="KRW")) == 20


async def test_book(upbit: official.AsyncUpbit) -> None:
    (book,) = await upbit.orderbooks.list(markets=BTC, count=5)
    assert len(book.orderbook_units) == 5
    best = book.orderbook_units[0]
    assert float(best.bid_price) < float(best.ask_price)


async def test_daily_candles(upbit: official.AsyncUpbit) -> None:
    candles = upbit.candles
    for request in (candles.list_days, candles.list_weeks, candles.list_months, candles.list_years):
        rows = await request(market=BTC, count=2)
        assert [row.market for row in rows] == [BTC, BTC]


async def test_minute_candles(upbit: official.AsyncUpbit) -> None:
    assert len(await upbit.candles.list_minutes(market=BTC, unit=1, count=2)) == 2
    assert await upbit.candles.list_seconds(market=BTC, count=2)


async def test_balance_with_a_holding(upbit: official.AsyncUpbit) -> None:
    await upbit.orders.create(market=BTC, side="bid", ord_type="price", price="1000000")
    held = {account.currency: float(account.balance) for account in await upbit.accounts.list()}
    assert held["BTC"] > 0


async def test_buying_power(upbit: official.AsyncUpbit) -> None:
    chance = await upbit.orders.retrieve_chance(market=BTC)
    assert float(chance.bid_account.balance) > 0


async def test_place(resting: Any) -> None:
    assert (resting.state, resting.executed_volume) == ("wait", "0")


async def test_modify(upbit: official.AsyncUpbit, resting: Any, low: str) -> None:
    changed: Any = await upbit.orders.cancel_and_new(
        prev_order_uuid=resting.uuid,
        new_ord_type="limit",
        new_volume="remain_only",
        new_price=str(int(low) - 10_000),
    )
    assert (changed.uuid, changed.new_order_uuid != resting.uuid) == (resting.uuid, True)


async def test_cancel(upbit: official.AsyncUpbit, resting: Any) -> None:
    await upbit.orders.cancel(uuid=resting.uuid)
    assert (await upbit.orders.retrieve(uuid=resting.uuid)).state == "cancel"


async def test_open_orders(upbit: official.AsyncUpbit, resting: Any) -> None:
    orders = await upbit.orders.list_open(market=BTC, states=["wait", "watch"])
    assert resting.uuid in [order.uuid async for order in orders]


async def test_one_order(upbit: official.AsyncUpbit, resting: Any) -> None:
    assert (await upbit.orders.retrieve(uuid=resting.uuid)).trades == []


async def test_own_order_stream(upbit: official.AsyncUpbit, low: str) -> None:
    async with upbit.ws_private.connect_private() as socket:
        subscription = [{"ticket": str(uuid.uuid4())}, {"type": "myOrder"}]
        await socket.send_raw(json.dumps([*subscription, {"method": "LIST_SUBSCRIPTIONS"}]))
        await socket.recv_bytes()
        await socket.send_raw(json.dumps(subscription))
        await socket.send_raw("PING")  # answered after the subscription
        assert json.loads(await socket.recv_bytes()) == {"status": "UP"}
        placed = await upbit.orders.create(
            market=BTC, side="bid", ord_type="limit", volume="0.01", price=low
        )
        event: Any = await socket.recv()
        assert (event.type, event.uuid, event.state) == ("myOrder", placed.uuid, "wait")


async def test_limit_exceeded(upbit_venue: Venue, upbit: official.AsyncUpbit) -> None:
    upbit_venue.limit_once()
    with pytest.raises(official.RateLimitError):
        await upbit.accounts.list()


async def test_unknown_symbol(upbit: official.AsyncUpbit) -> None:
    with pytest.raises(official.NotFoundError):
        await upbit.tickers.list_by_trading_pairs(markets="KRW-NONE")


async def test_wallets_are_read(upbit: official.AsyncUpbit) -> None:
    assert (await upbit.wallet_status.list())[0].wallet_state == "working"
    assert not [each async for each in await upbit.deposits.list()]
    assert not [each async for each in await upbit.withdraws.list()]
