"""KIS as a broker: names for fills that have none, and orders found without a name of ours."""

from __future__ import annotations

import hashlib
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from qts.brokers import BrokersConfig, KisBroker, OrderMatches, StreamGap
from qts.brokers.kis_codec import KisOrderRow
from qts.brokers.kis_fills import POLL_INTERVAL_S, KisFillStore, unit_price
from qts.database import Database
from qts.domain import (
    BrokerOrder,
    FeeSchedule,
    OrderRequest,
    OrderState,
    OrderType,
    OutcomeUnknownError,
    RefusedError,
    Secret,
    Side,
    SystemClock,
    UnreachableError,
)
from qts.testing import ReportListener
from qts.venues import RateLimitConfig, RateLimitedError, RequestPriority, VenueRejectedError
from tests.conformance.venues import (
    COSTS,
    MORNING,
    KisVenue,
    inject_fault,
    kis,
    kis_client,
    kis_config,
)
from tests.instruments import LISTED
from tests.venues.kis import ScriptedServer, json_response

NOTHING_KNOWN: frozenset[str] = frozenset()
CONFIG = BrokersConfig(broker="kis", costs=COSTS)


@pytest.fixture
async def venue(database: Database, tmp_path: Path) -> AsyncIterator[KisVenue]:
    async with kis(database, tmp_path) as venue:
        yield venue


async def another_broker(
    venue: KisVenue, database: Database, folder: Path, stack: AsyncExitStack
) -> KisBroker:
    """Return a broker as after a restart: the same key and database."""
    client = await stack.enter_async_context(
        kis_client(kis_config(venue.simulator.url), folder, venue.clock)
    )
    return KisBroker(client, database, CONFIG, venue.clock, LISTED)


def order_ids(found: OrderMatches) -> list[str]:
    return [order.broker_order_id for order in found.candidates]


# -- fills


async def test_fills_keep_their_trade_ids_after_a_restart(
    venue: KisVenue, database: Database, tmp_path: Path
) -> None:
    _, ask = venue.quote()
    quantity = venue.more_than_shown()
    order_id = await venue.broker.place(venue.request(price=ask, quantity=quantity))
    before = await venue.broker.fills(MORNING)
    await venue.move(-2.0)
    await venue.until_closed(order_id)
    async with AsyncExitStack() as stack:
        broker = await another_broker(venue, database, tmp_path, stack)
        after = await broker.fills(MORNING)
        assert after[: len(before)] == before
        assert sum(fill.quantity for fill in after) == quantity
        assert await venue.broker.fills(MORNING) == after
        amount = sum((fill.quantity * fill.price for fill in after), Decimal(0))
    assert abs(amount - (await venue.record())[order_id].paid) < Decimal("0.0001")


async def test_a_notice_that_precedes_the_list_is_looked_up_again(
    database: Database, tmp_path: Path
) -> None:
    async with (
        kis(database, tmp_path, visible_after_ms=300) as venue,
        ReportListener.on(venue.broker) as listener,
    ):
        order_id = await venue.broker.place(venue.request())
        assert await venue.broker.fills(MORNING) == []
        for _ in range(20):
            await venue.clock.advance(0.1)
            if listener.fills:
                break
        await listener.until(lambda: listener.filled() == venue.quantity)
        assert {fill.broker_order_id for fill in listener.fills} == {order_id}


