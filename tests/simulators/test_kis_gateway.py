"""KIS: tokens, keys, limits, TR ids."""

from __future__ import annotations

import pytest

from qts.domain import ManualClock
from qts.simulators import KisKey, RequestLimits
from tests.simulators.clients import Kis
from tests.simulators.conftest import StartKis


async def test_a_token_lasts_a_day(kis: Kis, clock: ManualClock) -> None:
    await clock.advance(60)
    reply = await kis.issue()
    assert reply.body["token_type"] == "Bearer"
    assert reply.body["expires_in"] == 86_400 - 60
    # Wall time in Seoul without a zone: issued at 08:59 on the 16th.
    assert reply.body["access_token_token_expired"] == "2026-11-17 08:59:00"


async def test_a_second_issue_within_a_minute_is_refused(kis: Kis, clock: ManualClock) -> None:
    reply = await kis.issue()
    assert (reply.status, reply.body["error_code"]) == (403, "EGW00133")
    assert "rt_cd" not in reply.body
    await clock.advance(59.9)
    assert (await kis.issue()).status == 403
    await clock.advance(0.1)
    assert (await kis.issue()).status == 200


async def test_the_same_token_for_six_hours(kis: Kis, clock: ManualClock) -> None:
    first = kis.token
    kis.simulator.gateway.age_tokens(6 * 3600 - 61)
    await clock.advance(60)
    await kis.issue()
    assert kis.token == first
    await clock.advance(60)
    await kis.issue()
    assert kis.token != first


async def test_an_expired_token_is_refused(kis: Kis) -> None:
    assert (await kis.price()).status == 200
    kis.simulator.gateway.age_tokens()
    reply = await kis.price()
    assert (reply.status, reply.code) == (500, "EGW00123")


async def test_a_made_up_token_is_refused(kis: Kis) -> None:
    kis.token = "made-up"
    assert (await kis.price()).code == "EGW00121"


async def test_a_revoked_token_is_refused(kis: Kis) -> None:
    body = {"appkey": kis.key.app_key, "appsecret": kis.key.app_secret, "token": kis.token}
    assert (await kis.call("POST", "/oauth2/revokeP", json=body)).body["code"] == 200
    assert (await kis.price()).code == "EGW00121"


@pytest.mark.parametrize(("field", "code"), [("app_key", "EGW00103"), ("app_secret", "EGW00105")])
async def test_a_wrong_key_is_refused(kis: Kis, field: str, code: str) -> None:
    kis.key = KisKey(**{field: "wrong"})  # type: ignore[arg-type]
    assert (await kis.price()).code == code
    assert (await kis.issue()).code == code


async def test_the_nineteenth_request_of_a_second_is_refused(kis: Kis, clock: ManualClock) -> None:
    replies = [await kis.price() for _ in range(19)]
    assert [reply.status for reply in replies] == [200] * 18 + [500]
    assert replies[-1].body["rt_cd"] == "1"
    assert replies[-1].code == "EGW00201"
    await clock.advance(0.999)
    assert (await kis.price()).status == 500
    await clock.advance(0.001)
    assert (await kis.price()).status == 200


async def test_orders_and_quotes_share_one_bucket(start_kis: StartKis) -> None:
    kis = await start_kis(limits=RequestLimits(second=2, minute=0, day=0))
    assert (await kis.price()).status == 200
    assert (await kis.order("buy", 1)).status == 200
    assert (await kis.executions()).code == "EGW00201"
    assert len(kis.simulator.orders.entries) == 1


async def test_the_minute_is_a_limit_too(start_kis: StartKis, clock: ManualClock) -> None:
    kis = await start_kis(limits=RequestLimits(second=0, minute=3, day=5))
    assert [(await kis.price()).status for _ in range(4)] == [200, 200, 200, 500]
    await clock.advance(60)
    assert [(await kis.price()).status for _ in range(3)] == [200, 200, 500]  # now the day's five


async def test_statistics_show_the_worst_windows_of_a_key(kis: Kis, clock: ManualClock) -> None:
    for count in (3, 7, 2):
        for _ in range(count):
            await kis.price()
        await clock.advance(20)
    stats = (await kis.control("GET", "stats"))["keys"][kis.key.app_key]
    assert stats["worst"] == {"second": 7, "minute": 12, "day": 12}
    assert (stats["requests"], stats["refused"]) == (12, 0)
    assert stats["limits"] == {"second": 18, "minute": 1000, "day": 100_000}


async def test_each_key_has_its_own_limits(start_kis: StartKis) -> None:
    other = KisKey(app_key="other", account="9999999901")
    kis = await start_kis(keys=(KisKey(), other), limits=RequestLimits(second=1, minute=0, day=0))
    assert [(await kis.price()).status for _ in range(2)] == [200, 500]
    friend = Kis(kis.simulator, kis.http, key=1)
    await friend.issue()
    assert (await friend.price()).status == 200
    assert (await friend.order("buy", 1)).code == "EGW00201"


