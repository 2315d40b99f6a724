"""KIS orders: accepted, rejected, filled, revised, cancelled and listed."""

from __future__ import annotations

from datetime import datetime

import pytest

from qts.domain import ManualClock
from qts.simulators import KisKey, MarketConfig, RequestLimits
from qts.simulators.market.rules import KST
from tests.simulators.clients import Kis
from tests.simulators.conftest import StartKis

FREE = RequestLimits(second=0, minute=0, day=0)


def at(hour: int, minute: int = 0, day: int = 16) -> MarketConfig:
    return MarketConfig(
        symbols=12, surges_per_hour=0, start=datetime(2026, 11, day, hour, minute, tzinfo=KST)
    )


async def best(kis: Kis) -> tuple[int, int]:
    book = kis.simulator.market.book(0)
    return book.bids[0].price, book.asks[0].price


async def test_an_order_is_answered_with_its_number(kis: Kis) -> None:
    reply = await kis.order("buy", 10)
    assert (reply.status, reply.body["rt_cd"], reply.code) == (200, "0", "APBK0013")
    assert reply.body["output"] == {
        "KRX_FWDG_ORD_ORGNO": "91252",
        "ODNO": "0000000001",
        "ORD_TMD": "090000",
    }
    assert (await kis.order("buy", 1)).body["output"]["ODNO"] == "0000000002"


async def test_a_paper_order_has_paper_texts(start_kis: StartKis) -> None:
    kis = await start_kis(paper=True, limits=FREE)
    reply = await kis.order("buy", 10)
    assert reply.code == "40600000"
    assert reply.body["output"]["KRX_FWDG_ORD_ORGNO"] == "00950"


async def test_a_market_order_fills_at_the_book(kis: Kis) -> None:
    _, ask = await best(kis)
    await kis.order("buy", 10)
    row = (await kis.executions()).body["output1"][0]
    assert (row["tot_ccld_qty"], row["rmn_qty"]) == ("10", "0")
    assert row["tot_ccld_amt"] == str(10 * ask)
    held = (await kis.balance()).body["output1"][0]
    assert (held["pdno"], held["hldg_qty"], held["ord_psbl_qty"]) == ("005930", "10", "10")
    assert float(held["pchs_avg_pric"]) == ask


async def test_cash_pays_for_what_was_bought_and_no_more(kis: Kis) -> None:
    _, ask = await best(kis)
    await kis.order("buy", 100)
    totals = (await kis.balance()).body["output2"][0]
    value = 100 * ask
    assert int(totals["dnca_tot_amt"]) == kis.key.cash - value - value * 140 // 10**6


async def test_a_round_trip_leaves_a_row_of_zero(kis: Kis) -> None:
    await kis.order("buy", 10)
    assert (await kis.order("sell", 10)).body["rt_cd"] == "0"
    row = (await kis.balance()).body["output1"][0]
    assert (row["hldg_qty"], row["thdt_buyqty"], row["thdt_sll_qty"]) == ("0", "10", "10")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"PDNO": "999999"}, "APBK0656"),
        ({"ORD_UNPR": "71950"}, "APBK0506"),
        ({"ORD_UNPR": "93500"}, "APBK0551"),
        ({"ORD_UNPR": "50300"}, "APBK0551"),
        ({"ORD_DVSN": "99"}, "APBK1058"),
        ({"ORD_DVSN": "41"}, "APBK1058"),
        ({"EXCG_ID_DVSN_CD": "NXT"}, "APBK1058"),
        ({"ORD_QTY": "0"}, "OPSQ2001"),
        ({"ORD_QTY": "-5"}, "OPSQ2001"),
        ({"ORD_QTY": "1.5"}, "OPSQ2001"),
        ({"ORD_QTY": "100000"}, "APBK0952"),
        ({"CANO": "00000000"}, "IGW00002"),
    ],
)
async def test_a_wrong_order_is_refused_and_leaves_nothing(
    kis: Kis, change: dict[str, str], code: str
) -> None:
    body = {"PDNO": "005930", "ORD_DVSN": "00", "ORD_QTY": "10", "ORD_UNPR": "71900"}
    reply = await kis.post("trading/order-cash", "TTTC0012U", **{**kis.account, **body, **change})
    assert reply.code == code
    assert reply.body["rt_cd"] != "0"
    assert kis.simulator.orders.entries == []
    assert (await kis.balance()).body["output2"][0]["dnca_tot_amt"] == str(kis.key.cash)