async def test_fills_are_found_without_notices_when_kis_rejects_their_subscription(
    database: Database, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        venue = await stack.enter_async_context(kis(database, tmp_path))
        config = msgspec.structs.replace(kis_config(venue.simulator.url), hts_id=Secret("another"))
        client = await stack.enter_async_context(
            kis_client(config, tmp_path / "other", venue.clock)
        )
        broker = KisBroker(client, database, CONFIG, venue.clock, LISTED)
        listener = await stack.enter_async_context(ReportListener.on(broker))
        (gap,) = listener.reports
        assert gap == StreamGap("fill notices rejected: OPSP8992 invalid tr_key")
        order_id = await broker.place(venue.request())
        await venue.clock.advance(POLL_INTERVAL_S)
        await listener.until(lambda: listener.filled() == venue.quantity)
        assert {fill.broker_order_id for fill in listener.fills} == {order_id}
        await listener.until(lambda: isinstance(listener.reports[-1], BrokerOrder))
        assert [each for each in listener.reports if isinstance(each, StreamGap)] == [gap]


@pytest.mark.parametrize("seed", range(5))
async def test_steps_add_up_whatever_the_order_of_reads(seed: int, database: Database) -> None:
    """Two processes, each restarted at random, read order lists that may be stale."""
    rng = random.Random(seed)  # noqa: S311 - reproducible on purpose
    costs = FeeSchedule(Decimal(0), Decimal(0))
    parts = [(rng.randrange(1, 50), 100 * rng.randrange(690, 710)) for _ in range(20)]
    filled = [sum(q for q, _ in parts[: n + 1]) for n in range(20)]
    amounts = [sum(q * p for q, p in parts[: n + 1]) for n in range(20)]
    stores = [
        KisFillStore(database, "a", lambda _: costs),
        KisFillStore(database, "a", lambda _: costs),
    ]
    known: dict[str, Decimal] = {}
    for now in range(20):
        for _ in range(2):
            index, read = rng.randrange(2), max(0, now - rng.randrange(3))
            if rng.random() < 0.2:
                stores[index] = KisFillStore(database, "a", lambda _: costs)
            row = KisOrderRow(an_order(filled[read], filled[-1]), Decimal(amounts[read]), "")
            for fill in await stores[index].record([row], MORNING):
                assert known.setdefault(fill.trade_id, fill.quantity) == fill.quantity
    last = KisOrderRow(an_order(filled[-1], filled[-1]), Decimal(amounts[-1]), "")
    await stores[0].record([last], MORNING)
    fills = await KisFillStore(database, "a", lambda _: costs).since(MORNING)
    assert sum(fill.quantity for fill in fills) == filled[-1]
    total = sum((fill.quantity * fill.price for fill in fills), Decimal(0))
    assert abs(total - amounts[-1]) < Decimal("0.0001")
    assert known.items() <= {fill.trade_id: fill.quantity for fill in fills}.items()


async def test_a_fill_whose_amount_is_missing_has_no_price_until_it_is_known(
    database: Database,
) -> None:
    store = KisFillStore(database, "a", lambda _: FeeSchedule(Decimal(0), Decimal(0)))
    for _ in range(2):
        (lacking,) = await store.record([KisOrderRow(an_order(4, 10), Decimal(0), "")], MORNING)
        assert (lacking.quantity, lacking.price) == (Decimal(4), Decimal(0))
    (fill,) = await store.record([KisOrderRow(an_order(4, 10), Decimal(400), "")], MORNING)
    assert (fill.trade_id, fill.price) == (lacking.trade_id, Decimal(100))


@pytest.mark.parametrize("first_call", ["record", "since"])
async def test_steps_from_before_accounts_had_keys_are_moved(
    database: Database, first_call: str
) -> None:
    """Without them the next total of an order would count as one fill of the whole quantity."""
    costs = FeeSchedule(Decimal(0), Decimal(0))
    four, ten = (
        KisOrderRow(an_order(filled, 10), Decimal(filled * 70_000), "") for filled in (4, 10)
    )
    await KisFillStore(database, "number", lambda _: costs).record([four], MORNING)
    await KisFillStore(database, "another", lambda _: costs).record([four], MORNING)
    store = KisFillStore(database, "key", lambda _: costs, former="number")
    if first_call == "since":
        assert [fill.quantity for fill in await store.since(MORNING)] == [4]
    fills = await store.record([ten], MORNING)
    assert [(fill.trade_id, fill.quantity) for fill in fills] == [
        ("20261116-1-4", Decimal(4)),
        ("20261116-1-10", Decimal(6)),
    ]
    rows = await database.fetch("SELECT account, filled FROM kis_step ORDER BY account, filled")
    assert [tuple(row) for row in rows] == [("another", 4), ("key", 4), ("key", 10)]


async def test_a_broker_moves_the_steps_of_its_number(
    venue: KisVenue, database: Database, tmp_path: Path
) -> None:
    """They were stored under the digest of the account number alone."""
    account = kis_config(venue.simulator.url).account
    assert account is not None
    former = hashlib.sha256(account.reveal().encode()).hexdigest()[:16]
    row = KisOrderRow(an_order(4, 10), Decimal(280_000), "")
    await KisFillStore(database, former, lambda _: FeeSchedule(Decimal(0), Decimal(0))).record(
        [row], MORNING
    )
    async with AsyncExitStack() as stack:
        broker = await another_broker(venue, database, tmp_path, stack)
        assert [fill.trade_id for fill in await broker.fills(MORNING)] == ["20261116-1-4"]
        assert await database.fetchval("SELECT account FROM kis_step") == broker.key.account


def an_order(filled: int, quantity: int) -> BrokerOrder:
    return BrokerOrder(
        broker_order_id="20261116-1",
        symbol="005930",
        side=Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal(quantity),
        filled=Decimal(filled),
        state=OrderState.OPEN,
        placed_at=MORNING,
    )


def test_an_average_price_is_rounded_to_eight_decimals() -> None:
    assert unit_price(Decimal(700_600), Decimal(10)) == 70_060
    assert unit_price(Decimal(200_100), Decimal(3)) == 66_700
    assert unit_price(Decimal(200_000), Decimal(3)) == Decimal("66666.66666667")


# -- search for lost orders


async def test_all_matching_orders_are_candidates(venue: KisVenue) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    first = await venue.broker.place(request)
    inject_fault(venue, "drop_reply")
    with pytest.raises(OutcomeUnknownError):
        await venue.broker.place(request)
    found = await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)
    assert len(found.candidates) == 2
    (lost,) = order_ids(await venue.broker.find_order(request, sent_at, frozenset({first})))
    assert lost != first


