"""KIS market data as the documents show it."""

from __future__ import annotations

import pytest

from qts.domain import ManualClock
from qts.simulators import MarketConfig
from tests.simulators.clients import Kis
from tests.simulators.conftest import MORNING, StartKis

PRICE_FIELDS = """
    iscd_stat_cls_code temp_stop_yn stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn
    acml_vol stck_oprc stck_hgpr stck_lwpr stck_mxpr stck_llam stck_sdpr wghn_avrg_stck_prc
    rstc_wdth_prc aspr_unit lstn_stcn stck_shrn_iscd vi_cls_code mrkt_warn_cls_code
"""
ROW_FIELDS = """
    kospi_kosdaq_cls_name mrkt_trtm_cls_name hour_cls_code inter_shrn_iscd inter_kor_isnm
    inter2_prpr inter2_prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol inter2_oprc inter2_hgpr
    inter2_lwpr inter2_llam inter2_mxpr inter2_askp inter2_bidp seln_rsqn shnu_rsqn
    total_askp_rsqn total_bidp_rsqn acml_tr_pbmn inter2_prdy_clpr oprc_vrss_hgpr_rate
    intr_antc_cntg_vrss intr_antc_cntg_vrss_sign intr_antc_cntg_prdy_ctrt intr_antc_vol
    inter2_sdpr
"""


async def test_a_quote_has_the_documented_fields_as_texts(kis: Kis) -> None:
    reply = await kis.price("000660")
    assert (reply.status, reply.body["rt_cd"], reply.code) == (200, "0", "MCA00000")
    assert len(reply.body["msg1"]) == 80
    output = reply.body["output"]
    assert set(PRICE_FIELDS.split()) <= output.keys()
    assert all(isinstance(value, str) for value in output.values())
    assert (output["stck_shrn_iscd"], output["stck_sdpr"]) == ("000660", "128500")
    assert (output["stck_mxpr"], output["stck_llam"]) == ("167000", "90000")
    assert reply.headers["tr_id"] == "FHKST01010100"


async def test_the_sign_says_the_direction(kis: Kis, clock: ManualClock) -> None:
    kis.simulator.market.inject_surge(30, -2.0)
    await clock.advance(3)
    output = (await kis.price(kis.simulator.market.universe.codes[30])).body["output"]
    assert output["prdy_vrss_sign"] == "5"
    assert output["prdy_vrss"].startswith("-")
    assert int(output["stck_sdpr"]) + int(output["prdy_vrss"]) == int(output["stck_prpr"])


async def test_parameters_may_be_lower_case(kis: Kis) -> None:
    reply = await kis.get(
        "quotations/inquire-price",
        "FHKST01010100",
        fid_cond_mrkt_div_code="J",
        fid_input_iscd="005930",
    )
    assert reply.body["output"]["stck_shrn_iscd"] == "005930"


async def test_an_unknown_code_has_a_quote_of_zeros(kis: Kis) -> None:
    reply = await kis.price("999999")
    assert (reply.body["rt_cd"], reply.code) == ("0", "MCA00000")
    assert (reply.body["output"]["stck_prpr"], reply.body["output"]["acml_vol"]) == ("0", "0")


@pytest.mark.parametrize(("division", "price"), [("J", True), ("UN", True), ("NX", False)])
async def test_nothing_trades_at_nxt(kis: Kis, division: str, price: bool) -> None:
    reply = await kis.get(
        "quotations/inquire-price",
        "FHKST01010100",
        FID_COND_MRKT_DIV_CODE=division,
        FID_INPUT_ISCD="005930",
    )
    assert (int(reply.body["output"]["stck_prpr"]) > 0) is price


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"FID_COND_MRKT_DIV_CODE": "ZZ"}, "ERROR INVALID FID_COND_MRKT_DIV_CODE"),
        ({}, "ERROR INPUT FIELD NOT FOUND [FID_COND_MRKT_DIV_CODE]"),
    ],
)
async def test_a_wrong_division_is_refused(kis: Kis, values: dict[str, str], text: str) -> None:
    reply = await kis.get(
        "quotations/inquire-price", "FHKST01010100", FID_INPUT_ISCD="005930", **values
    )
    assert (reply.status, reply.body["rt_cd"], reply.code) == (200, "2", "OPSQ2001")
    assert reply.body["msg1"].strip() == text


async def test_thirty_rows_come_in_the_order_of_the_request(kis: Kis) -> None:
    codes = list(reversed(kis.simulator.market.universe.codes[:30]))
    reply = await kis.many(codes)
    assert [row["inter_shrn_iscd"] for row in reply.body["output"]] == codes
    for row in reply.body["output"]:
        assert list(row) == ROW_FIELDS.split()
        assert all(isinstance(value, str) for value in row.values())
        assert int(row["inter2_bidp"]) < int(row["inter2_askp"])
        assert int(row["inter2_bidp"]) <= int(row["inter2_prpr"]) <= int(row["inter2_askp"])


async def test_thirty_one_are_too_many(kis: Kis) -> None:
    assert (await kis.many(list(kis.simulator.market.universe.codes[:31]))).code == "OPSQ2001"
    assert (await kis.many([])).code == "OPSQ2001"


async def test_a_suspended_symbol_has_no_price(kis: Kis) -> None:
    row = (await kis.many([kis.simulator.market.universe.codes[-1]])).body["output"][0]
    assert (row["inter2_prpr"], row["acml_vol"], row["prdy_ctrt"]) == ("0", "0", "")


