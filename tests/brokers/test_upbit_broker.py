"""Upbit as a broker: shut out means silent, numbers stay exact, a market buy never buys more."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from qts.brokers import BrokersConfig, StreamGap, UpbitBroker, VenueBlockedError
from qts.brokers import upbit as upbit_module
from qts.brokers.upbit_codec import order_of, place_values, plain, units
from qts.database import Database
from qts.domain import (
    TICK_TABLES,
    Fill,
    OrderRequest,
    OrderState,
    OrderType,
    OutcomeUnknownError,
    Side,
    SystemClock,
    UnreachableError,
)
from qts.simulators import UpbitSimulator
from qts.venues import RateLimitedError, UpbitClient, VenueRejectedError
from tests.conformance.venues import (
    MORNING,
    UpbitVenue,
    inject_fault,
    upbit,
    upbit_config,
)
from tests.venues.kis import ScriptedServer, json_response

CONFIG = BrokersConfig(broker="upbit")


@pytest.fixture
async def venue(database: Database, tmp_path: Path) -> AsyncIterator[UpbitVenue]:
    async with upbit(database, tmp_path) as venue:
        yield venue


# -- bans


async def test_a_ban_has_an_end_and_stops_all_requests(database: Database, tmp_path: Path) -> None:
    async with upbit(database, tmp_path, order_second=1, block_after=1, block_s=30) as venue:
        await venue.broker.place(venue.resting())
        with pytest.raises(RateLimitedError):
            await venue.broker.place(venue.resting())
        with pytest.raises(VenueBlockedError) as raised:
            await venue.broker.orders(MORNING)
        assert raised.value.until == venue.clock.now() + timedelta(seconds=30)
        before = requests(venue)
        for call in (
            venue.broker.place(venue.resting()),
            venue.broker.cancel("x"),
            venue.broker.account(),
            venue.broker.fills(MORNING),
        ):
            with pytest.raises(VenueBlockedError):
                await call
        assert requests(venue) == before
        assert len(await venue.record()) == 1


def requests(venue: UpbitVenue) -> int:
    return sum(each["requests"] for each in venue.simulator.gateway.stats().values())


async def test_requests_resume_after_the_ban(database: Database, tmp_path: Path) -> None:
    async with upbit(database, tmp_path, default_second=1, block_after=1, block_s=2) as venue:
        await venue.broker.account()
        with pytest.raises(RateLimitedError):
            await venue.broker.account()
        with pytest.raises(VenueBlockedError):
            await venue.broker.account()
        await venue.clock.advance(2.5)
        assert (await venue.broker.account()).cash == venue.start_cash


# -- market buys


async def test_a_market_buy_never_buys_more_than_was_asked_for(venue: UpbitVenue) -> None:
    """The price falls between the read of the order book and the order."""
    request = venue.request(quantity=Decimal("0.01"))
    _, ask = venue.quote()
    values = dict(place_values(request, ask))
    await venue.move(-5.0)
    for _ in range(10):
        await venue.go()
    assert venue.quote()[1] < ask * Decimal("0.97")
    (customer,) = venue.simulator.gateway.customers.values()
    entry = venue.simulator.orders.place(customer, values)
    assert Decimal(entry.order.filled) / 10**8 == request.quantity


async def test_a_market_buy_pays_no_more_than_its_collar(venue: UpbitVenue) -> None:
    _, ask = venue.quote()
    order_id = await venue.broker.place(venue.request(quantity=Decimal(400)))
    entry = venue.simulator.orders.entries[order_id]
    assert ask < Decimal(entry.order.limit) / 10**8 <= ask * Decimal("1.01")
    order = await the_only_order(venue)
    assert order.type is OrderType.MARKET
    assert order.state is not OrderState.OPEN  # the remainder does not rest


async def test_an_order_by_money_is_as_large_as_what_it_bought(venue: UpbitVenue) -> None:
    """As an operator places it manually; it ends as "cancel" with a tiny remainder."""
    (customer,) = venue.simulator.gateway.customers.values()
    values = {"market": venue.symbol, "side": "bid", "ord_type": "price", "price": "123456"}
    venue.simulator.orders.place(customer, values)
    order = await the_only_order(venue)
    assert (order.type, order.state, order.client_order_id) == (
        OrderType.MARKET,
        OrderState.FILLED,
        None,
    )
    assert order.quantity == order.filled > 0


async def the_only_order(venue: UpbitVenue) -> Any:
    (order,) = await venue.broker.orders(MORNING)
    return order


# -- what a reply can be


@pytest.mark.parametrize(
    "reply",
    [
        json_response({}, 201),
        json_response([], 201),
        json_response({"uuid": None}, 201),
        json_response({"uuid": 7}, 200),
        web.Response(text="created", status=201),
        web.Response(text="", status=200),
        json_response({"error": {"name": "server_error", "message": ""}}, 500),
        web.Response(text="<html>", status=502),
        json_response({"error": {"message": "no name"}}, 400),
        json_response({"error": {"name": "not_listed", "message": ""}}, 400),
        json_response({"error": {"name": "insufficient_funds_bid", "message": ""}}, 500),
        json_response({"error": {"name": "nonce_used", "message": ""}}, 401),
        json_response({"error": {"name": 404, "message": "Code not found"}}, 404),
    ],
)
async def test_an_ambiguous_reply_leaves_the_outcome_unknown(reply: web.Response) -> None:
    with pytest.raises(OutcomeUnknownError):
        await place_with_reply(reply)


@pytest.mark.parametrize(
    ("status", "name", "error"),
    [
        (400, "insufficient_funds_bid", VenueRejectedError),
        (401, "jwt_verification", VenueRejectedError),
        (429, "too_many_requests", RateLimitedError),
        (418, "blocked", VenueBlockedError),
    ],
)
async def test_a_rejection_means_that_nothing_was_placed(
    status: int, name: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await place_with_reply(json_response({"error": {"name": name, "message": ""}}, status))


def a_request(**changes: Any) -> OrderRequest:
    values: dict[str, Any] = {
        "client_order_id": "x",
        "symbol": "KRW-BTC",
        "side": Side.BUY,
        "type": OrderType.LIMIT,
        "quantity": Decimal("0.01"),
        "price": Decimal(100_000_000),
    }
    return OrderRequest(**(values | changes))


async def place_with_reply(reply: web.Response) -> None:
    def answer(_request: web.Request) -> web.Response:
        return web.Response(body=reply.body, status=reply.status, content_type=reply.content_type)

    async with ScriptedServer(answer) as server:
        config = upbit_config(UpbitSimulator(), url=server.url)
        async with UpbitClient.open(config, SystemClock()) as client:
            try:
                await UpbitBroker(client, CONFIG, SystemClock()).place(a_request())
            finally:
                assert server.requests == 1


async def test_without_a_connection_nothing_was_placed() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        config = upbit_config(UpbitSimulator(), url=url)
        async with UpbitClient.open(config, SystemClock()) as client:
            with pytest.raises(UnreachableError) as raised:
                await UpbitBroker(client, CONFIG, SystemClock()).place(a_request())
    assert not isinstance(raised.value, OutcomeUnknownError)


async def test_a_market_buy_without_an_order_book_is_not_placed(venue: UpbitVenue) -> None:
    inject_fault(venue, "error", path="/v1/orderbook", method="GET")
    with pytest.raises(UnreachableError) as raised:
        await venue.broker.place(venue.request())
    assert not isinstance(raised.value, OutcomeUnknownError)
    assert await venue.record() == {}


async def test_a_client_order_id_is_accepted_once(venue: UpbitVenue) -> None:
    request = venue.resting()
    await venue.broker.place(request)
    with pytest.raises(OutcomeUnknownError):  # an order with this id may be open
        await venue.broker.place(request)
    assert len(await venue.record()) == 1


# -- lists


async def test_all_pages_are_read(venue: UpbitVenue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upbit_module, "_CLOSED_PAGE", 3)
    monkeypatch.setattr(upbit_module, "_OPEN_PAGE", 3)
    for number in range(16):
        order_id = await venue.broker.place(far_below(venue))
        if number % 2:
            await venue.broker.cancel(order_id)
        await venue.go()
    listed = await venue.broker.orders(MORNING)
    assert {order.broker_order_id for order in listed} == set(await venue.record())
    late = await venue.broker.orders(MORNING + timedelta(seconds=14))  # less the clocks' margin
    assert sum(order.state is OrderState.CANCELLED for order in late) == 2
    assert sum(order.state is OrderState.OPEN for order in late) == 8


def far_below(venue: UpbitVenue) -> OrderRequest:
    """Return an order that the random market does not reach."""
    bid, _ = venue.quote()
    return venue.request(price=TICK_TABLES["upbit-krw"].round(bid * Decimal("0.95")))


async def test_a_fill_of_an_older_order_is_not_missed(venue: UpbitVenue) -> None:
    order_id = await venue.broker.place(far_below(venue))
    for _ in range(100):
        await venue.go()
    since = venue.clock.now()
    await venue.move(-8.0)
    await venue.until_closed(order_id)
    fills = await venue.broker.fills(since)
    assert sum(fill.quantity for fill in fills) == venue.quantity
    assert await venue.broker.fills(since + timedelta(days=1)) == []


# -- numbers


@given(st.integers(0, 2**26 * 10**8 - 1))
def test_a_count_of_units_survives_the_stream(count: int) -> None:
    exact = Decimal(count) / 10**8
    assert units(msgspec.json.decode(msgspec.json.encode(count / 10**8))) == exact
    assert units(msgspec.json.decode(plain(exact).encode())) == exact


@pytest.mark.parametrize("number", [123_456_789.123_456_78, 2.0**60, float("nan"), float("inf")])
def test_a_number_that_a_double_may_have_changed_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="digits"):
        units(number)


@given(st.decimals("0.00000001", "1000000000000", places=8))
def test_numbers_are_written_plainly(number: Decimal) -> None:
    text = plain(number)
    assert Decimal(text) == number
    assert "E" not in text
    assert not text.endswith(".")


def test_a_fill_beyond_double_precision_is_a_gap() -> None:
    event = {
        "state": "trade", "trade_uuid": "t", "uuid": "u", "code": "KRW-PEPE", "ask_bid": "BID",
        "price": 0.0123, "volume": 1_000_000.5, "trade_fee": 1, "trade_timestamp": 1,
    }  # fmt: skip
    assert isinstance(upbit_module._parse_event(event), Fill)
    assert isinstance(
        upbit_module._parse_event(event | {"volume": 123_456_789.123_456_78}), StreamGap
    )
    assert isinstance(upbit_module._parse_event({"state": "trade"}), StreamGap)
    lacking = upbit_module._parse_event(event | {"price": None})
    assert isinstance(lacking, Fill)
    assert lacking.price == 0  # FS041


def test_an_order_that_cannot_be_read_is_no_order() -> None:
    with pytest.raises(KeyError):
        order_of({"uuid": "x"})


async def test_an_order_that_closes_while_it_is_listed_is_not_missed(
    venue: UpbitVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_id = await venue.broker.place(far_below(venue))
    entry = venue.simulator.orders.entries[order_id]
    call = UpbitClient.call

    async def then_cancelled(client: UpbitClient, method: Any, path: str, *rest: Any) -> Any:
        answer = await call(client, method, path, *rest)
        if path.startswith("/v1/orders/") and entry.order.open:
            venue.simulator.orders.cancel(entry)
        return answer

    monkeypatch.setattr(UpbitClient, "call", then_cancelled)
    (order,) = await venue.broker.orders(MORNING)
    assert (order.broker_order_id, order.state) == (order_id, OrderState.CANCELLED)


@pytest.mark.parametrize("rows", [[{"uuid": "x"}], [7], {"uuid": "x"}, "rows"])
async def test_unreadable_rows_are_unreachable(rows: Any) -> None:
    async with ScriptedServer(lambda _request: json_response(rows)) as server:
        config = upbit_config(UpbitSimulator(), url=server.url)
        async with UpbitClient.open(config, SystemClock()) as client:
            broker = UpbitBroker(client, CONFIG, SystemClock())
            for request in (
                broker.orders(SystemClock().now()),
                broker.fills(SystemClock().now()),
                broker.account(),
                broker.find_order(a_request(), MORNING, frozenset()),
            ):
                with pytest.raises(UnreachableError, match="unreadable"):
                    await request


async def test_the_lists_are_a_second_witness(venue: UpbitVenue) -> None:
    """The search by identifier misses the order: the list of open orders has it."""
    placed, sent_at = venue.resting(), venue.clock.now()
    order_id = await venue.broker.place(placed)
    request = msgspec.structs.replace(placed, client_order_id="lost")
    (entry,) = venue.simulator.orders.entries.values()
    for identifier, candidates, elsewhen in (
        ("lost", [order_id], []),
        (None, [], [order_id]),
        ("another", [], []),
    ):
        entry.identifier = identifier  # in the lists; the search goes by an index
        found = await venue.broker.find_order(request, sent_at, frozenset())
        assert [each.broker_order_id for each in found.candidates] == candidates
        assert [each.broker_order_id for each in found.elsewhen] == elsewhen
