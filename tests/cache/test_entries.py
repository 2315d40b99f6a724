"""Values: the keys and fields of the contract, what they refuse, and that nothing is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.cache import (
    CachedLevel,
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
    CacheEntry,
)
from qts.cache.store import are_plain, is_plain
from qts.domain import RefusedError
from tests.cache import samples

symbols = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,15}", fullmatch=True)
amounts = st.decimals(0, 10**12, places=8)
signed = st.decimals(-(10**12), 10**12, places=8)
moments = st.integers(0, 2**53 - 1)


def test_keys_are_those_of_the_contract() -> None:
    assert CachedPrice.key("005930") == "price:005930"
    assert CachedPosition.key("005930") == "pos:005930"
    assert CachedOrderBook.key("005930") == "book:{005930}"
    assert CachedRisk.key("account") == "risk:account"
    assert CachedOrder.key("ORD123456") == "ord:ORD123456"
    assert CachedStrategyParams.key("SCALP_RSI") == "strat:SCALP_RSI"


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (samples.price(), "bid ask last volume timestamp"),
        (samples.position(), "qty avg_price unrealized_pnl exposure_pct updated_at"),
        (
            samples.risk(),
            "exposure_used daily_pnl trade_count remaining_limit max_exposure_pct "
            "daily_loss_limit open_symbols updated_at",
        ),
        (samples.order(), "status filled_qty pending_qty avg_fill_price last_update"),
        (samples.strategy(), "active rsi_oversold rsi_overbought position_size updated_at"),
    ],
)
def test_fields_are_those_of_the_contract_and_a_few_of_ours(value: CacheEntry, fields: str) -> None:
    found = value.fields()
    assert set(fields.split()) <= set(found)
    assert set(found) - set(fields.split()) == {value.named_by, "received_at", "ver"}


@given(symbols, amounts, amounts, amounts, amounts, moments, moments, moments)
def test_a_price_comes_back_as_it_went(
    symbol: str,
    bid: Decimal,
    ask: Decimal,
    last: Decimal,
    volume: Decimal,
    at: int,
    got: int,
    v: int,
) -> None:
    price = CachedPrice(
        symbol=symbol,
        bid=bid,
        ask=ask,
        last=last,
        volume=volume,
        timestamp=at,
        received_at=got,
        ver=v,
    )
    assert CachedPrice.from_fields(price.fields()) == price


@given(symbols, signed, amounts, signed, signed)
def test_a_position_comes_back_as_it_went(
    symbol: str, qty: Decimal, avg: Decimal, pnl: Decimal, share: Decimal
) -> None:
    position = CachedPosition(
        symbol=symbol,
        qty=qty,
        avg_price=avg,
        unrealized_pnl=pnl,
        exposure_pct=share,
        updated_at=1,
    )
    assert CachedPosition.from_fields(position.fields()) == position


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True).filter(
            lambda word: word not in ("active", "ver")
        ),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
        max_size=8,
    ),
    st.booleans(),
)
def test_parameters_come_back_as_they_went(params: dict[str, str], active: bool) -> None:
    value = CachedStrategyParams(strategy_id="S", active=active, params=params, updated_at=5, ver=7)
    assert CachedStrategyParams.from_fields(value.fields()) == value


@given(
    st.lists(st.integers(1, 10**9), unique=True, max_size=8),
    st.lists(st.integers(1, 10**9), unique=True, max_size=8),
    st.sampled_from([Decimal(1), Decimal("0.05"), Decimal("0.00000001"), Decimal(1000)]),
)
def test_a_book_comes_back_sorted(bids: list[int], asks: list[int], unit: Decimal) -> None:
    def levels(side: list[int]) -> tuple[CachedLevel, ...]:
        return tuple(CachedLevel(n * unit, Decimal(n % 97)) for n in side)

    book = CachedOrderBook(symbol="A", bids=levels(bids), asks=levels(asks), unit=unit, timestamp=1)
    found = CachedOrderBook.from_parts(book.fields(), book.sides())
    assert [price for price, _ in found.bids] == sorted((n * unit for n in bids), reverse=True)
    assert [price for price, _ in found.asks] == sorted(n * unit for n in asks)
    assert set(found.bids) == set(book.bids)
    assert set(found.asks) == set(book.asks)


def spoilt(value: CacheEntry, **fields: Any) -> CacheEntry:
    return msgspec.structs.replace(value, **fields)


@pytest.mark.parametrize(
    ("value", "fields", "message"),
    [
        (samples.price(), {"bid": Decimal("NaN")}, "bid is NaN"),
        (samples.price(), {"ask": Decimal("Infinity")}, "ask is Infinity"),
        (samples.price(), {"last": float("nan")}, "last is nan"),
        (samples.price(), {"last": Decimal("1e999999")}, "last is 1E+999999"),
        (samples.price(), {"last": Decimal("1." + "1" * 99)}, "last is 1.1"),
        (samples.price(), {"last": Decimal("1e-999999")}, "last is 1E-999999"),
        (samples.price(), {"last": Decimal("0e-999999")}, "last is 0E-999999"),
        (samples.price(), {"volume": Decimal(-1)}, "volume is -1; allowed is 0 or more"),
        (samples.price(), {"symbol": "0059 30"}, "'0059 30' is not a name"),
        (samples.price(), {"symbol": "{005930}"}, "'{005930}' is not a name"),
        (samples.price(), {"symbol": "a:b"}, "'a:b' is not a name"),
        (samples.price(), {"symbol": "*"}, "'*' is not a name"),
        (samples.price(), {"symbol": ""}, "'' is not a name"),
        (samples.price(), {"symbol": "x" * 1_000_000}, "is not a name"),
        (samples.price(), {"timestamp": -1}, "-1 is not a time"),
        (samples.price(), {"ver": 2**53}, "ver is 9007199254740992"),
        (samples.position(), {"avg_price": Decimal(-1)}, "avg_price is -1"),
        (samples.position(), {"qty": Decimal("NaN")}, "qty is NaN"),
        (samples.risk(), {"trade_count": -1}, "trade_count is -1"),
        (samples.order(), {"status": "filled?"}, "status is 'filled?'"),
        (samples.order(), {"filled_qty": Decimal(-5)}, "filled_qty is -5"),
        (samples.strategy(), {"params": {"big": "x" * 1_000_000}}, "1000000 characters"),
        (samples.strategy(), {"params": {"ver": "9"}}, "a parameter is 'ver'"),
        (samples.strategy(), {"params": {"a b": "9"}}, "a parameter is 'a b'"),
        (samples.strategy(), {"params": {"a": "\ud800"}}, "text that UTF-8 can write"),
        (samples.strategy(), {"params": {"a": 1}}, "text that UTF-8 can write"),
        (samples.book(), {"bids": (CachedLevel(Decimal("75000.5"), Decimal(1)),)}, "multiple of 1"),
        (samples.book(), {"bids": (CachedLevel(Decimal(1), Decimal("NaN")),)}, "bid volume is NaN"),
        (samples.book(), {"asks": (CachedLevel(Decimal(0), Decimal(1)),)}, "ask price is 0"),
        (samples.book(), {"asks": (CachedLevel(Decimal(5), Decimal(1)),) * 2}, "named twice"),
        (samples.book(), {"unit": Decimal(0)}, "unit is 0"),
        (
            samples.book(),
            {"bids": tuple(CachedLevel(Decimal(n), Decimal(1)) for n in range(1, 600))},
            "599 levels deep",
        ),
    ],
)
def test_bad_input_is_refused_with_its_reason(
    value: CacheEntry, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        spoilt(value, **fields)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@given(
    st.decimals(allow_nan=True, allow_infinity=True)
    | st.builds(lambda digits, e: Decimal(digits).scaleb(e), st.integers(), st.integers(-90, 90))
)
def test_the_quick_look_lets_nothing_through_that_the_close_one_refuses(number: Decimal) -> None:
    assert is_plain(number) or not are_plain((number,))
    assert (is_plain(number) and number >= 0) or not are_plain((), (number,))


def test_the_quick_look_knows_what_markets_say() -> None:
    ordinary = [Decimal(text) for text in ("75000", "0.00000001", "150000000.5", "-12.5", "0")]
    assert are_plain(ordinary)
    assert are_plain((), [number for number in ordinary if number >= 0])


@pytest.mark.parametrize("number", [1, 1.5, "1", None, float("nan")])
def test_what_is_no_decimal_is_looked_at_closely(number: Any) -> None:
    assert not are_plain((number,))
    assert not are_plain((), (number,))


@given(
    signed
    | st.builds(lambda n, e: Decimal(n).scaleb(e), st.integers(-99, 99), st.integers(-30, 30))
)
def test_numbers_are_written_without_an_exponent(number: Decimal) -> None:
    value = msgspec.structs.replace(samples.position(), qty=number)
    text = value.fields()["qty"]
    assert "E" not in text
    assert Decimal(text) == number