@pytest.mark.parametrize(("unknown", "rows"), [("zeros", 3), ("missing", 2)])
async def test_an_unknown_code_in_a_batch_is_a_setting(
    start_kis: StartKis, unknown: str, rows: int
) -> None:
    kis = await start_kis(unknown_in_batch=unknown)
    output = (await kis.many(["005930", "999999", "000660"])).body["output"]
    assert len(output) == rows
    assert output[-1]["inter_shrn_iscd"] == "000660"
    if unknown == "zeros":
        assert (output[1]["inter_shrn_iscd"], output[1]["inter2_prpr"]) == ("999999", "0")


async def test_before_the_bell_rows_show_the_expected_price(start_kis: StartKis) -> None:
    market = MarketConfig(symbols=40, start=MORNING)
    kis = await start_kis(market=market)
    row = (await kis.many(["005930"])).body["output"][0]
    assert (row["hour_cls_code"], row["acml_vol"]) == ("B", "0")
    assert row["inter2_prpr"] == row["inter2_prdy_clpr"]
    assert int(row["intr_antc_vol"]) > 0


async def test_volume_adds_up_over_the_day(kis: Kis, clock: ManualClock) -> None:
    volumes = []
    for _ in range(5):
        volumes.append(int((await kis.price()).body["output"]["acml_vol"]))
        await clock.advance(2)
    assert volumes == sorted(volumes)
    assert volumes[-1] > volumes[0] > 0


async def test_the_book_has_ten_levels_that_do_not_cross(kis: Kis) -> None:
    reply = await kis.get(
        "quotations/inquire-asking-price-exp-ccn",
        "FHKST01010200",
        FID_COND_MRKT_DIV_CODE="J",
        FID_INPUT_ISCD="005930",
    )
    book, summary = reply.body["output1"], reply.body["output2"]
    asks = [int(book[f"askp{n}"]) for n in range(1, 11)]
    bids = [int(book[f"bidp{n}"]) for n in range(1, 11)]
    assert asks == sorted(set(asks))
    assert bids == sorted(set(bids), reverse=True)
    assert bids[0] < asks[0]
    assert int(book["total_askp_rsqn"]) == sum(int(book[f"askp_rsqn{n}"]) for n in range(1, 11))
    assert int(summary["stck_prpr"]) in (asks[0], bids[0])
    assert book["aspr_acpt_hour"] == "090000"


async def test_an_interrupted_symbol_is_marked(kis: Kis, clock: ManualClock) -> None:
    await kis.control("POST", "market", what="halt", symbol="005930", seconds=60)
    assert (await kis.price()).body["output"]["vi_cls_code"] == "Y"
    rows = (await kis.get("quotations/inquire-vi-status", "FHPST01390000")).body["output"]
    assert [row["mksc_shrn_iscd"] for row in rows] == ["005930"]
    await clock.advance(61)
    assert (await kis.price()).body["output"]["vi_cls_code"] == "N"


async def test_rankings_are_ranked(kis: Kis, clock: ManualClock) -> None:
    await clock.advance(10)
    rows = (await kis.get("quotations/volume-rank", "FHPST01710000")).body["output"]
    volumes = [int(row["acml_vol"]) for row in rows]
    assert volumes == sorted(volumes, reverse=True)
    assert [row["data_rank"] for row in rows] == [str(n) for n in range(1, 31)]
    for sort, best in (("0", max), ("1", min)):
        rows = (
            await kis.get("ranking/fluctuation", "FHPST01700000", fid_rank_sort_cls_code=sort)
        ).body["output"]
        changes = [float(row["prdy_ctrt"]) for row in rows]
        assert changes[0] == best(changes)


async def test_holidays_are_listed(kis: Kis) -> None:
    rows = (await kis.get("quotations/chk-holiday", "CTCA0903R", BASS_DT="20261224")).body["output"]
    assert {row["bass_dt"]: row["opnd_yn"] for row in rows[:5]} == {
        "20261224": "Y", "20261225": "N", "20261226": "N", "20261227": "N", "20261228": "Y",
    }  # fmt: skip
    assert rows[0]["wday_dvsn_cd"] == "05"


async def test_an_index_has_the_documented_fields_and_can_crash(
    kis: Kis, clock: ManualClock
) -> None:
    async def index(code: str) -> dict[str, str]:
        reply = await kis.get(
            "quotations/inquire-index-price",
            "FHPUP02100000",
            FID_COND_MRKT_DIV_CODE="U",
            FID_INPUT_ISCD=code,
        )
        output: dict[str, str] = reply.body["output"]
        return output

    assert all(isinstance(value, str) for value in (await index("0001")).values())
    before = float((await index("0001"))["bstp_nmix_prpr"])
    await kis.control("POST", "market", what="index", symbol="0001", percent=-8, over_s=2)
    await clock.advance(3)
    crashed = await index("0001")
    assert float(crashed["bstp_nmix_prpr"]) < before * 0.93
    assert crashed["prdy_vrss_sign"] == "5"
    assert float(crashed["bstp_nmix_prdy_ctrt"]) < -7
    assert (await index("9999"))["bstp_nmix_prpr"] == "0.00"


async def test_a_paper_key_has_no_index(start_kis: StartKis) -> None:
    kis = await start_kis(paper=True)
    reply = await kis.get("quotations/inquire-index-price", "FHPUP02100000", FID_INPUT_ISCD="0001")
    assert reply.code == "EGW02006"
