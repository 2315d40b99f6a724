"""Faults on demand and the control API."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from qts.domain import ManualClock, RefusedError
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.simulators.control import is_loopback
from tests.simulators.clients import Kis
from tests.simulators.conftest import StartKis

LOST = (aiohttp.ClientError, ConnectionError)


async def test_a_dropped_reply_leaves_the_order_placed(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="drop_reply", path="/uapi", method="POST", count=1)
    with pytest.raises(LOST):
        await kis.order("buy", 10)
    rows = (await kis.executions()).body["output1"]
    assert [row["tot_ccld_qty"] for row in rows] == ["10"]


async def test_a_dropped_request_leaves_nothing(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="drop_request", count=1)
    with pytest.raises(LOST):
        await kis.order("buy", 10)
    assert (await kis.executions()).body["output1"] == []


async def test_an_unknown_outcome_is_executed(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="unknown", count=1)
    reply = await kis.order("buy", 10)
    assert (reply.status, reply.code) == (500, "EGW00301")
    assert len((await kis.executions()).body["output1"]) == 1


async def test_a_cut_reply_breaks_off_in_its_middle(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="cut", count=1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await kis.price()
    assert (await kis.price()).status == 200


async def test_a_rejection_below_the_limit(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="limit", count=2)
    replies = [await kis.order("buy", 1) for _ in range(3)]
    assert [reply.code for reply in replies] == ["EGW00201", "EGW00201", "APBK0013"]
    assert len(kis.simulator.orders.entries) == 1


async def test_random_rejections_have_their_share(start_kis: StartKis, clock: ManualClock) -> None:
    kis = await start_kis(random_refusals=0.25)
    codes = []
    for _ in range(100):
        codes.append((await kis.price()).code)
        await clock.advance(0.06)
    assert 10 <= codes.count("EGW00201") <= 45
    assert kis.simulator.gateway.customers[kis.key.app_key].meter.refused == 0


async def test_an_error_has_no_json(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="error", path="/uapi/domestic-stock/v1/quotations")
    with pytest.raises(aiohttp.ContentTypeError):
        await kis.price()
    assert (await kis.order("buy", 1)).status == 200


async def test_an_error_may_have_a_code(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="error", code="EGW00215", count=1)
    reply = await kis.balance()
    assert (reply.status, reply.code) == (500, "EGW00215")


async def test_a_slow_reply_waits(kis: Kis, clock: ManualClock) -> None:
    await kis.control("POST", "faults", kind="slow", seconds=5, count=1)
    request = asyncio.create_task(kis.price())
    async with asyncio.timeout(60):
        while not (await kis.control("GET", "faults"))[0]["struck"]:
            pass  # the request is on its way
    await clock.advance(4.9)
    await kis.control("GET", "faults")
    assert not request.done()
    await clock.advance(0.2)
    assert (await request).status == 200


async def test_faults_can_be_listed_and_cleared(kis: Kis) -> None:
    await kis.control("POST", "faults", kind="limit", path="/uapi", chance=0.5)
    (fault,) = await kis.control("GET", "faults")
    assert (fault["kind"], fault["path"], fault["chance"]) == ("limit", "/uapi", 0.5)
    assert await kis.control("DELETE", "faults") == []
    assert (await kis.price()).status == 200


@pytest.mark.parametrize(
    ("door", "body"),
    [
        ("faults", {"kind": "explode"}),
        ("faults", {"kind": "limit", "chance": 2}),
        ("clock", {"speed": 5000}),
        ("clock", {"advance_s": -1}),
        ("market", {"what": "surge"}),
        ("market", {"what": "surge", "symbol": "005930", "colour": "red"}),
    ],
)
async def test_invalid_control_requests_are_refused(
    kis: Kis, door: str, body: dict[str, object]
) -> None:
    reply = await kis.call("POST", f"/_control/{door}", json=body)
    assert reply.status == 400
    assert reply.body["error"]


async def test_an_unknown_symbol_is_not_found(kis: Kis) -> None:
    body = {"what": "surge", "symbol": "nothing"}
    assert (await kis.call("POST", "/_control/market", json=body)).status == 404


async def test_the_control_api_is_closed_to_web_pages(kis: Kis) -> None:
    url = kis.simulator.url + "/_control/stats"
    async with kis.http.get(url, headers={"Origin": "http://example.com"}) as reply:
        assert reply.status == 404


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), ("", False), (None, False)],
)
def test_only_this_machine_has_access(address: str | None, local: bool) -> None:
    assert is_loopback(address) is local


async def test_control_requests_are_not_counted(kis: Kis) -> None:
    for _ in range(30):
        await kis.control("GET", "stats")
    stats = await kis.control("GET", "stats")
    assert stats["keys"][kis.key.app_key]["requests"] == 0


async def test_the_clock_can_be_paused_advanced_and_sped_up(kis: Kis, clock: ManualClock) -> None:
    await clock.advance(5)
    assert (await kis.control("POST", "clock", paused=True))["now"].endswith("09:00:05+09:00")
    await clock.advance(30)
    assert (await kis.control("GET", "clock"))["now"].endswith("09:00:05+09:00")
    await kis.control("POST", "clock", advance_s=55)
    assert (await kis.control("GET", "stats"))["market"]["now"].endswith("09:01:00+09:00")
    await kis.control("POST", "clock", paused=False, speed=100)
    await clock.advance(1)
    assert (await kis.control("GET", "clock"))["now"].endswith("09:02:40+09:00")


async def test_an_injected_surge_shows_in_the_next_quotes(kis: Kis, clock: ManualClock) -> None:
    code = kis.simulator.market.universe.codes[30]
    before = int((await kis.price(code)).body["output"]["stck_prpr"])
    await kis.control("POST", "market", what="surge", symbol=code, percent=3.5, over_s=2)
    await clock.advance(2)
    after = int((await kis.price(code)).body["output"]["stck_prpr"])
    assert after / before == pytest.approx(1.035, abs=0.006)


async def test_a_port_in_use_is_refused_with_one_line(kis: Kis) -> None:
    config = KisSimulatorConfig(port=kis.simulator.port, market=MarketConfig(symbols=5))
    with pytest.raises(RefusedError, match=f"cannot listen on 127.0.0.1:{kis.simulator.port}"):
        async with KisSimulator(config):
            pass


async def test_symbols_are_listed_one_per_line(
    start_kis: StartKis, http: aiohttp.ClientSession
) -> None:
    kis = await start_kis(market=MarketConfig(symbols=50))
    async with http.get(f"{kis.simulator.url}/_control/symbols") as reply:
        assert (await reply.text()).splitlines() == list(kis.simulator.symbols())
    assert len(kis.simulator.symbols()) == 50