async def test_limits_may_count_the_markets_seconds(start_kis: StartKis) -> None:
    kis = await start_kis(limits_clock="market")
    assert [(await kis.price()).status for _ in range(19)][-1] == 500
    await kis.control("POST", "clock", advance_s=1)
    assert (await kis.price()).status == 200


async def test_a_paper_host_accepts_one_request_a_second(start_kis: StartKis) -> None:
    kis = await start_kis(paper=True)
    assert [(await kis.price()).status for _ in range(2)] == [200, 500]


@pytest.mark.parametrize(
    ("path", "tr_id"),
    [
        ("quotations/intstock-multprice", "FHKST11300006"),
        ("quotations/volume-rank", "FHPST01710000"),
        ("ranking/fluctuation", "FHPST01700000"),
        ("quotations/inquire-vi-status", "FHPST01390000"),
        ("quotations/chk-holiday", "CTCA0903R"),
        ("trading/inquire-psbl-rvsecncl", "TTTC0084R"),
        ("trading/inquire-balance", "TTTC8434R"),
    ],
)
async def test_a_paper_host_has_no_real_trs(start_kis: StartKis, path: str, tr_id: str) -> None:
    kis = await start_kis(paper=True)
    reply = await kis.get(path, tr_id)
    assert (reply.status, reply.code) == (500, "EGW02006")


async def test_a_real_host_has_no_paper_trs(kis: Kis) -> None:
    reply = await kis.get("trading/inquire-balance", "VTTC8434R", **kis.account)
    assert reply.code == "EGW02007"
    assert (await kis.get("trading/inquire-balance", "XXXX", **kis.account)).code == "OPSQ0002"


async def test_a_body_that_is_not_json_is_answered(kis: Kis) -> None:
    reply = await kis.call("POST", "/oauth2/tokenP", data=b"grant_type=x")
    assert reply.code == "OPSQ2001"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"grant_type": None}, "EGW00115"),
        ({"grant_type": "password"}, "EGW00116"),
        ({"appkey": None}, "EGW00102"),
        ({"appkey": "other"}, "EGW00103"),
        ({"appsecret": None}, "EGW00104"),
        ({"appsecret": "other"}, "EGW00105"),
    ],
)
async def test_a_grant_is_checked(kis: Kis, change: dict[str, str | None], code: str) -> None:
    body: dict[str, str | None] = {
        "grant_type": "client_credentials",
        "appkey": kis.key.app_key,
        "appsecret": kis.key.app_secret,
    }
    sent = {name: value for name, value in (body | change).items() if value is not None}
    reply = await kis.call("POST", "/oauth2/tokenP", json=sent)
    assert (reply.status, reply.body["error_code"]) == (403, code)


async def test_a_hash_needs_the_headers_of_a_key(kis: Kis) -> None:
    headers = {"appKey": kis.key.app_key, "appSecret": kis.key.app_secret}
    reply = await kis.call("POST", "/uapi/hashkey", json={"A": "1"}, headers=headers)
    assert (reply.status, reply.body["BODY"]) == (200, {"A": "1"})
    reply = await kis.call("POST", "/uapi/hashkey", json={"A": "1"})
    assert (reply.status, reply.code) == (403, "EGW00102")


async def test_an_unknown_path_has_an_envelope(kis: Kis) -> None:
    reply = await kis.get("quotations/nothing", "FHKST01010100")
    assert (reply.status, reply.body["rt_cd"], reply.code) == (404, "1", "EGW00202")


async def test_empty_segments_of_a_path_are_ignored(kis: Kis) -> None:
    path = "//uapi/domestic-stock//v1/quotations/inquire-price"
    query = {"FID_COND_MRKT_DIV_CODE": "J", "FID_INPUT_ISCD": "005930"}
    reply = await kis.call("GET", path, headers=kis.headers("FHKST01010100"), params=query)
    assert reply.body["output"]["stck_shrn_iscd"] == "005930"


@pytest.mark.parametrize("tr_id", ["TTTC0013U", "TTTC0803U"])
async def test_an_order_is_cancelled_by_either_tr(kis: Kis, tr_id: str) -> None:
    placed = (await kis.order("buy", 1, 60_000)).body["output"]
    body = {
        "KRX_FWDG_ORD_ORGNO": placed["KRX_FWDG_ORD_ORGNO"], "ORGN_ODNO": placed["ODNO"],
        "ORD_DVSN": "00", "RVSE_CNCL_DVSN_CD": "02", "ORD_QTY": "0", "ORD_UNPR": "0",
        "QTY_ALL_ORD_YN": "Y",
    }  # fmt: skip
    reply = await kis.post("trading/order-rvsecncl", tr_id, **kis.account, **body)
    assert reply.body["rt_cd"] == "0"
