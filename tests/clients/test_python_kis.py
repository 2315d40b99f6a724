"""python-kis against the simulated KIS; its hosts are patched, nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pykis
import pykis.client.websocket
import pykis.kis
import pytest
from pykis import KisNotFoundError

from tests.clients.conftest import ACCOUNT, APP_KEY, APP_SECRET, HTS_ID, SYMBOL, UNKNOWN, Venue

# It warns of tickets that it made itself.
pytestmark = pytest.mark.filterwarnings("ignore:Event ticket:UserWarning")


@pytest.fixture(scope="module")
def kis(kis_venue: Venue) -> Iterator[pykis.PyKis]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pykis.kis, "REAL_DOMAIN", kis_venue.url)
        patch.setattr(pykis.client.websocket, "WEBSOCKET_REAL_DOMAIN", kis_venue.ws_url)
        client = pykis.PyKis(
            id=HTS_ID, account=ACCOUNT, appkey=APP_KEY, secretkey=APP_SECRET, keep_token=False
        )
        yield client
        client.websocket.reconnect = False  # or it would go on, at the real host
        client.websocket.disconnect()
        client.close()


@pytest.fixture(scope="module")
def stock(kis: pykis.PyKis) -> Any:
    return kis.stock(SYMBOL)


@pytest.fixture
def resting(stock: Any) -> Any:
    """A bid that waits, ten percent below the price."""
    return stock.buy(price=int(stock.quote().price) // 1000 * 900, qty=1)


def test_token(kis: pykis.PyKis) -> None:
    assert kis.primary_token.type == "Bearer"


def test_quote(stock: Any) -> None:
    quote = stock.quote()
    assert quote.low_limit < quote.price < quote.high_limit
    assert quote.indicator.week52_low <= quote.price <= quote.indicator.week52_high


def test_many_quotes(kis: pykis.PyKis) -> None:
    """It has no call for many: one request for each."""
    quotes = [kis.stock(code).quote() for code in (SYMBOL, "000660")]
    assert [quote.symbol for quote in quotes] == [SYMBOL, "000660"]


def test_book(stock: Any) -> None:
    book = stock.orderbook()
    assert len(book.asks) == len(book.bids) == 10
    assert book.bids[0].price < book.asks[0].price


@pytest.mark.parametrize(("period", "fewest"), [("day", 15), ("week", 4), ("month", 1)])
def test_daily_candles(stock: Any, period: str, fewest: int) -> None:
    bars = stock.chart("30d", period=period).bars
    assert len(bars) >= fewest
    assert all(bar.low <= bar.open <= bar.high for bar in bars)


def test_minute_candles(stock: Any) -> None:
    bars = stock.day_chart().bars
    assert bars
    assert all(bar.low <= bar.close <= bar.high for bar in bars)


def test_balance_with_a_holding(kis: pykis.PyKis, stock: Any) -> None:
    stock.buy(qty=3)
    balance = kis.account().balance()
    held = {each.symbol: each.quantity for each in balance.stocks}
    assert held[SYMBOL] >= 3
    assert balance.deposits["KRW"].amount < 100_000_000


def test_buying_power(stock: Any) -> None:
    power = stock.orderable_amount(price=60_000)
    assert 0 < power.quantity * 60_000 <= power.amount


def test_place(resting: Any) -> None:
    assert resting.number.isdigit()
    resting.cancel()


def test_modify(resting: Any) -> None:
    changed = resting.modify(price=60_000)
    assert changed.number != resting.number
    changed.cancel()


def test_cancel(kis: pykis.PyKis, resting: Any) -> None:
    resting.cancel()
    assert resting.number not in [each.number for each in kis.account().pending_orders().orders]


def test_open_orders(kis: pykis.PyKis, resting: Any) -> None:
    waiting = kis.account().pending_orders().orders
    assert resting.number in [each.number for each in waiting]
    resting.cancel()


def test_one_order(kis: pykis.PyKis, resting: Any) -> None:
    orders = kis.account().daily_orders(datetime.now().date()).orders  # noqa: DTZ005 - as its users do
    (found,) = (each for each in orders if each.number == resting.number)
    assert (found.quantity, found.executed_quantity) == (1, 0)
    resting.cancel()


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.seen.set()


def test_own_order_stream(kis: pykis.PyKis, stock: Any) -> None:
    """It expects 23 fields, the venue has sent 26 since 2025: it drops every notice there too."""
    errors, notices = _Errors(), list[Any]()
    logger = logging.getLogger("pykis")
    logger.addHandler(errors)
    ticket = kis.account().on("execution", lambda _sender, event: notices.append(event))
    try:
        kis.websocket.ensure_connected()
        _until_subscribed(kis)
        stock.buy(qty=1)
        assert errors.seen.wait(20)
    finally:
        logger.removeHandler(errors)
        ticket.unsubscribe()
    assert "Invalid data length: 26" in errors.texts[0]
    assert not notices


def _until_subscribed(kis: pykis.PyKis) -> None:
    for _ in range(200):
        if any(each.id == "H0STCNI0" for each in kis.websocket._registered_subscriptions):
            return
        threading.Event().wait(0.05)
    raise AssertionError("never subscribed")


def test_limit_exceeded(kis_venue: Venue, stock: Any) -> None:
    """It repeats a request that is over the limit until it is not."""
    kis_venue.limit_once()
    assert stock.quote().price > 0


def test_unknown_symbol(kis: pykis.PyKis) -> None:
    with pytest.raises(KisNotFoundError):
        kis.stock(UNKNOWN)
