"""The smallest orders of a rehearsal: the venue takes them, and the limit buy cannot fill."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.brokers.rehearsal_orders import SmallestOrders
from qts.domain import (
    BookLevel,
    Instrument,
    OperationError,
    OrderBook,
    OrderRequest,
    krx_instrument,
    upbit_instrument,
)
from qts.venues import Quote

STOCK, COIN = krx_instrument("005930"), upbit_instrument("KRW-BTC")


def orders_at(instrument: Instrument, price: Decimal, base: float = 0.0) -> SmallestOrders:
    bid, ask = float(price), float(price + instrument.ticks.size(price))
    quote = Quote(instrument.symbol, bid, 0.0, bid, ask, {}, "test", base=base)
    book = OrderBook(instrument.symbol, (BookLevel(bid, 1.0),), (BookLevel(ask, 1.0),))
    return SmallestOrders(instrument, quote, book)


def is_taken(instrument: Instrument, request: OrderRequest, price: Decimal) -> bool:
    value = request.quantity * price
    return request.quantity % instrument.lot == 0 and value >= instrument.min_order_value


@given(
    instrument=st.sampled_from((STOCK, COIN)),
    price=st.decimals(min_value=2000, max_value=200_000_000, places=0),
    fall=st.decimals(min_value=Decimal("0.71"), max_value=Decimal("1.29"), places=2),
)
def test_a_far_buy_is_taken_and_cannot_fill(
    instrument: Instrument, price: Decimal, fall: Decimal
) -> None:
    price = instrument.ticks.round(price)
    base = instrument.ticks.round(price / fall)
    limits = instrument.daily_limits(base) or (Decimal(0), Decimal("Infinity"))
    orders = orders_at(instrument, price, float(base))
    try:
        far = orders.far_buy()
    except OperationError:
        assert limits[0] > price * Decimal("0.94")
        return
    for request in (far, orders.lower(far)):
        assert request.price is not None
        assert instrument.ticks.has(request.price)
        assert limits[0] <= request.price <= price * Decimal("0.96")
        assert is_taken(instrument, request, request.price)
    assert orders.lower(far).price != far.price


@given(price=st.decimals(min_value=Decimal("0.01"), max_value=200_000_000, places=8))
def test_what_is_bought_can_be_sold_after_a_fall(price: Decimal) -> None:
    price = COIN.ticks.round(price)
    orders = orders_at(COIN, price)
    buy = orders.market_buy()
    assert is_taken(COIN, buy, price / Decimal("1.09"))
    assert buy.quantity * price <= Decimal(5500) + price * COIN.lot * 2
    assert orders.market_sell(buy.quantity).quantity == buy.quantity


def test_a_stock_costs_one_share() -> None:
    assert orders_at(STOCK, Decimal(70_000)).far_buy().quantity == 1
    assert orders_at(STOCK, Decimal(70_000)).market_buy().quantity == 1


def test_a_stock_at_its_lowest_price_is_refused() -> None:
    with pytest.raises(OperationError, match="name another symbol with --symbol"):
        orders_at(STOCK, Decimal(70_000), base=98_000.0).far_buy()
