"""The Upbit WebSockets."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from qts.domain import ManualClock
from tests.simulators.clients import Upbit, until_closed
from tests.simulators.conftest import StartUpbit

BTC = "KRW-BTC"
Open = Callable[..., Awaitable[aiohttp.ClientWebSocketResponse]]


@pytest.fixture
def open_socket(stack: AsyncExitStack) -> Open:
    async def open_socket(upbit: Upbit, *parts: Any, private: bool = False) -> Any:
        path = "/websocket/v1/private" if private else "/websocket/v1"
        headers = {"Authorization": upbit.bearer()} if private else {}
        socket = await stack.enter_async_context(
            upbit.http.ws_connect(upbit.simulator.ws_url + path, headers=headers)
        )
        if parts:
            await socket.send_json(list(parts))
        return socket

    return open_socket


async def receive(socket: aiohttp.ClientWebSocketResponse) -> Any:
    return json.loads(await socket.receive_bytes(timeout=60))


async def test_a_ticker_comes_as_snapshot_and_then_as_it_trades(
    upbit: Upbit, open_socket: Open, clock: ManualClock
) -> None:
    socket = await open_socket(upbit, {"ticket": "t"}, {"type": "ticker", "codes": [BTC]})
    first = await receive(socket)
    assert (first["type"], first["code"], first["stream_type"]) == ("ticker", BTC, "SNAPSHOT")
    await clock.advance(5)
    following = await receive(socket)
    assert following["stream_type"] == "REALTIME"
    assert following["acc_trade_volume"] > first["acc_trade_volume"]
    assert following["ask_bid"] in ("ASK", "BID")


async def test_only_realtime_has_no_snapshot(
    upbit: Upbit, open_socket: Open, clock: ManualClock
) -> None:
    socket = await open_socket(
        upbit, {"ticket": "t"}, {"type": "trade", "codes": [BTC], "is_only_realtime": True}
    )
    await socket.send_str("PING")
    assert await receive(socket) == {"status": "UP"}
    await clock.advance(5)
    trade = await receive(socket)
    assert (trade["type"], trade["stream_type"]) == ("trade", "REALTIME")
    assert {"sequential_id", "trade_timestamp", "trade_price", "ask_bid"} <= trade.keys()


async def test_a_book_has_the_requested_depth(upbit: Upbit, open_socket: Open) -> None:
    socket = await open_socket(upbit, {"ticket": "t"}, {"type": "orderbook", "codes": [f"{BTC}.5"]})
    book = await receive(socket)
    assert len(book["orderbook_units"]) == 5
    assert book["code"] == BTC


async def test_the_simple_format_has_short_names(upbit: Upbit, open_socket: Open) -> None:
    socket = await open_socket(
        upbit, {"ticket": "t"}, {"type": "ticker", "codes": [BTC]}, {"format": "SIMPLE_LIST"}
    )
    (ticker,) = await receive(socket)
    assert (ticker["ty"], ticker["cd"], ticker["st"]) == ("ticker", BTC, "SNAPSHOT")
    assert "trade_price" not in ticker


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ('{"ticket":"t"}', "WRONG_FORMAT"),
        ("[1]", "WRONG_FORMAT"),
        ('[{"type":"ticker","codes":["KRW-BTC"]}]', "NO_TICKET"),
        ('[{"ticket":"t"}]', "NO_TYPE"),
        ('[{"ticket":"t"},{"type":"ticker"}]', "NO_CODES"),
        ('[{"ticket":"t"},{"type":"ticker","codes":["KRW-NO"]}]', "INVALID_PARAM"),
        ('[{"ticket":"t"},{"type":"myOrder"}]', "INVALID_AUTH"),
    ],
)
async def test_wrong_messages_have_their_errors(
    upbit: Upbit, open_socket: Open, message: str, name: str
) -> None:
    socket = await open_socket(upbit)
    await socket.send_str(message)
    assert (await receive(socket))["error"]["name"] == name


async def test_subscriptions_can_be_listed(upbit: Upbit, open_socket: Open) -> None:
    only = {"type": "ticker", "codes": [BTC], "is_only_realtime": True}
    socket = await open_socket(upbit, {"ticket": "t"}, only)
    await socket.send_json([{"ticket": "u"}, {"method": "LIST_SUBSCRIPTIONS"}])
    reply = await receive(socket)
    assert reply["result"] == [{"type": "ticker", "codes": [BTC]}]


async def test_a_sixth_message_in_a_second_is_refused(upbit: Upbit, open_socket: Open) -> None:
    socket = await open_socket(upbit)
    for _ in range(6):
        await socket.send_json([{"ticket": "t"}])
    names = [(await receive(socket))["error"]["name"] for _ in range(6)]
    assert names == ["NO_TYPE"] * 5 + ["TOO_MANY_REQUEST"]


async def test_the_private_socket_needs_a_key(upbit: Upbit) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await upbit.http.ws_connect(upbit.simulator.ws_url + "/websocket/v1/private")
    assert refused.value.status == 401


async def test_the_states_of_an_order_are_reported(upbit: Upbit, open_socket: Open) -> None:
    socket = await open_socket(
        upbit, {"ticket": "t"}, {"type": "myOrder"}, {"type": "myAsset"}, private=True
    )
    await socket.send_str("PING")
    await receive(socket)
    await upbit.order(market=BTC, side="bid", ord_type="price", price="1000000", identifier="me")
    messages: list[dict[str, Any]] = []
    while not messages or messages[-1].get("state") != "cancel":
        messages.append(await receive(socket))
    orders = [each for each in messages if each["type"] == "myOrder"]
    assert orders[0]["state"] == "wait"
    assert {each["state"] for each in orders[1:-1]} == {"trade"}
    trade = orders[1]
    assert (trade["identifier"], trade["ask_bid"], trade["is_maker"]) == ("me", "BID", False)
    assert isinstance(trade["executed_volume"], float)
    assets = [each for each in messages if each["type"] == "myAsset"]
    assert {asset["currency"] for asset in assets[-1]["assets"]} == {"KRW", "BTC"}


async def test_fill_messages_can_come_twice(upbit: Upbit, open_socket: Open) -> None:
    socket = await open_socket(upbit, {"ticket": "t"}, {"type": "myOrder"}, private=True)
    await socket.send_str("PING")
    await receive(socket)
    await upbit.control("POST", "faults", kind="duplicate_fills")
    await upbit.order(market=BTC, side="bid", ord_type="price", price="10000")
    events = [await receive(socket) for _ in range(4)]
    assert [each["state"] for each in events] == ["wait", "trade", "trade", "cancel"]
    assert events[1] == events[2]


async def test_a_silent_socket_is_closed(start_upbit: StartUpbit, open_socket: Open) -> None:
    upbit = await start_upbit(idle_s=0.05)
    socket = await open_socket(upbit)
    assert await until_closed(socket) is aiohttp.WSMsgType.CLOSE


async def test_streams_can_be_cut(upbit: Upbit, open_socket: Open) -> None:
    socket = await open_socket(upbit, {"ticket": "t"}, {"type": "ticker", "codes": [BTC]})
    await receive(socket)
    assert (await upbit.control("DELETE", "streams"))["dropped"] == 1
    assert await until_closed(socket) is not aiohttp.WSMsgType.CLOSE


async def test_a_sixth_connection_in_a_second_is_refused(upbit: Upbit, open_socket: Open) -> None:
    for _ in range(5):
        await open_socket(upbit)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket(upbit)
    assert refused.value.status == 429
