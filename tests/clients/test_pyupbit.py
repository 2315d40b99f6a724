"""pyupbit against the simulated Upbit; its hosts are patched, nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import pyupbit
from pyupbit.errors import UpbitError

from tests.clients.conftest import ACCESS_KEY, BTC, SECRET_KEY, Venue

# Its stream is a process, forked from one with threads, of which Python 3.12 warns.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture(scope="module")
def upbit(upbit_venue: Venue, hosts: dict[str, str]) -> Any:
    hosts["https://api.upbit.com"] = upbit_venue.url
    hosts["wss://api.upbit.com"] = upbit_venue.ws_url
    return pyupbit.Upbit(ACCESS_KEY, SECRET_KEY)


@pytest.fixture
def resting(upbit: Any) -> Any:
    """A bid that waits, ten percent below the price."""
    low = int(pyupbit.get_current_price(BTC) * 0.9 // 1000 * 1000)
    return upbit.buy_limit_order(BTC, low, 0.01)


def test_auth(upbit: Any) -> None:
    assert upbit.get_balances()[0]["currency"] == "KRW"
    assert upbit.get_api_key_list()[0]["access_key"] == ACCESS_KEY
    refused = pyupbit.Upbit("other", SECRET_KEY).get_balances()
    assert refused["error"]["name"] == "invalid_access_key"


def test_quote(upbit: Any) -> None:
    assert pyupbit.get_current_price(BTC) > 0


def test_many_quotes(upbit: Any) -> None:
    markets = pyupbit.get_tickers(fiat="KRW")
    assert len(markets) == 20
    assert set(pyupbit.get_current_price(markets)) == set(markets)


def test_book(upbit: Any) -> None:
    book = pyupbit.get_orderbook(BTC)
    best = book["orderbook_units"][0]
    assert best["bid_price"] < best["ask_price"]
    assert len(pyupbit.get_orderbook([BTC, "KRW-ETH"])) == 2


@pytest.mark.parametrize("interval", ["day", "week", "month"])
def test_daily_candles(upbit: Any, interval: str) -> None:
    found = pyupbit.get_ohlcv(BTC, interval=interval, count=3)
    assert list(found.columns) == ["open", "high", "low", "close", "volume", "value"]
    assert len(found) == 3


@pytest.mark.parametrize("interval", ["minute1", "minute60", "minute240"])
def test_minute_candles(upbit: Any, interval: str) -> None:
    found = pyupbit.get_ohlcv(BTC, interval=interval, count=210)
    assert len(found) == 210
    assert found.index.is_monotonic_increasing


def test_balance_with_a_holding(upbit: Any) -> None:
    upbit.buy_market_order(BTC, 1_000_000)
    assert upbit.get_balance(BTC) > 0
    assert upbit.get_avg_buy_price(BTC) > 0


def test_buying_power(upbit: Any) -> None:
    chance = upbit.get_chance(BTC)
    assert chance["bid_fee"] == "0.0005"
    assert float(chance["bid_account"]["balance"]) > 0


def test_place(resting: Any) -> None:
    assert (resting["state"], resting["executed_volume"]) == ("wait", "0")


def test_modify(upbit: Any) -> None:
    """It has no request for it."""
    assert not [name for name in dir(upbit) if "modify" in name or "cancel_and" in name]


def test_cancel(upbit: Any, resting: Any) -> None:
    assert upbit.cancel_order(resting["uuid"])["uuid"] == resting["uuid"]
    assert upbit.get_order(resting["uuid"])["state"] == "cancel"


def test_open_orders(upbit: Any, resting: Any) -> None:
    assert resting["uuid"] in [order["uuid"] for order in upbit.get_order(BTC)]


def test_one_order(upbit: Any, resting: Any) -> None:
    assert upbit.get_individual_order(resting["uuid"])["trades"] == []


def test_own_order_stream(upbit: Any) -> None:
    """It streams market data only: its socket carries no key."""
    stream = pyupbit.WebSocketManager("myOrder", [BTC])
    try:
        assert stream.get()["error"]["name"] == "INVALID_AUTH"
    finally:
        stream.terminate()
    stream = pyupbit.WebSocketManager("ticker", [BTC])
    try:
        assert stream.get()["code"] == BTC
    finally:
        stream.terminate()


def test_limit_exceeded(upbit_venue: Venue, upbit: Any) -> None:
    """It looks for the text of an older 429; the list of markets is the refusal itself."""
    upbit_venue.limit_once()
    assert upbit.get_balances()["error"]["name"] == "too_many_requests"


def test_unknown_symbol(upbit: Any) -> None:
    with pytest.raises(UpbitError, match="Code not found"):
        pyupbit.get_current_price("KRW-NONE")


def test_wallets_are_read(upbit: Any) -> None:
    assert upbit.get_deposit_withdraw_status()[0]["wallet_state"] == "working"
    assert upbit.get_deposit_list("KRW") == upbit.get_withdraw_list("KRW") == []