async def test_a_market_buy_needs_cash_up_to_the_limit_price(start_kis: StartKis) -> None:
    kis = await start_kis(keys=(KisKey(cash=800_000),))
    assert (await kis.order("buy", 10)).code == "APBK0952"
    _, ask = await best(kis)
    assert (await kis.order("buy", 10, ask)).body["rt_cd"] == "0"


async def test_a_short_sale_is_refused(kis: Kis) -> None:
    assert (await kis.order("sell", 1)).code == "APBK0400"
    await kis.order("buy", 10)
    await kis.order("sell", 6, 93_000)
    assert (await kis.order("sell", 5, 93_000)).code == "APBK0400"
    assert (await kis.balance()).body["output1"][0]["ord_psbl_qty"] == "4"


async def test_buying_power_shrinks_with_open_orders(kis: Kis) -> None:
    ask_for = {"PDNO": "005930", "ORD_UNPR": "60000", "ORD_DVSN": "00"}
    path, tr_id = "trading/inquire-psbl-order", "TTTC8908R"
    before = (await kis.get(path, tr_id, **kis.account, **ask_for)).body["output"]
    await kis.order("buy", 100, 60_000)
    after = (await kis.get(path, tr_id, **kis.account, **ask_for)).body["output"]
    assert int(before["nrcvb_buy_qty"]) - int(after["nrcvb_buy_qty"]) == 100
    assert int(before["ord_psbl_cash"]) == kis.key.cash


@pytest.mark.parametrize(
    ("start", "paper", "code"),
    [
        (at(8), False, "APBK0918"),
        (at(8), True, "40570000"),
        (at(12, day=21), False, "APBK0918"),
        (at(12, day=21), True, "40100000"),
    ],
)
async def test_outside_the_hours_orders_are_refused(
    start_kis: StartKis, start: MarketConfig, paper: bool, code: str
) -> None:
    kis = await start_kis(market=start, paper=paper)
    assert (await kis.order("buy", 1)).code == code


async def test_the_exam_day_opens_at_ten(start_kis: StartKis) -> None:
    kis = await start_kis(market=at(9, 29, day=19))
    assert (await kis.order("buy", 1)).code == "APBK0918"
    kis = await start_kis(market=at(10, 1, day=19))
    assert (await kis.order("buy", 1)).body["rt_cd"] == "0"


async def test_an_order_before_the_bell_fills_at_the_opening_price(
    start_kis: StartKis, clock: ManualClock
) -> None:
    kis = await start_kis(market=at(8, 59))
    await kis.order("buy", 7)
    assert (await kis.executions()).body["output1"][0]["tot_ccld_qty"] == "0"
    await clock.advance(60)
    row = (await kis.executions()).body["output1"][0]
    assert row["tot_ccld_qty"] == "7"
    assert float(row["avg_prvs"]) == int((await kis.price()).body["output"]["stck_oprc"])


async def test_a_cancel_is_a_separate_order(kis: Kis) -> None:
    number = (await kis.order("buy", 10, 60_000)).body["output"]["ODNO"]
    reply = await kis.cancel(number)
    assert reply.body["output"]["ODNO"] == "0000000002"
    first, second = (await kis.executions()).body["output1"]
    assert (first["cncl_cfrm_qty"], first["rmn_qty"]) == ("10", "0")
    assert (second["orgn_odno"], second["cncl_yn"]) == (number, "Y")
    assert kis.simulator.gateway.customers[kis.key.app_key].account.locked == 0
    assert (await kis.cancel(number)).code == "APBK0927"
    assert (await kis.cancel("0000000077")).code == "APBK0344"


async def test_a_part_can_be_cancelled(kis: Kis) -> None:
    number = (await kis.order("buy", 10, 60_000)).body["output"]["ODNO"]
    await kis.cancel(number, QTY_ALL_ORD_YN="N", ORD_QTY="4")
    row = (await kis.executions(ODNO=number)).body["output1"][0]
    assert (row["cncl_cfrm_qty"], row["rmn_qty"]) == ("4", "6")


async def test_a_revised_order_has_a_new_number_and_price(kis: Kis) -> None:
    number = (await kis.order("buy", 10, 60_000)).body["output"]["ODNO"]
    reply = await kis.cancel(number, RVSE_CNCL_DVSN_CD="01", ORD_UNPR="61000")
    new = reply.body["output"]["ODNO"]
    row = (await kis.executions(ODNO=new)).body["output1"][0]
    assert (row["orgn_odno"], row["ord_unpr"], row["rmn_qty"]) == (number, "61000", "10")
    assert (await kis.executions(ODNO=number)).body["output1"][0]["rmn_qty"] == "0"
    rows = await kis.get("trading/inquire-psbl-rvsecncl", "TTTC0084R", **kis.account)
    assert [row["odno"] for row in rows.body["output"]] == [new]


