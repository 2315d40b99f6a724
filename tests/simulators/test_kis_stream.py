"""The KIS WebSocket, frame by frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import aiohttp
import pytest

from qts.domain import ManualClock
from qts.simulators import MarketConfig
from qts.simulators.market.rules import KST
from tests.simulators.clients import Kis, KisSocket, decrypted, until_closed
from tests.simulators.conftest import StartKis

Connect = Callable[..., Awaitable[KisSocket]]


async def test_a_subscription_is_answered_with_key_and_iv(kis: Kis, connect: Connect) -> None:
    socket = await connect(kis)
    answer = await socket.request("H0STCNT0", "005930")
    assert answer["header"] == {"tr_id": "H0STCNT0", "tr_key": "005930", "encrypt": "N"}
    assert (answer["body"]["rt_cd"], answer["body"]["msg_cd"]) == ("0", "OPSP0000")
    assert len(answer["body"]["output"]["key"]) == 32
    assert len(answer["body"]["output"]["iv"]) == 16


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([("H0STCNT0", "005930", "1"), ("H0STCNT0", "005930", "1")], "OPSP0002"),
        ([("H0STCNT0", "005930", "1"), ("H0STCNT0", "005930", "2")], "OPSP0001"),
        ([("H0STCNT0", "005930", "2")], "OPSP0003"),
        ([("H0XXXXX0", "005930", "1")], "OPSP8991"),
        ([("H0STCNT0", "999999", "1")], "OPSP8992"),
        ([("H0STCNI9", "qtsuser", "1")], "OPSP8991"),
    ],
)
async def test_control_messages_have_their_codes(
    kis: Kis, connect: Connect, messages: list[tuple[str, str, str]], code: str
) -> None:
    socket = await connect(kis)
    answers = [await socket.request(*message) for message in messages]
    assert answers[-1]["body"]["msg_cd"] == code


async def test_the_42nd_subscription_is_refused(start_kis: StartKis, connect: Connect) -> None:
    kis = await start_kis(market=MarketConfig(symbols=60))
    socket = await connect(kis)
    assert (await socket.request("H0STCNI0", "qtsuser"))["body"]["msg_cd"] == "OPSP0000"
    codes = kis.simulator.market.universe.codes
    answers = [(await socket.request("H0STCNT0", code))["body"]["msg_cd"] for code in codes[:41]]
    assert answers == ["OPSP0000"] * 40 + ["OPSP0008"]
    await socket.request("H0STCNT0", codes[0], "2")
    assert (await socket.request("H0STASP0", codes[50]))["body"]["msg_cd"] == "OPSP0000"


async def test_a_second_connection_of_a_key_is_refused(kis: Kis, connect: Connect) -> None:
    first, second = await connect(kis), await connect(kis)
    await first.request("H0STCNT0", "005930")
    assert (await second.request("H0STCNT0", "000660"))["body"]["msg_cd"] == "OPSP8996"
    assert (await second.socket.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE
    await first.socket.close()
    third = await connect(kis)
    assert (await third.request("H0STCNT0", "000660"))["body"]["msg_cd"] == "OPSP0000"


async def test_a_made_up_approval_is_refused(kis: Kis, connect: Connect) -> None:
    socket = await connect(kis)
    socket.approval = "made-up"
    assert (await socket.request("H0STCNT0", "005930"))["body"]["msg_cd"] == "OPSP0011"


async def test_a_wrong_hts_id_closes_the_connection(kis: Kis, connect: Connect) -> None:
    socket = await connect(kis)
    assert (await socket.request("H0STCNI0", "unknown"))["body"]["msg_cd"] == "OPSP8992"
    assert (await socket.socket.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE


async def test_what_is_not_json_is_answered(kis: Kis, connect: Connect) -> None:
    socket = await connect(kis)
    for wrong in ("hello", "[]", '{"header":{}}', '{"header":1,"body":2}'):
        await socket.socket.send_str(wrong)
        answer = json.loads(await socket.socket.receive_str(timeout=60))
        assert answer["body"]["msg_cd"] == "OPSP9991"


async def test_pingpong_comes_every_ten_seconds(
    kis: Kis, connect: Connect, clock: ManualClock
) -> None:
    socket = await connect(kis)
    await socket.request("H0STCNI0", "qtsuser")
    await clock.advance(10)
    text = await socket.socket.receive_str(timeout=60)
    ping = json.loads(text)
    assert ping["header"]["tr_id"] == "PINGPONG"
    assert ping["header"]["datetime"].startswith("20261116")
    await socket.socket.send_str(text)
    await socket.request("H0STCNT0", "005930")  # replied to after the pong
    assert kis.simulator.stream.stats()["pongs"] == 1


async def test_a_silent_connection_is_dropped_if_configured(
    start_kis: StartKis, connect: Connect, clock: ManualClock
) -> None:
    kis = await start_kis(drop_after_pings=2)
    socket = await connect(kis)
    await socket.request("H0STCNI0", "qtsuser")
    await clock.advance(31)
    assert await until_closed(socket.socket) is not aiohttp.WSMsgType.CLOSE
    assert kis.simulator.stream.clients == {}


async def test_trades_come_in_records_that_add_up(
    kis: Kis, connect: Connect, clock: ManualClock
) -> None:
    socket = await connect(kis)
    await socket.request("H0STCNT0", "005930")
    before = int(kis.simulator.market.volume[0])
    await clock.advance(20)
    counts, volume = set(), before
    while volume < int(kis.simulator.market.volume[0]):
        _, rows = await socket.frame("H0STCNT0")
        counts.add(len(rows))
        for row in rows:
            assert len(row) == 47
            assert (row[0], row[33], row[46]) == ("005930", "20261116", "2")
            volume += int(row[12])
            assert int(row[13]) == volume
            assert int(row[11]) <= int(row[2]) <= int(row[10])
    assert volume == int(kis.simulator.market.volume[0])
    assert max(counts) > 1


async def test_records_had_46_fields_before_september_2026(
    start_kis: StartKis, connect: Connect, clock: ManualClock
) -> None:
    start = datetime(2026, 9, 11, 9, tzinfo=KST)
    kis = await start_kis(market=MarketConfig(symbols=5, start=start))
    socket = await connect(kis)
    await socket.request("H0STCNT0", "005930")
    await clock.advance(5)
    _, rows = await socket.frame("H0STCNT0")
    assert {len(row) for row in rows} == {46}


async def test_the_width_can_change_overnight(
    kis: Kis, connect: Connect, clock: ManualClock
) -> None:
    socket = await connect(kis)
    await socket.request("H0STCNT0", "005930")
    await kis.control("POST", "faults", kind="width", path="H0STCNT0", fields=2)
    await clock.advance(3)
    _, rows = await socket.frame("H0STCNT0")
    assert {len(row) for row in rows} == {49}


async def test_books_have_63_fields(kis: Kis, connect: Connect, clock: ManualClock) -> None:
    socket = await connect(kis)
    await socket.request("H0STASP0", "005930")
    await clock.advance(1)
    _, (fields,) = await socket.frame("H0STASP0")
    assert (len(fields), fields[62]) == (63, "2")
    assert float(fields[59]) == (int(fields[3]) + int(fields[13])) / 2  # the mid price
    asks, bids = [int(f) for f in fields[3:13]], [int(f) for f in fields[13:23]]
    assert bids == sorted(bids, reverse=True)
    assert asks == sorted(asks)
    assert bids[0] < asks[0]
    assert int(fields[43]) == sum(int(f) for f in fields[23:33])
    assert int(fields[53]) == int(kis.simulator.market.volume[0])


async def notices(kis: Kis, connect: Connect) -> Callable[[], Awaitable[list[str]]]:
    socket = await connect(kis)
    paper = kis.simulator.config.paper
    tr_id = "H0STCNI9" if paper else "H0STCNI0"
    output = (await socket.request(tr_id, "qtsuser"))["body"]["output"]

    async def following() -> list[str]:
        payload, _ = await socket.frame(tr_id)
        return decrypted(payload, output["key"], output["iv"])

    return following


@pytest.mark.parametrize("paper", [False, True])
async def test_an_order_causes_encrypted_notices(
    start_kis: StartKis, connect: Connect, paper: bool
) -> None:
    kis = await start_kis(paper=paper)
    following = await notices(kis, connect)
    number = (await kis.order("buy", 10)).body["output"]["ODNO"]
    receipt, fill = await following(), await following()
    assert (len(receipt), len(fill)) == (26, 26)
    assert receipt[:6] == ["qtsuser", kis.key.account, number, "", "02", "0"]
    assert (receipt[13], receipt[9], fill[13], fill[9]) == ("1", "10", "2", "10")
    assert fill[8] == "005930"
    assert fill[24] == "삼성전자"
    filled = kis.simulator.orders.entries[0].order.fills
    assert fill[10] == str(filled[0].price)


async def test_the_notice_of_a_cancel_names_its_parent(kis: Kis, connect: Connect) -> None:
    following = await notices(kis, connect)
    number = (await kis.order("buy", 10, 60_000)).body["output"]["ODNO"]
    await kis.cancel(number)
    await following()
    cancel = await following()
    assert (cancel[3], cancel[5], cancel[13]) == (number, "2", "1")


async def test_the_unfilled_rest_of_an_ioc_order_is_reported(kis: Kis, connect: Connect) -> None:
    following = await notices(kis, connect)
    await kis.order("buy", 10, 60_000, ORD_DVSN="11")
    await following()
    assert (await following())[14] == "3"


@pytest.mark.parametrize(
    ("fault", "quantities"),
    [
        ("duplicate_fills", ["first", "first", "second"]),
        ("reorder_fills", ["second", "first"]),
        ("lose_fills", ["second"]),
    ],
)
async def test_fill_notices_can_go_wrong(
    kis: Kis, connect: Connect, fault: str, quantities: list[str]
) -> None:
    following = await notices(kis, connect)
    await kis.control("POST", "faults", kind=fault, count=1)
    level = kis.simulator.market.book(0).asks[0].quantity
    words = {"first": str(level), "second": "3"}
    await kis.order("buy", level + 3)
    assert (await following())[13] == "1"
    assert [(await following())[9] for _ in quantities] == [words[each] for each in quantities]


async def test_a_dropped_connection_gets_no_replay(kis: Kis, connect: Connect) -> None:
    first = await connect(kis)
    await first.request("H0STCNI0", "qtsuser")
    assert (await kis.control("DELETE", "streams"))["dropped"] == 1
    await kis.order("buy", 10)
    following = await notices(kis, connect)
    await kis.order("buy", 4)
    assert [(await following())[9] for _ in range(2)] == ["4", "4"]


async def test_a_client_that_does_not_read_is_cut_off(kis: Kis, connect: Connect) -> None:
    socket = await connect(kis)
    await socket.request("H0STCNI0", "qtsuser")
    client = next(iter(kis.simulator.stream.clients.values()))
    client.queue = asyncio.Queue(1)
    stream: Any = kis.simulator.stream
    for _ in range(3):
        stream._put(client, "x")
    assert await until_closed(socket.socket) is not aiohttp.WSMsgType.CLOSE