async def test_another_order_is_no_candidate(venue: KisVenue) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    assert request.price is not None
    for other in (
        venue.resting(quantity=Decimal(11)),
        venue.request(price=request.price - 100),
        venue.request(),
    ):
        await venue.broker.place(other)
    await venue.broker.place(venue.request(Side.SELL))
    assert (await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)).candidates == ()


async def test_an_order_of_another_time_is_no_candidate(venue: KisVenue) -> None:
    request = venue.resting()
    await venue.broker.place(request)
    placed_at = venue.clock.now()
    for moment, count in ((5, 0), (2, 1), (-60, 1), (-65, 0)):
        sent_at = placed_at + timedelta(seconds=moment)
        found = await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)
        assert len(found.candidates) == count, moment
        assert len(found.elsewhen) == 1 - count  # it keeps the order from being absent


async def test_a_lost_market_order_is_found_after_it_was_filled(venue: KisVenue) -> None:
    request, sent_at = venue.request(), venue.clock.now()
    inject_fault(venue, "drop_reply")
    with pytest.raises(OutcomeUnknownError):
        await venue.broker.place(request)
    (order,) = (await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)).candidates
    assert (order.type, order.state) == (OrderType.MARKET, OrderState.FILLED)


# -- lists and cancels


@pytest.mark.parametrize(("paper", "count"), [(False, 205), (True, 40)])
async def test_all_pages_are_read(
    paper: bool, count: int, database: Database, tmp_path: Path
) -> None:
    async with kis(database, tmp_path, paper=paper) as venue:
        # A paper key has one request a second, so the orders are placed in the simulator directly.
        (customer,) = venue.simulator.gateway.customers.values()
        bid, _ = venue.quote()
        body = {
            "CANO": customer.key.account[:8],
            "ACNT_PRDT_CD": customer.key.account[8:],
            "PDNO": venue.symbol,
            "ORD_DVSN": "00",
            "ORD_QTY": "1",
            "ORD_UNPR": f"{bid - 500:.0f}",
        }
        for _ in range(count):
            venue.simulator.orders.place(customer, body, "buy")
        listed = await venue.broker.orders(MORNING)
        assert [order.broker_order_id for order in listed] == list(await venue.record())
        assert len(listed) == count


async def test_an_order_of_another_process_can_be_cancelled(
    venue: KisVenue, database: Database, tmp_path: Path
) -> None:
    order_id = await venue.broker.place(venue.resting())
    async with AsyncExitStack() as stack:
        broker = await another_broker(venue, database, tmp_path, stack)
        await broker.cancel(order_id)
        assert not (await venue.record())[order_id].is_open
        for unknown in ("20261116-999", "nonsense"):
            with pytest.raises(VenueRejectedError):
                await broker.cancel(unknown)


async def test_what_was_sold_out_is_not_held(venue: KisVenue) -> None:
    await venue.broker.place(venue.request())
    await venue.broker.place(venue.request(Side.SELL))
    assert (await venue.broker.account()).holdings == ()


async def test_an_order_of_yesterday_is_not_open_today(database: Database, tmp_path: Path) -> None:
    async with kis(database, tmp_path, token_interval_s=0.0) as venue:
        order_id = await venue.broker.place(venue.resting())
        venue.clock.set_wall(MORNING + timedelta(days=1))
        (order,) = await venue.broker.orders(MORNING)
        assert (order.broker_order_id, order.state) == (order_id, OrderState.CANCELLED)


async def test_parts_of_a_share_are_rejected_before_anything_is_sent(venue: KisVenue) -> None:
    with pytest.raises(VenueRejectedError, match="whole"):
        await venue.broker.place(venue.request(quantity=Decimal("1.5")))
    assert venue.simulator.stats()["keys"][venue.simulator.config.keys[0].app_key]["requests"] == 0


# -- what a reply can be


