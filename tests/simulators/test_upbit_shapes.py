"""Answers of the simulated Upbit beside the documents: exact fields, and their types."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from qts.domain import ManualClock
from tests.simulators.clients import Upbit

BTC = "KRW-BTC"
NUMBER = (int, float)
CANDLE = {
    "market": str, "candle_date_time_utc": str, "candle_date_time_kst": str,
    "opening_price": NUMBER, "high_price": NUMBER, "low_price": NUMBER, "trade_price": NUMBER,
    "timestamp": int, "candle_acc_trade_price": NUMBER, "candle_acc_trade_volume": NUMBER,
}  # fmt: skip
PERIOD = CANDLE | {"first_day_of_period": str}
DAY = CANDLE | dict.fromkeys(("prev_closing_price", "change_price", "change_rate"), NUMBER)
MARKET = {"market": str, "korean_name": str, "english_name": str}
TICKER = {
    **dict.fromkeys(
        ("market", "trade_date", "trade_time", "trade_date_kst", "trade_time_kst", "change",
         "highest_52_week_date", "lowest_52_week_date"), str,
    ),
    **dict.fromkeys(
        ("trade_timestamp", "opening_price", "high_price", "low_price", "trade_price",
         "prev_closing_price", "change_price", "change_rate", "signed_change_price",
         "signed_change_rate", "trade_volume", "acc_trade_price", "acc_trade_price_24h",
         "acc_trade_volume", "acc_trade_volume_24h", "highest_52_week_price",
         "lowest_52_week_price", "timestamp"), NUMBER,
    ),
}  # fmt: skip
BOOK = {
    "market": str, "timestamp": int, "total_ask_size": NUMBER, "total_bid_size": NUMBER,
    "orderbook_units": list, "level": NUMBER,
}  # fmt: skip
TRADE = {
    "market": str, "trade_date_utc": str, "trade_time_utc": str, "timestamp": int,
    "trade_price": NUMBER, "trade_volume": NUMBER, "prev_closing_price": NUMBER,
    "change_price": NUMBER, "ask_bid": str, "sequential_id": int,
}  # fmt: skip
ORDER = {
    **dict.fromkeys(
        ("uuid", "side", "ord_type", "price", "state", "market", "created_at", "volume",
         "remaining_volume", "prevented_volume", "reserved_fee", "remaining_fee", "paid_fee",
         "locked", "prevented_locked", "executed_volume"), str,
    ),
    "trades_count": int,
}  # fmt: skip
WALLET = {
    **dict.fromkeys(
        ("currency", "wallet_state", "block_state", "block_updated_at", "net_type",
         "network_name"), str,
    ),
    "block_height": int, "block_elapsed_minutes": int,
}  # fmt: skip
ACCOUNT = {
    **dict.fromkeys(("currency", "balance", "locked", "avg_buy_price", "unit_currency"), str),
    "avg_buy_price_modified": bool,
}


class Shape(NamedTuple):
    path: str
    query: dict[str, str]
    fields: dict[str, Any]
    private: bool = False


SHAPES = [
    Shape("market/all", {}, MARKET),
    Shape("market/all", {"isDetails": "false"}, MARKET),
    Shape("market/all", {"is_details": "true"}, MARKET | {"market_event": dict}),
    Shape("market/all", {"isDetails": "true"}, MARKET | {"market_event": dict}),
    Shape("ticker", {"markets": BTC}, TICKER),
    Shape("ticker/all", {"quote_currencies": "KRW"}, TICKER),
    Shape("orderbook", {"markets": BTC}, BOOK),
    Shape(
        "orderbook/instruments",
        {"markets": BTC},
        {"market": str, "quote_currency": str, "tick_size": str, "supported_levels": list},
    ),
    Shape(
        "orderbook/supported_levels", {"markets": BTC}, {"market": str, "supported_levels": list}
    ),
    Shape("trades/ticks", {"market": BTC, "count": "5"}, TRADE),
    Shape("trades/ticks", {"market": BTC, "count": "5", "days_ago": "3"}, TRADE),
    Shape("candles/seconds", {"market": BTC, "count": "2"}, CANDLE),
    Shape("candles/minutes/3", {"market": BTC, "count": "2"}, CANDLE | {"unit": int}),
    Shape("candles/days", {"market": BTC, "count": "2"}, DAY),
    Shape(
        "candles/days",
        {"market": BTC, "converting_price_unit": "KRW"},
        DAY | {"converted_trade_price": NUMBER},
    ),
    Shape("candles/weeks", {"market": BTC, "count": "2"}, PERIOD),
    Shape("candles/months", {"market": BTC, "count": "2"}, PERIOD),
    Shape("candles/years", {"market": BTC, "count": "2"}, PERIOD),
    Shape("accounts", {}, ACCOUNT, True),
    Shape("orders", {"market": BTC, "state": "wait"}, ORDER, True),
    Shape("orders/open", {"market": BTC}, ORDER, True),
    Shape("status/wallet", {}, WALLET, True),
    Shape("api_keys", {}, {"access_key": str, "expire_at": str}, True),
]


def ids(shape: Shape) -> str:
    return f"{shape.path}?{urlencode(shape.query)}"


@pytest.mark.parametrize("shape", SHAPES, ids=ids)
async def test_an_answer_has_the_documented_fields(
    upbit: Upbit, clock: ManualClock, shape: Shape
) -> None:
    await clock.advance(3)
    await waiting(upbit)
    if shape.private:
        reply = await upbit.private("GET", shape.path, **shape.query)
    else:
        reply = await upbit.public(shape.path, **shape.query)
    assert reply.status == 200, reply.body
    assert reply.headers["Remaining-Req"].startswith("group=")
    assert reply.body
    for row in reply.body:
        assert sorted(row) == sorted(shape.fields)
        for name, kind in shape.fields.items():
            assert isinstance(row[name], kind), f"{name}: {row[name]!r}"


async def waiting(upbit: Upbit) -> str:
    """Place a bid below the market and return its uuid."""
    reply = await upbit.order(
        market=BTC, side="bid", ord_type="limit", volume="0.01", price="100000000"
    )
    return str(reply.body["uuid"])


@pytest.mark.parametrize("path", ["deposits", "withdraws", "deposits/coin_addresses"])
async def test_nothing_was_moved(upbit: Upbit, path: str) -> None:
    assert (await upbit.private("GET", path)).body == []


@pytest.mark.parametrize("path", ["deposits/chance/coin", "withdraws/chance"])
async def test_the_chance_of_a_transfer_names_its_coin(upbit: Upbit, path: str) -> None:
    found = (await upbit.private("GET", path, currency="BTC")).body
    assert "BTC" in (found["currency"], found["currency"]["code"] if "account" in found else "")
    assert (await upbit.private("GET", path, currency="NONE")).status == 404


async def test_an_unknown_path_has_an_envelope(upbit: Upbit) -> None:
    reply = await upbit.public("nothing/here")
    assert (reply.status, list(reply.body)) == (404, ["error"])


async def test_markets_may_be_repeated(upbit: Upbit) -> None:
    reply = await upbit.call("GET", f"/v1/ticker?markets={BTC}&markets=KRW-ETH")
    assert [row["market"] for row in reply.body] == [BTC, "KRW-ETH"]


@pytest.mark.parametrize("count", [1, 5, 15])
async def test_a_book_has_as_many_levels_as_asked(upbit: Upbit, count: int) -> None:
    (book,) = (await upbit.public("orderbook", markets=BTC, count=str(count))).body
    assert len(book["orderbook_units"]) == count


async def test_a_book_groups_prices_by_level(upbit: Upbit) -> None:
    (one,) = (await upbit.public("orderbook", markets=BTC)).body
    (book,) = (await upbit.public("orderbook", markets=BTC, level="10000")).body
    assert book["level"] == 10_000
    assert all(unit["ask_price"] % 10_000 == 0 for unit in book["orderbook_units"])
    assert book["total_ask_size"] == one["total_ask_size"]
    assert (await upbit.public("orderbook", markets=BTC, level="12345")).body == []


async def test_trades_of_a_day_ago_are_of_that_day(upbit: Upbit) -> None:
    query = {"market": BTC, "count": "3", "days_ago": "1", "to": "12:00:00"}
    rows = (await upbit.public("trades/ticks", **query)).body
    assert {row["trade_date_utc"] for row in rows} == {"2026-11-14"}
    assert all(row["trade_time_utc"] < "12:00:00" for row in rows)
    assert (await upbit.public("trades/ticks", **query | {"days_ago": "8"})).status == 400


async def test_a_week_is_the_sum_of_its_days(upbit: Upbit) -> None:
    query = {"market": BTC, "to": "2026-11-09T00:00:00Z"}
    days = (await upbit.public("candles/days", count="7", **query)).body
    (week,) = (await upbit.public("candles/weeks", **query)).body
    assert week["first_day_of_period"] == days[-1]["candle_date_time_utc"][:10] == "2026-11-02"
    assert (week["opening_price"], week["trade_price"]) == (
        days[-1]["opening_price"],
        days[0]["trade_price"],
    )
    assert week["high_price"] == max(day["high_price"] for day in days)


async def test_values_may_come_in_the_body_of_a_get(upbit: Upbit) -> None:
    values = {"market": BTC, "state": "wait"}
    query = urlencode(values)
    made = await waiting(upbit)
    reply = await upbit.call("GET", "/v1/orders", upbit.bearer(query), data=values)
    assert [row["uuid"] for row in reply.body] == [made]
    query = f"uuid={made}"
    gone = await upbit.call("DELETE", "/v1/order", upbit.bearer(query), json={"uuid": made})
    assert (gone.status, gone.body["uuid"]) == (200, made)


async def test_orders_are_listed_by_uuid(upbit: Upbit) -> None:
    made = [await waiting(upbit) for _ in range(2)]
    query = "&".join(f"uuids[]={each}" for each in made)
    reply = await upbit.call("GET", f"/v1/orders?{query}", upbit.bearer(query))
    assert sorted(row["uuid"] for row in reply.body) == sorted(made)


async def test_the_name_of_the_hash_may_be_in_lower_case(upbit: Upbit) -> None:
    header = upbit.bearer(f"market={BTC}", query_hash_alg="sha512")
    reply = await upbit.call("GET", f"/v1/orders/chance?market={BTC}", header)
    assert reply.status == 200


async def test_refusals_show_what_is_left(upbit: Upbit) -> None:
    refused = await upbit.call("GET", "/v1/accounts")
    assert (refused.status, refused.headers["Remaining-Req"][:13]) == (401, "group=default")
    replies = [await upbit.public("ticker", markets=BTC) for _ in range(11)]
    assert (replies[-1].status, replies[-1].headers["Remaining-Req"]) == (
        429,
        "group=ticker; min=600; sec=0",
    )


async def test_the_answer_to_an_order_shows_no_fill(upbit: Upbit) -> None:
    placed = (await upbit.order(market=BTC, side="bid", ord_type="price", price="10000")).body
    assert (placed["state"], placed["executed_volume"], placed["trades_count"]) == ("wait", "0", 0)
    now = (await upbit.private("GET", "order", uuid=placed["uuid"])).body
    assert now["trades_count"] == 1


CANDLE_MESSAGE = set(CANDLE) - {"market"} | {"type", "code", "stream_type"}


@pytest.mark.parametrize("kind", ["candle.1s", "candle.1m", "candle.240m"])
async def test_candles_are_streamed(
    upbit: Upbit, clock: ManualClock, stack: AsyncExitStack, kind: str
) -> None:
    await clock.advance(3)
    url = upbit.simulator.ws_url + "/websocket/v1"
    socket = await stack.enter_async_context(upbit.http.ws_connect(url))
    await socket.send_json([{"ticket": "x"}, {"type": kind, "codes": [BTC]}])
    message = json.loads(await socket.receive_bytes(timeout=10))
    assert (message["type"], message["code"], message["stream_type"]) == (kind, BTC, "SNAPSHOT")
    assert set(message) == CANDLE_MESSAGE


async def test_a_streamed_trade_shows_the_best_levels(
    upbit: Upbit, clock: ManualClock, stack: AsyncExitStack
) -> None:
    await clock.advance(3)
    url = upbit.simulator.ws_url + "/websocket/v1"
    socket = await stack.enter_async_context(upbit.http.ws_connect(url))
    subscription = {"type": "trade", "codes": [BTC], "isOnlySnapshot": True}
    await socket.send_json([{"ticket": "x"}, subscription, {"format": "SIMPLE"}])
    message = json.loads(await socket.receive_bytes(timeout=10))
    assert message["bbp"] < message["bap"]
    await socket.send_json([{"ticket": "x"}, subscription | {"isOnlyRealtime": True}])
    await socket.send_str("PING")  # neither a snapshot nor a message of the stream before it
    assert json.loads(await socket.receive_bytes(timeout=10)) == {"status": "UP"}