async def test_a_refused_revision_leaves_the_order_as_it_was(kis: Kis) -> None:
    number = (await kis.order("buy", 10, 60_000)).body["output"]["ODNO"]
    for wrong in ({"ORD_UNPR": "60050"}, {"ORD_UNPR": "99000"}):
        assert (await kis.cancel(number, RVSE_CNCL_DVSN_CD="01", **wrong)).body["rt_cd"] == "7"
    reply = await kis.cancel(
        number, RVSE_CNCL_DVSN_CD="01", ORD_UNPR="61000", QTY_ALL_ORD_YN="N", ORD_QTY="11"
    )
    assert reply.code == "APBK0927"
    row = (await kis.executions()).body["output1"][0]
    assert (row["rmn_qty"], row["ord_unpr"]) == ("10", "60000")


async def test_a_revision_beyond_buying_power_leaves_the_order(start_kis: StartKis) -> None:
    kis = await start_kis(keys=(KisKey(cash=610_000),))
    number = (await kis.order("buy", 10, 60_000)).body["output"]["ODNO"]
    reply = await kis.cancel(number, RVSE_CNCL_DVSN_CD="01", ORD_UNPR="70000")
    assert reply.code == "APBK0952"
    assert (await kis.executions()).body["output1"][0]["rmn_qty"] == "10"


@pytest.mark.parametrize(("paper", "size"), [(False, 100), (True, 15)])
async def test_executions_come_in_pages(start_kis: StartKis, paper: bool, size: int) -> None:
    kis = await start_kis(paper=paper, limits=FREE)
    for _ in range(2 * size + 3):
        await kis.order("buy", 1, 60_000)
    seen, reply = [], await kis.executions()
    conts = [reply.headers["tr_cont"]]
    seen += [row["odno"] for row in reply.body["output1"]]
    while conts[-1] in ("F", "M"):
        key = reply.body["ctx_area_nk100"]
        reply = await kis.executions("N", CTX_AREA_NK100=key)
        conts.append(reply.headers["tr_cont"])
        seen += [row["odno"] for row in reply.body["output1"]]
    assert conts == ["F", "M", "E"]
    assert seen == [f"{n:010}" for n in range(1, 2 * size + 4)]


async def test_executions_can_be_filtered(kis: Kis) -> None:
    await kis.order("buy", 5)
    await kis.order("buy", 5, 60_000)
    await kis.order("sell", 5, 93_000)
    rows = {
        name: [row["odno"][-1] for row in (await kis.executions(**query)).body["output1"]]
        for name, query in {
            "filled": {"CCLD_DVSN": "01"},
            "open": {"CCLD_DVSN": "02"},
            "sold": {"SLL_BUY_DVSN_CD": "01"},
            "other": {"PDNO": "000660"},
            "newest": {"INQR_DVSN": "00"},
            "yesterday": {"INQR_END_DT": "20261115"},
        }.items()
    }
    assert rows == {
        "filled": ["1"], "open": ["2", "3"], "sold": ["3"], "other": [],
        "newest": ["3", "2", "1"], "yesterday": [],
    }  # fmt: skip


async def test_a_new_order_may_show_late(start_kis: StartKis, clock: ManualClock) -> None:
    kis = await start_kis(visible_after_ms=300)
    await kis.order("buy", 1)
    assert (await kis.executions()).body["output1"] == []
    await clock.advance(0.3)
    assert len((await kis.executions()).body["output1"]) == 1


async def test_orders_end_at_the_close_and_the_after_market_has_its_own(
    start_kis: StartKis, clock: ManualClock
) -> None:
    kis = await start_kis(market=at(15, 29))
    await kis.order("buy", 1, 60_000)
    await clock.advance(62)
    row = (await kis.executions()).body["output1"][0]
    assert (row["rmn_qty"], row["cncl_cfrm_qty"]) == ("0", "1")
    assert (await kis.order("buy", 1)).code == "APBK0918"
    await kis.control("POST", "clock", advance_s=3600)
    assert (await kis.order("buy", 1)).code == "APBK1058"
    _, ask = await best(kis)
    assert (await kis.order("buy", 1, ask, ORD_DVSN="41")).body["rt_cd"] == "0"
    assert (await kis.executions()).body["output1"][-1]["tot_ccld_qty"] == "1"
