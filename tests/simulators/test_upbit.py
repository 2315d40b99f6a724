"""Upbit over REST: keys, limits, quotes, orders."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import ManualClock
from qts.simulators.market.rules import COIN
from qts.simulators.upbit.gateway import amount_of, number, text
from tests.simulators.clients import Upbit
from tests.simulators.conftest import StartUpbit

BTC = "KRW-BTC"


def error(reply: object) -> tuple[int, object]:
    return reply.status, reply.body["error"]["name"]  # type: ignore[attr-defined]


def book(upbit: Upbit, code: str = BTC) -> tuple[Decimal, Decimal]:
    """Best bid and ask."""
    market = upbit.simulator.market
    made = market.book(market.index[code])
    return Decimal(made.bids[0].price) / COIN, Decimal(made.asks[0].price) / COIN


@given(st.integers(1, 10**22))
def test_amounts_are_written_and_read_without_loss(amount: int) -> None:
    assert amount_of(text(amount), "x") == amount
    assert Decimal(text(amount)) == Decimal(amount) / COIN
    assert number(amount) == pytest.approx(amount / COIN)


# Keys


@pytest.mark.parametrize("algorithm", ["HS256", "HS512"])
async def test_both_signature_algorithms_are_accepted(upbit: Upbit, algorithm: str) -> None:
    reply = await upbit.call("GET", "/v1/accounts", upbit.bearer(algorithm=algorithm))
    assert reply.status == 200
    assert reply.body == [
        {
            "currency": "KRW",
            "balance": "100000000",
            "locked": "0",
            "avg_buy_price": "0",
            "avg_buy_price_modified": False,
            "unit_currency": "KRW",
        }
    ]


async def test_a_nonce_works_once(upbit: Upbit) -> None:
    header = upbit.bearer(nonce="once")
    assert (await upbit.call("GET", "/v1/accounts", header)).status == 200
    assert error(await upbit.call("GET", "/v1/accounts", header)) == (401, "nonce_used")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("", "no_authorization_token"),
        ("Bearer a.b", "jwt_verification"),
        ("Bearer e30.e30.x", "jwt_verification"),
        ("Bearer eyJhbGciOiJub25lIn0.e30.", "jwt_verification"),
    ],
)
async def test_what_is_not_a_token_is_refused(upbit: Upbit, header: str, name: str) -> None:
    assert error(await upbit.call("GET", "/v1/accounts", header)) == (401, name)


async def test_a_signature_of_another_secret_is_refused(upbit: Upbit) -> None:
    head, _, _ = upbit.bearer().rpartition(".")
    other = upbit.bearer().rpartition(".")[2]
    reply = await upbit.call("GET", "/v1/accounts", f"{head}.{other}")
    assert error(reply) == (401, "jwt_verification")


async def test_the_query_hash_must_be_of_the_query(upbit: Upbit) -> None:
    header = upbit.bearer("uuid=1")
    reply = await upbit.call("GET", "/v1/order?uuid=2", header)
    assert error(reply) == (401, "invalid_query_payload")
    order = {"market": BTC, "side": "bid", "ord_type": "price", "price": "10000"}
    header = upbit.bearer("market=KRW-BTC&side=bid&ord_type=price&price=9999")
    reply = await upbit.call("POST", "/v1/orders", header, json=order)
    assert error(reply) == (401, "invalid_query_payload")
    assert upbit.simulator.orders.entries == {}


# Limits


async def test_the_eleventh_ticker_of_a_second_is_refused(upbit: Upbit, clock: ManualClock) -> None:
    replies = [await upbit.public("ticker", markets=BTC) for _ in range(11)]
    assert [reply.status for reply in replies] == [200] * 10 + [429]
    assert replies[0].headers["Remaining-Req"] == "group=ticker; min=600; sec=9"
    assert replies[9].headers["Remaining-Req"].endswith("sec=0")
    assert replies[10].body["error"]["name"] == 429
    assert (await upbit.public("orderbook", markets=BTC)).status == 200
    await clock.advance(1)
    assert (await upbit.public("ticker", markets=BTC)).status == 200


async def test_twelve_orders_a_second_and_thirty_of_the_rest(upbit: Upbit) -> None:
    bid, _ = book(upbit)
    order = {"market": BTC, "side": "bid", "ord_type": "limit", "volume": "0.0001"}
    replies = [await upbit.order(**order, price=str(bid - 100_000)) for _ in range(13)]
    assert [reply.status for reply in replies] == [201] * 12 + [429]
    assert error(replies[-1]) == (429, "too_many_requests")
    others = [(await upbit.private("GET", "accounts")).status for _ in range(31)]
    assert others == [200] * 30 + [429]
    keys = (await upbit.control("GET", "stats"))["keys"]
    assert keys[f"key {upbit.key.access_key} order"]["worst"]["second"] == 13


async def test_a_client_that_does_not_slow_down_is_blocked(
    start_upbit: StartUpbit, clock: ManualClock
) -> None:
    upbit = await start_upbit(block_after=3, block_s=5.0)
    statuses = [(await upbit.public("ticker", markets=BTC)).status for _ in range(15)]
    assert statuses == [200] * 10 + [429] * 3 + [418] * 2
    await clock.advance(4.9)
    reply = await upbit.public("orderbook", markets=BTC)
    assert (reply.status, reply.body["error"]["message"]) == (418, "blocked for 1 seconds")
    await clock.advance(0.1)
    assert (await upbit.public("orderbook", markets=BTC)).status == 200


async def test_an_origin_slows_quotation_down(upbit: Upbit) -> None:
    url = upbit.simulator.url + "/v1/ticker?markets=KRW-BTC"
    statuses = []
    for _ in range(2):
        async with upbit.http.get(url, headers={"Origin": "http://example.com"}) as reply:
            statuses.append(reply.status)
    assert statuses == [200, 429]


# Quotes


async def test_all_markets_come_in_one_call(upbit: Upbit) -> None:
    codes = [row["market"] for row in (await upbit.public("market/all")).body]
    tickers = (await upbit.public("ticker/all", quote_currencies="KRW")).body
    assert [row["market"] for row in tickers] == codes
    assert len(codes) == 20
    named = (await upbit.public("ticker", markets=",".join(codes[:3]))).body
    assert named == tickers[:3]
    for row in tickers:
        assert row["low_price"] <= row["trade_price"] <= row["high_price"]
        change = row["trade_price"] - row["prev_closing_price"]
        assert row["signed_change_price"] == pytest.approx(change)


async def test_a_book_has_thirty_levels_on_ticks(upbit: Upbit) -> None:
    (row,) = (await upbit.public("orderbook", markets=BTC)).body
    units = row["orderbook_units"]
    assert len(units) == 30
    asks, bids = [u["ask_price"] for u in units], [u["bid_price"] for u in units]
    assert asks == sorted(asks)
    assert bids == sorted(bids, reverse=True)
    assert bids[0] < asks[0]
    (instrument,) = (await upbit.public("orderbook/instruments", markets=BTC)).body
    assert (instrument["tick_size"], asks[1] - asks[0]) == ("1000", 1000)


async def test_trades_have_unique_ids(upbit: Upbit, clock: ManualClock) -> None:
    await clock.advance(30)
    rows = (await upbit.public("trades/ticks", market=BTC, count="20")).body
    assert len({row["sequential_id"] for row in rows}) == len(rows) == 20
    stamps = [row["timestamp"] for row in rows]
    assert stamps == sorted(stamps, reverse=True)


async def test_an_unknown_market_is_not_found(upbit: Upbit) -> None:
    assert error(await upbit.public("ticker", markets="KRW-NONE")) == (404, 404)
    assert (await upbit.public("ticker")).status == 400


# Orders


async def test_an_order_waits_and_can_be_cancelled(upbit: Upbit) -> None:
    bid, _ = book(upbit)
    price = str(bid - 1_000_000)
    reply = await upbit.order(
        market=BTC, side="bid", ord_type="limit", volume="0.01", price=price, identifier="mine"
    )
    placed = reply.body
    assert (reply.status, placed["state"], placed["executed_volume"]) == (201, "wait", "0")
    value = Decimal(price) * Decimal("0.01")
    assert Decimal(placed["locked"]) == value * Decimal("1.0005")
    assert Decimal(placed["reserved_fee"]) == value * Decimal("0.0005")
    by_mark = (await upbit.private("GET", "order", identifier="mine")).body
    assert by_mark["uuid"] == placed["uuid"]
    assert by_mark["trades"] == []
    assert [o["uuid"] for o in (await upbit.private("GET", "orders/open")).body] == [placed["uuid"]]
    gone = (await upbit.private("DELETE", "order", uuid=placed["uuid"])).body
    assert (gone["state"], gone["remaining_volume"]) == ("cancel", "0.01")
    assert (await upbit.private("GET", "accounts")).body[0]["locked"] == "0"
    assert (await upbit.private("GET", "orders/closed")).body[0]["state"] == "cancel"
    again = await upbit.private("DELETE", "order", uuid=placed["uuid"])
    assert again.status == 400


async def test_a_marketable_order_is_done_with_its_trades(upbit: Upbit) -> None:
    _, ask = book(upbit)
    placed = (
        await upbit.order(market=BTC, side="bid", ord_type="limit", volume="0.01", price=str(ask))
    ).body
    order = (await upbit.private("GET", "order", uuid=placed["uuid"])).body
    assert (order["state"], order["executed_volume"], order["trades_count"]) == ("done", "0.01", 1)
    (trade,) = order["trades"]
    assert Decimal(trade["funds"]) == ask * Decimal("0.01")
    krw, btc = (await upbit.private("GET", "accounts")).body
    paid = ask * Decimal("0.01") * Decimal("1.0005")
    assert Decimal(krw["balance"]) == 100_000_000 - paid
    assert (btc["currency"], btc["balance"], Decimal(btc["avg_buy_price"])) == ("BTC", "0.01", ask)


async def test_a_market_buy_ends_as_cancel_with_fills(upbit: Upbit) -> None:
    placed = (await upbit.order(market=BTC, side="bid", ord_type="price", price="1000000")).body
    order = (await upbit.private("GET", "order", uuid=placed["uuid"])).body
    assert order["state"] == "cancel"
    assert Decimal(order["executed_volume"]) > 0
    spent = sum(Decimal(trade["funds"]) for trade in order["trades"])
    assert 0 <= 1_000_000 - spent < 2


async def test_a_market_sale_sells_all(upbit: Upbit) -> None:
    await upbit.order(market=BTC, side="bid", ord_type="price", price="1000000")
    coins = (await upbit.private("GET", "accounts")).body[1]["balance"]
    sold = (await upbit.order(market=BTC, side="ask", ord_type="market", volume=coins)).body
    assert (sold["state"], sold["executed_volume"]) == ("wait", "0")  # before it matches
    assert (await upbit.private("GET", "order", uuid=sold["uuid"])).body["state"] == "done"
    assert len((await upbit.private("GET", "accounts")).body) == 1


@pytest.mark.parametrize(
    ("change", "status", "name"),
    [
        ({"price": "100000500"}, 400, "invalid_price_bid"),
        ({"price": "nan"}, 400, "invalid_price_bid"),
        ({"volume": "0.00001"}, 400, "under_min_total_bid"),
        ({"volume": "10"}, 400, "insufficient_funds_bid"),
        ({"volume": "0.123456789"}, 400, "validation_error"),
        ({"side": "ask"}, 400, "insufficient_funds_ask"),
        ({"side": "up"}, 400, "validation_error"),
        ({"ord_type": "price"}, 400, "validation_error"),
        ({"ord_type": "market", "side": "ask"}, 400, "validation_error"),
        ({"time_in_force": "soon"}, 400, "validation_error"),
        ({"time_in_force": "post_only", "smp_type": "reduce"}, 400, "validation_error"),
        ({"market": "KRW-NONE"}, 404, "market_not_found"),
    ],
)
async def test_wrong_orders_are_refused(
    upbit: Upbit, change: dict[str, str], status: int, name: str
) -> None:
    order = {"market": BTC, "side": "bid", "ord_type": "limit"}
    order |= {"volume": "0.01", "price": "100000000"}
    assert error(await upbit.order(**(order | change))) == (status, name)
    assert upbit.simulator.orders.entries == {}
    assert (await upbit.private("GET", "accounts")).body[0]["balance"] == "100000000"


async def test_best_needs_ioc_or_fok(upbit: Upbit) -> None:
    best = {"market": BTC, "side": "bid", "ord_type": "best", "price": "10000"}
    assert error(await upbit.order(**best)) == (400, "validation_error")
    assert (await upbit.order(**best, time_in_force="ioc")).status == 201


async def test_post_only_is_refused_where_it_would_match(upbit: Upbit) -> None:
    bid, ask = book(upbit)
    order = {"market": BTC, "side": "bid", "ord_type": "limit", "volume": "0.01"}
    order |= {"time_in_force": "post_only"}
    assert error(await upbit.order(**order, price=str(ask))) == (400, "create_bid_error")
    assert (await upbit.order(**order, price=str(bid))).body["state"] == "wait"


async def test_an_identifier_is_used_up_even_by_a_failure(upbit: Upbit) -> None:
    order = {"market": BTC, "side": "bid", "ord_type": "limit", "identifier": "once"}
    order |= {"price": "100000000"}
    assert error(await upbit.order(**order, volume="10"))[1] == "insufficient_funds_bid"
    assert error(await upbit.order(**order, volume="0.01")) == (400, "identifier_already_exists")
    assert error(await upbit.private("GET", "order", identifier="once")) == (404, "order_not_found")


async def test_a_dry_run_leaves_nothing(upbit: Upbit) -> None:
    order = {"market": BTC, "side": "bid", "ord_type": "limit"}
    order |= {"volume": "0.01", "price": "100000000"}
    reply = await upbit.private("POST", "orders/test", **order)
    assert (reply.status, reply.body["market"]) == (201, BTC)
    assert error(await upbit.private("GET", "order", uuid=reply.body["uuid"]))[0] == 404


async def test_cancel_and_new_keeps_what_is_left(upbit: Upbit) -> None:
    order = {"market": BTC, "side": "bid", "ord_type": "limit"}
    order |= {"volume": "0.01", "price": "100000000"}
    old = (await upbit.order(**order)).body
    reply = await upbit.private(
        "POST",
        "orders/cancel_and_new",
        prev_order_uuid=old["uuid"],
        new_ord_type="limit",
        new_volume="remain_only",
        new_price="101000000",
    )
    assert (reply.body["uuid"], reply.body["state"]) == (old["uuid"], "cancel")
    new = (await upbit.private("GET", "order", uuid=reply.body["new_order_uuid"])).body
    assert (new["price"], new["volume"], new["state"]) == ("101000000", "0.01", "wait")


async def test_many_can_be_cancelled_at_once(upbit: Upbit) -> None:
    order = {"market": BTC, "side": "bid", "ord_type": "limit"}
    order |= {"volume": "0.01", "price": "100000000"}
    for _ in range(3):
        await upbit.order(**order)
    gone = (await upbit.private("DELETE", "orders/open", count="2")).body
    assert gone["success"]["count"] == 2
    assert len((await upbit.private("GET", "orders/open")).body) == 1
    assert (await upbit.private("DELETE", "orders/open")).status == 429  # one in two seconds


async def test_the_chance_of_a_market(upbit: Upbit) -> None:
    chance = (await upbit.private("GET", "orders/chance", market=BTC)).body
    assert chance["bid_fee"] == "0.0005"
    assert chance["market"]["bid"]["min_total"] == "5000"


async def test_a_resting_order_fills_when_the_price_is_reached(
    upbit: Upbit, clock: ManualClock
) -> None:
    bid, _ = book(upbit)
    price = str(bid - 500_000)
    placed = (
        await upbit.order(market=BTC, side="bid", ord_type="limit", volume="0.01", price=price)
    ).body
    await upbit.control("POST", "market", what="surge", symbol=BTC, percent=-2.0, over_s=3)
    await clock.advance(5)
    order = (await upbit.private("GET", "order", uuid=placed["uuid"])).body
    assert (order["state"], order["trades"][0]["price"]) == ("done", price)


async def test_a_fault_answers_429_below_the_limit(upbit: Upbit) -> None:
    await upbit.control("POST", "faults", kind="limit", path="/v1/orders", count=1)
    order = {"market": BTC, "side": "bid", "ord_type": "price", "price": "10000"}
    assert (await upbit.order(**order)).status == 429
    assert (await upbit.order(**order)).status == 201


async def test_simultaneous_orders_keep_the_account_exact(upbit: Upbit) -> None:
    order = {"market": BTC, "side": "bid", "ord_type": "price", "price": "500000"}
    await asyncio.gather(*(upbit.order(**order) for _ in range(10)))
    entries = upbit.simulator.orders.entries.values()
    paid = sum(
        fill.price * fill.quantity // COIN
        + entry.customer.account.fee("buy", fill.price * fill.quantity // COIN)
        for entry in entries
        for fill in entry.order.fills
    )
    (customer,) = upbit.simulator.gateway.customers.values()
    assert customer.account.cash == 100_000_000 * COIN - paid
    assert customer.account.locked == 0