@pytest.mark.parametrize(
    "reply",
    [
        json_response({"rt_cd": "0", "msg_cd": "APBK0013", "output": {}}),
        json_response({"rt_cd": "0", "msg_cd": "APBK0013", "output": {"ODNO": 7}}),
        json_response({"rt_cd": "0"}),
        json_response({}),
        json_response([]),
        web.Response(text="OK"),
        web.Response(text="<html>bad gateway</html>", status=502),
        json_response({"error": "?"}, 503),
        json_response({"rt_cd": "1", "msg_cd": "EGW00302", "msg1": ""}, 500),
        json_response({"rt_cd": "1", "msg_cd": "EGW99999", "msg1": "not listed"}, 500),
        json_response({"rt_cd": "7", "msg_cd": "APBK9999", "msg1": "not listed"}),
    ],
)
async def test_an_ambiguous_reply_leaves_the_outcome_unknown(
    reply: web.Response, database: Database, tmp_path: Path
) -> None:
    with pytest.raises(OutcomeUnknownError):
        await place_with_reply(reply, database, tmp_path)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (
            json_response({"rt_cd": "7", "msg_cd": "APBK0952", "msg1": "no money"}),
            VenueRejectedError,
        ),
        (
            json_response({"rt_cd": "1", "msg_cd": "EGW00201", "msg1": "too many"}, 500),
            RateLimitedError,
        ),
        (json_response({"rt_cd": "1", "msg_cd": "EGW00201", "msg1": "too many"}), RateLimitedError),
        (
            json_response({"rt_cd": "1", "msg_cd": "IGW00002", "msg1": "whose account"}, 500),
            VenueRejectedError,
        ),
    ],
)
async def test_a_rejection_means_that_nothing_was_placed(
    reply: web.Response, error: type[Exception], database: Database, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        await place_with_reply(reply, database, tmp_path)
    assert not isinstance(raised.value, OutcomeUnknownError)


async def place_with_reply(reply: web.Response, database: Database, folder: Path) -> None:
    def answer(_request: web.Request) -> web.Response:
        return web.Response(body=reply.body, status=reply.status, content_type=reply.content_type)

    async with (
        ScriptedServer(answer) as server,
        kis_client(kis_config(server.url), folder) as client,
    ):
        broker = KisBroker(client, database, CONFIG, SystemClock(), LISTED)
        try:
            await broker.place(a_request())
        finally:
            assert server.requests == 1


def a_request() -> OrderRequest:
    return OrderRequest(
        client_order_id="x",
        symbol="005930",
        side=Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal(1),
    )


async def test_without_a_connection_nothing_was_placed(
    venue: KisVenue, database: Database, tmp_path: Path
) -> None:
    """A token exists; the port of the order API is closed."""
    async with AsyncExitStack() as stack:
        broker = await another_broker(venue, database, tmp_path, stack)
        await broker.account()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            client = await stack.enter_async_context(kis_client(kis_config(url), tmp_path))
            with pytest.raises(UnreachableError) as raised:
                await KisBroker(client, database, CONFIG, venue.clock, LISTED).place(
                    venue.request()
                )
    assert not isinstance(raised.value, OutcomeUnknownError)
    assert await venue.record() == {}


async def test_an_order_that_waits_too_long_for_its_turn_is_not_sent(
    venue: KisVenue, database: Database, tmp_path: Path
) -> None:
    limits = RateLimitConfig(
        per_second=1, per_minute=60, orders_per_second=0, accounts_per_second=0
    )
    config = kis_config(venue.simulator.url, limits=limits)
    brokers_config = BrokersConfig(broker="kis", costs=COSTS, send_timeout_s=0.05)
    async with kis_client(config, tmp_path) as client:
        broker = KisBroker(client, database, brokers_config, venue.clock, LISTED)
        assert client.limiter.try_acquire(RequestPriority.ORDER)  # another request holds the permit
        with pytest.raises(RateLimitedError, match="nothing was sent"):
            await broker.place(venue.request())
        client.limiter.release()
    assert await venue.record() == {}


async def test_a_broker_without_an_account_is_refused(database: Database, tmp_path: Path) -> None:
    config = kis_config("http://127.0.0.1:1", account=None)
    async with kis_client(config, tmp_path) as client:
        with pytest.raises(RefusedError, match=r"venues\.kis\.account"):
            KisBroker(client, database, CONFIG, SystemClock(), LISTED)


@pytest.mark.parametrize("rows", [[{"odno": "x"}], {"odno": "x"}, [{}], "rows", [7]])
async def test_unreadable_rows_are_unreachable(
    rows: object, database: Database, tmp_path: Path
) -> None:
    reply = {"rt_cd": "0", "msg_cd": "KIOK0510", "output1": rows, "output2": []}
    async with (
        ScriptedServer(lambda _request: json_response(reply)) as server,
        kis_client(kis_config(server.url), tmp_path) as client,
    ):
        broker = KisBroker(client, database, CONFIG, SystemClock(), LISTED)
        for request in (
            broker.orders(MORNING),
            broker.fills(MORNING),
            broker.account(),
            broker.find_order(a_request(), MORNING, NOTHING_KNOWN),
        ):
            with pytest.raises(UnreachableError):
                await request
