"""mojito2 against the simulated KIS; its hosts are patched, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty
from typing import Any

import mojito
import pytest

from tests.clients.conftest import ACCOUNT, APP_KEY, APP_SECRET, HTS_ID, SYMBOL, UNKNOWN, Venue

FIRST_PAGE = {
    "CTX_AREA_FK100": "", "CTX_AREA_NK100": "", "INQR_DVSN_1": "0", "INQR_DVSN_2": "0",
}  # fmt: skip

# Its stream is a process, forked from one with threads, of which Python 3.12 warns.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture(scope="module")
def kis(kis_venue: Venue, hosts: dict[str, str]) -> Any:
    hosts["https://openapi.koreainvestment.com:9443"] = kis_venue.url
    hosts["https://new.real.download.dws.co.kr"] = kis_venue.url
    hosts["ws://ops.koreainvestment.com:21000"] = kis_venue.ws_url
    return mojito.KoreaInvestment(api_key=APP_KEY, api_secret=APP_SECRET, acc_no=ACCOUNT)


@pytest.fixture
def low(kis: Any) -> int:
    """A price ten percent below the market."""
    return int(kis.fetch_price(SYMBOL)["output"]["stck_prpr"]) // 1000 * 900


@pytest.fixture
def resting(kis: Any, low: int) -> dict[str, str]:
    output: dict[str, str] = kis.create_limit_buy_order(SYMBOL, low, 2)["output"]
    return output


def test_token(kis: Any) -> None:
    assert kis.access_token.startswith("Bearer ")
    assert kis.check_access_token()


def test_quote(kis: Any) -> None:
    quote = kis.fetch_price(SYMBOL)
    assert quote["rt_cd"] == "0"
    assert int(quote["output"]["stck_prpr"]) > 0


def test_many_quotes(kis: Any) -> None:
    """It has no call for many: the list of symbols, then one request for each."""
    symbols = kis.fetch_symbols()
    assert len(symbols) == 40
    for code in list(symbols["단축코드"])[:3]:
        assert kis.fetch_price(str(code).zfill(6))["output"]["stck_shrn_iscd"] == str(code).zfill(6)


def test_book(stream: Any) -> None:
    """It has no request for a book; the stream sends them."""
    book = _next(stream, "호가")
    assert int(book["매수호가01"]) < int(book["매도호가01"])


@pytest.mark.parametrize(("timeframe", "rows"), [("D", 51), ("W", 12), ("M", 3)])
def test_daily_candles(kis: Any, timeframe: str, rows: int) -> None:
    found = kis.fetch_ohlcv(SYMBOL, timeframe, "20260901", "20261116")["output2"]
    assert len(found) == rows
    assert len(kis.fetch_ohlcv_recent30(SYMBOL, timeframe)["output"]) == 30


def test_minute_candles(kis: Any) -> None:
    rows = kis.fetch_today_1m_ohlcv(SYMBOL)["output2"]
    assert rows
    assert all(int(row["stck_lwpr"]) <= int(row["stck_prpr"]) for row in rows)


def test_balance_with_a_holding(kis: Any) -> None:
    kis.create_market_buy_order(SYMBOL, 3)
    balance = kis.fetch_balance()
    (row,) = balance["output1"]
    assert (row["pdno"], int(row["hldg_qty"]) >= 3) == (SYMBOL, True)
    assert int(balance["output2"][0]["tot_evlu_amt"]) > 0


def test_buying_power(kis: Any, low: int) -> None:
    power = kis.check_buy_order(SYMBOL, low, "00")["output"]
    assert 0 < int(power["max_buy_qty"]) * low <= int(power["ord_psbl_cash"])


def test_place(resting: dict[str, str]) -> None:
    assert resting["ODNO"].isdigit()


def test_modify(kis: Any, resting: dict[str, str], low: int) -> None:
    changed = kis.modify_order(
        resting["KRX_FWDG_ORD_ORGNO"], resting["ODNO"], "00", low - 1000, 2, True
    )
    assert changed["rt_cd"] == "0"
    assert changed["output"]["ODNO"] != resting["ODNO"]


def test_cancel(kis: Any, resting: dict[str, str], low: int) -> None:
    gone = kis.cancel_order(
        resting["KRX_FWDG_ORD_ORGNO"], resting["ODNO"], 2, True, order_type="00", price=low
    )
    assert gone["rt_cd"] == "0"
    assert resting["ODNO"] not in _open(kis)


def test_open_orders(kis: Any, resting: dict[str, str]) -> None:
    assert resting["ODNO"] in _open(kis)


def test_one_order(kis: Any, resting: dict[str, str]) -> None:
    """It has no request for one order: the open ones, by number."""
    rows = kis.fetch_open_order(FIRST_PAGE)["output"]
    (row,) = (each for each in rows if each["odno"] == resting["ODNO"])
    assert (row["pdno"], row["psbl_qty"]) == (SYMBOL, "2")


@pytest.fixture(scope="module")
def stream(kis: Any) -> Iterator[Any]:
    client = mojito.KoreaInvestmentWS(
        APP_KEY, APP_SECRET, ["H0STCNT0", "H0STASP0"], [SYMBOL], user_id=HTS_ID
    )
    client.start()
    yield client
    client.terminate()


def test_own_order_stream(kis: Any, stream: Any) -> None:
    """It takes the first 23 of 26 fields, and so a wrong name for those after the 18th."""
    _next(stream, "체결")  # subscribed in this order: trades, books, notices
    _next(stream, "호가")
    number = kis.create_market_buy_order(SYMBOL, 1)["output"]["ODNO"]
    notice = _next(stream, "체잔")
    while notice["주문번호"] != number:
        notice = _next(stream, "체잔")
    assert (notice["주문번호"], notice["주식단축종목코드"]) == (number, SYMBOL)
    assert notice["주문가격"] == "10"  # the kind of credit: the price is field 25


def test_limit_exceeded(kis_venue: Venue, kis: Any) -> None:
    """It returns the refusal as an answer."""
    kis_venue.limit_once()
    assert kis.fetch_price(SYMBOL)["msg_cd"] == "EGW00201"


def test_unknown_symbol(kis: Any) -> None:
    answer = kis.fetch_price(UNKNOWN)
    assert (answer["rt_cd"], answer["output"]["stck_prpr"]) == ("0", "0")
    assert kis.create_limit_buy_order(UNKNOWN, 1000, 1)["msg_cd"] == "APBK0656"


def _open(kis: Any) -> list[str]:
    return [row["odno"] for row in kis.fetch_open_order(FIRST_PAGE)["output"]]


def _next(stream: Any, kind: str) -> dict[str, str]:
    """Return the next message of a kind."""
    for _ in range(500):
        try:
            name, values = stream.queue.get(timeout=20)
        except Empty:
            break
        if name == kind:
            found: dict[str, str] = values
            return found
    raise AssertionError(f"no {kind}")
