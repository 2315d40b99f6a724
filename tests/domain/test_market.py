"""Tick sizes of the markets and daily price limits of the KRX."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import (
    FeeSchedule,
    Market,
    Side,
    daily_price_limits,
    is_on_tick,
    market_for_symbol,
    round_to_tick,
    tick_size,
)

markets = st.sampled_from(Market)
prices = st.decimals("0.00001", 3_000_000, places=5)


@pytest.mark.parametrize(
    ("market", "price", "tick"),
    [
        (Market.KRX, "1999", "1"),
        (Market.KRX, "2000", "5"),
        (Market.KRX, "75000", "100"),
        (Market.KRX, "500000", "1000"),
        (Market.UPBIT, "0.05", "0.0001"),
        (Market.UPBIT, "99", "0.1"),
        (Market.UPBIT, "150000000", "1000"),
    ],
)
def test_tick_by_price(market: Market, price: str, tick: str) -> None:
    assert tick_size(market, Decimal(price)) == Decimal(tick)


@given(markets, prices)
def test_rounded_price_is_on_a_tick_and_near(market: Market, price: Decimal) -> None:
    found = round_to_tick(market, price)
    assert is_on_tick(market, found)
    assert abs(found - price) <= tick_size(market, price)


@given(markets, prices.filter(lambda price: price >= 1))
def test_rounding_for_a_side_is_never_worse_for_us(market: Market, price: Decimal) -> None:
    assert (
        round_to_tick(market, price, Side.BUY) <= price <= round_to_tick(market, price, Side.SELL)
    )


@given(st.integers(100, 1_000_000))
def test_day_limits_are_on_ticks_and_within_30_percent(base: int) -> None:
    price = round_to_tick(Market.KRX, Decimal(base))
    low, high = daily_price_limits(price)
    assert is_on_tick(Market.KRX, low)
    assert is_on_tick(Market.KRX, high)
    assert price * Decimal("0.7") <= low < price < high <= price * Decimal("1.3")


def test_market_follows_from_the_symbol() -> None:
    assert market_for_symbol("005930") is Market.KRX
    assert market_for_symbol("KRW-BTC") is Market.UPBIT


def test_sales_are_taxed_and_purchases_are_not() -> None:
    fees = FeeSchedule(fee=Decimal("0.001"), sale_tax=Decimal("0.002"))
    assert fees.of(Side.BUY, Decimal(1000)) == 1
    assert fees.of(Side.SELL, Decimal(1000)) == 3
