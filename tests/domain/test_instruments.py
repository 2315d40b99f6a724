"""Instruments: rules by class, lookup, and the replacement of all at once."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import (
    TICK_TABLES,
    Instrument,
    InstrumentClass,
    Instruments,
    Market,
    RefusedError,
    Side,
    krx_instrument,
    upbit_instrument,
)

STOCK = krx_instrument("005930", name="삼성전자")
ETF = krx_instrument("069500", InstrumentClass.ETF, name="KODEX 200")
COIN = upbit_instrument("KRW-BTC", name="비트코인", name_en="Bitcoin")

prices = st.decimals("0.00001", 3_000_000, places=5)


@pytest.mark.parametrize(
    ("instrument", "price", "tick"),
    [
        (STOCK, "1999", "1"),
        (STOCK, "2000", "5"),
        (STOCK, "75000", "100"),
        (STOCK, "500000", "1000"),
        (ETF, "1999", "1"),
        (ETF, "2000", "5"),
        (ETF, "75000", "5"),
        (krx_instrument("Q500001", InstrumentClass.ETN), "120000", "5"),
        (krx_instrument("58JK12", InstrumentClass.ELW), "70", "5"),
        (krx_instrument("395400", InstrumentClass.REIT), "5100", "10"),
        (COIN, "0.05", "0.0001"),
        (COIN, "99", "0.1"),
        (COIN, "150000000", "1000"),
    ],
)
def test_tick_by_class_and_price(instrument: Instrument, price: str, tick: str) -> None:
    assert instrument.ticks.size(Decimal(price)) == Decimal(tick)


@given(st.sampled_from(sorted(TICK_TABLES)), prices)
def test_rounded_price_is_on_a_tick_and_near(name: str, price: Decimal) -> None:
    table = TICK_TABLES[name]
    found = table.round(price)
    assert table.has(found)
    assert abs(found - price) <= table.size(price)


@given(st.sampled_from([STOCK, ETF, COIN]), prices.filter(lambda price: price >= 1))
def test_rounding_for_a_side_is_never_worse_for_us(each: Instrument, price: Decimal) -> None:
    assert each.ticks.round(price, Side.BUY) <= price <= each.ticks.round(price, Side.SELL)


@given(st.integers(100, 1_000_000))
def test_day_limits_of_a_stock_are_on_ticks_and_within_30_percent(base: int) -> None:
    price = STOCK.ticks.round(Decimal(base))
    limits = STOCK.daily_limits(price)
    assert limits is not None
    low, high = limits
    assert STOCK.ticks.has(low)
    assert STOCK.ticks.has(high)
    assert price * Decimal("0.7") <= low < price < high <= price * Decimal("1.3")


def test_limits_of_an_etf_allow_for_leverage_and_coins_have_none() -> None:
    assert ETF.daily_limits(Decimal(10_000)) == (Decimal(4000), Decimal(16_000))
    assert COIN.daily_limits(Decimal(10_000)) is None


@pytest.mark.parametrize(
    ("kind", "tax"),
    [("STOCK", "0.0020"), ("REIT", "0.0020"), ("ETF", "0"), ("ETN", "0"), ("ELW", "0")],
)
def test_sale_tax_by_class(kind: str, tax: str) -> None:
    assert krx_instrument("000001", InstrumentClass(kind)).sale_tax == Decimal(tax)


def test_a_coin_trades_always_in_small_lots_above_a_minimum() -> None:
    assert COIN.market is Market.UPBIT
    assert not COIN.orders_end_with_day
    assert STOCK.orders_end_with_day
    assert COIN.floor_to_lot(Decimal("0.123456789")) == Decimal("0.12345678")
    assert STOCK.floor_to_lot(Decimal("7.9")) == 7
    assert COIN.min_order_value == 5000
    assert STOCK.min_order_value == 0


@pytest.mark.parametrize(
    ("changes", "block"),
    [
        ({}, ""),
        ({"administrative": True, "caution": True}, ""),
        ({"halted": True}, "halted"),
        ({"delisted": True}, "delisted"),
        ({"liquidation": True}, "in liquidation trading"),
        ({"currency": "USD"}, "traded in USD, not in won"),
    ],
)
def test_what_blocks_entries(changes: dict[str, object], block: str) -> None:
    assert msgspec.structs.replace(STOCK, **changes).entry_block == block


def test_an_unknown_symbol_blocks_entries_and_names_the_nearest() -> None:
    known = Instruments([STOCK, COIN])
    unknown = known["00593O"]
    assert unknown.kind is InstrumentClass.UNKNOWN
    assert unknown.ticks.has(Decimal("71923.45"))  # an exit follows no rule that is not known
    assert known.entry_block("00593O").endswith("did you mean 005930 삼성전자?")
    assert known.entry_block("005930") == ""
    with pytest.raises(RefusedError, match="'KRW-BTX' is unknown; did you mean KRW-BTC 비트코인"):
        known.check("KRW-BTX")
    known.check("KRW-BTC")


def test_a_replacement_is_seen_by_every_holder_of_the_instruments() -> None:
    known = Instruments([STOCK])
    held = known["KRW-BTC"]
    known.replace([COIN, msgspec.structs.replace(STOCK, lot=Decimal(10))])
    assert held.kind is InstrumentClass.UNKNOWN  # a snapshot does not change
    assert known["KRW-BTC"] is COIN
    assert known["005930"].lot == 10
    assert (len(known), "005930" in known, known.name("005930")) == (2, True, "삼성전자")


def test_wrong_rules_are_refused_when_a_file_is_read() -> None:
    good = msgspec.json.encode(STOCK)
    assert msgspec.json.decode(good, type=Instrument) == STOCK
    for part, bad in ((b'"krx-stock"', b'"nyse"'), (b'"lot":"1"', b'"lot":"0"')):
        assert part in good
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(good.replace(part, bad), type=Instrument)
