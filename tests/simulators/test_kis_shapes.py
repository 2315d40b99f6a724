"""Answers of the simulated KIS beside the documents: exact fields, and strings everywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from qts.domain import ManualClock
from tests.simulators.clients import Kis
from tests.simulators.conftest import StartKis
from tests.simulators.kis_fields import (
    BALANCE,
    BOOK,
    CHANGE_RANK,
    DAY,
    DAY_SUMMARY,
    EXPECTED,
    HOLDING,
    HOLIDAY,
    INDEX,
    INFO,
    INTERRUPTED,
    INVESTORS,
    MARGIN,
    MINUTE,
    MINUTE_SUMMARY,
    MULTI,
    OPEN,
    ORDER,
    ORDER_TOTAL,
    POWER,
    PROFIT_DAY,
    PROFIT_TOTAL,
    PROFIT_TRADE,
    QUOTE,
    QUOTE_2,
    REALISED,
    RECENT,
    SELLABLE,
    STOCK_INFO,
    TIMED,
    TIMED_SUMMARY,
    TRADE,
    VOLUME_RANK,
)

SYMBOL = {"FID_COND_MRKT_DIV_CODE": "J", "FID_INPUT_ISCD": "005930"}
PERIOD = {"INQR_STRT_DT": "20260101", "INQR_END_DT": "20271231", "SORT_DVSN": "00"}
PRODUCT = {"PDNO": "005930", "PRDT_TYPE_CD": "300"}
DAYS = SYMBOL | {
    "FID_INPUT_DATE_1": "20260901",
    "FID_INPUT_DATE_2": "20261116",
    "FID_PERIOD_DIV_CODE": "D",
    "FID_ORG_ADJ_PRC": "0",
}
HOUR = SYMBOL | {"FID_INPUT_HOUR_1": "090200", "FID_PW_DATA_INCU_YN": "Y", "FID_ETC_CLS_CODE": ""}


class Shape(NamedTuple):
    """One endpoint: its request, and the fields of each output; `*` marks a list of rows."""

    path: str
    tr_ids: str
    outputs: dict[str, str]
    query: dict[str, str]
    on_paper: bool = False
    account: bool = False


SHAPES = [
    Shape("quotations/inquire-price", "FHKST01010100", {"output": QUOTE}, SYMBOL, True),
    Shape("quotations/inquire-price-2", "FHPST01010000", {"output": QUOTE_2}, SYMBOL),
    Shape(
        "quotations/inquire-asking-price-exp-ccn",
        "FHKST01010200",
        {"output1": BOOK, "output2": EXPECTED},
        SYMBOL,
        True,
    ),
    Shape("quotations/inquire-ccnl", "FHKST01010300", {"output*": TRADE}, SYMBOL, True),
    Shape(
        "quotations/inquire-time-itemconclusion",
        "FHPST01060000",
        {"output1": TIMED_SUMMARY, "output2*": TIMED},
        HOUR,
        True,
    ),
    Shape("quotations/inquire-daily-price", "FHKST01010400", {"output*": RECENT}, DAYS, True),
    Shape(
        "quotations/inquire-daily-itemchartprice",
        "FHKST03010100",
        {"output1": DAY_SUMMARY, "output2*": DAY},
        DAYS,
        True,
    ),
    Shape("quotations/inquire-investor", "FHKST01010900", {"output*": INVESTORS}, SYMBOL, True),
    Shape(
        "quotations/inquire-time-itemchartprice",
        "FHKST03010200",
        {"output1": MINUTE_SUMMARY, "output2*": MINUTE},
        HOUR,
        True,
    ),
    Shape(
        "quotations/inquire-time-dailychartprice",
        "FHKST03010230",
        {"output1": MINUTE_SUMMARY, "output2*": MINUTE},
        HOUR | {"FID_INPUT_DATE_1": "20261113"},
    ),
    Shape("quotations/search-info", "CTPF1604R", {"output": INFO}, PRODUCT),
    Shape("quotations/search-stock-info", "CTPF1002R", {"output": STOCK_INFO}, PRODUCT),
    Shape(
        "quotations/inquire-index-price",
        "FHPUP02100000",
        {"output": INDEX},
        {"FID_COND_MRKT_DIV_CODE": "U", "FID_INPUT_ISCD": "0001"},
    ),
    Shape("quotations/volume-rank", "FHPST01710000", {"output*": VOLUME_RANK}, SYMBOL),
    Shape("ranking/fluctuation", "FHPST01700000", {"output*": CHANGE_RANK}, SYMBOL),
    Shape("quotations/inquire-vi-status", "FHPST01390000", {"output*": INTERRUPTED}, {}),
    Shape("quotations/chk-holiday", "CTCA0903R", {"output*": HOLIDAY}, {"BASS_DT": "20261116"}),
    Shape(
        "quotations/intstock-multprice",
        "FHKST11300006",
        {"output*": MULTI},
        {"FID_COND_MRKT_DIV_CODE_1": "J", "FID_INPUT_ISCD_1": "005930"},
    ),
    Shape(
        "trading/inquire-daily-ccld",
        "TTTC0081R TTTC8001R CTSC9215R CTSC9115R",
        {"output1*": ORDER, "output2": ORDER_TOTAL},
        PERIOD,
        True,
        True,
    ),
    Shape(
        "trading/inquire-balance",
        "TTTC8434R",
        {"output1*": HOLDING + MARGIN, "output2*": BALANCE},
        {},
        True,
        True,
    ),
    Shape(
        "trading/inquire-balance-rlz-pl",
        "TTTC8494R",
        {"output1*": HOLDING, "output2*": BALANCE + REALISED},
        {},
        False,
        True,
    ),
    Shape(
        "trading/inquire-psbl-rvsecncl", "TTTC0084R TTTC8036R", {"output*": OPEN}, {}, False, True
    ),
    Shape(
        "trading/inquire-psbl-order",
        "TTTC8908R",
        {"output": POWER},
        {"PDNO": "005930", "ORD_UNPR": "70000", "ORD_DVSN": "00"},
        True,
        True,
    ),
    Shape(
        "trading/inquire-psbl-sell",
        "TTTC8408R",
        {"output": SELLABLE},
        {"PDNO": "005930"},
        False,
        True,
    ),
    Shape(
        "trading/inquire-period-profit",
        "TTTC8708R",
        {"output1*": PROFIT_DAY, "output2": PROFIT_TOTAL + "buy_qty_smtl"},
        PERIOD,
        False,
        True,
    ),
    Shape(
        "trading/inquire-period-trade-profit",
        "TTTC8715R",
        {"output1*": PROFIT_TRADE, "output2": PROFIT_TOTAL + "buyqty_smtl tot_pftrt"},
        PERIOD,
        False,
        True,
    ),
]
EACH_TR = [
    pytest.param(shape, tr_id, id=f"{shape.path.split('/')[1]}-{tr_id}")
    for shape in SHAPES
    for tr_id in shape.tr_ids.split()
]


@pytest.fixture
async def trader(kis: Kis, clock: ManualClock) -> Kis:
    """A customer with a holding, a sale of today and an open order, seconds after the opening."""
    await kis.order("buy", 10)
    await clock.advance(5)
    await kis.order("sell", 4)
    price = int((await kis.price()).body["output"]["stck_prpr"])
    await kis.order("buy", 1, price // 1000 * 900)
    kis.simulator.market.inject_halt(9, 120)
    return kis


@pytest.mark.parametrize(("shape", "tr_id"), EACH_TR)
async def test_an_answer_has_the_documented_fields(trader: Kis, shape: Shape, tr_id: str) -> None:
    account = trader.account if shape.account else {}
    reply = await trader.get(shape.path, tr_id, **shape.query, **account)
    assert (reply.status, reply.body["rt_cd"]) == (200, "0"), reply.body
    for name, fields in shape.outputs.items():
        value = reply.body[name.rstrip("*")]
        assert isinstance(value, list) is name.endswith("*")
        rows = value if isinstance(value, list) else [value]
        assert rows, f"{name} is empty"
        for row in rows:
            assert sorted(row) == sorted(fields.split())
            assert all(isinstance(each, str) for each in row.values())


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape.on_paper])
async def test_a_paper_key_has_no_such_tr(start_kis: StartKis, shape: Shape) -> None:
    kis = await start_kis(paper=True)
    reply = await kis.get(shape.path, shape.tr_ids.split()[0], **shape.query, **kis.account)
    assert (reply.status, reply.code) == (500, "EGW02006")


TOKEN = {
    "access_token": str, "token_type": str, "expires_in": int, "access_token_token_expired": str,
}  # fmt: skip


async def test_tokens_and_receipts_have_the_documented_fields(start_kis: StartKis) -> None:
    kis = await start_kis(token_interval_s=0.0)
    token = (await kis.issue()).body
    assert {name: type(value) for name, value in token.items()} == TOKEN
    placed = (await kis.order("buy", 1, 60_000)).body["output"]
    gone = (await kis.cancel(placed["ODNO"])).body["output"]
    for receipt in (placed, gone):
        assert sorted(receipt) == ["KRX_FWDG_ORD_ORGNO", "ODNO", "ORD_TMD"]
        assert all(isinstance(each, str) for each in receipt.values())


UNKNOWN: dict[str, Any] = {
    "inquire-price": ("output", "stck_prpr", "0"),
    "inquire-price-2": ("output", "stck_prpr", "0"),
    "inquire-daily-itemchartprice": ("output1", "stck_prpr", "0"),
    "inquire-time-itemchartprice": ("output1", "stck_prpr", "0"),
    "inquire-psbl-order": ("output", "psbl_qty_calc_unpr", "0"),
    "inquire-time-itemconclusion": ("output1", "stck_prpr", "0"),
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_an_unknown_symbol_is_answered_with_zeros(trader: Kis, name: str) -> None:
    (shape,) = (each for each in SHAPES if each.path.split("/")[1] == name)
    query = {
        field: "999999" if field in ("FID_INPUT_ISCD", "PDNO") else value
        for field, value in shape.query.items()
    }
    account = trader.account if shape.account else {}
    reply = await trader.get(shape.path, shape.tr_ids.split()[0], **query, **account)
    output, field, zero = UNKNOWN[name]
    assert (reply.body["rt_cd"], reply.body[output][field]) == ("0", zero)


async def test_an_unknown_symbol_has_no_book_and_no_product(kis: Kis) -> None:
    query = SYMBOL | {"FID_INPUT_ISCD": "999999"}
    book = await kis.get("quotations/inquire-asking-price-exp-ccn", "FHKST01010200", **query)
    assert (book.body["rt_cd"], book.body["output1"]) == ("0", {})
    product = await kis.get(
        "quotations/search-info", "CTPF1604R", PDNO="999999", PRDT_TYPE_CD="300"
    )
    assert (product.status, product.body["rt_cd"]) == (200, "7")
