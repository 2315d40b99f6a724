"""Signal: clear values are converted, unclear ones are refused by the name of their field."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.domain import IntentType, OrderSnapshot, OrderType, Side, TimeInForce
from qts.strategies import Cancel, Replace, Signal
from tests.pipeline.portfolios import NOW, signal

NUMBERS = (
    st.integers(1, 10**17)
    | st.floats(1e-6, 1e17)
    | st.decimals(Decimal("0.000001"), 10**17, allow_nan=False)
)


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("quantity", 3, Decimal(3)),
        ("quantity", 0.1, Decimal("0.1")),
        ("quantity", "2.50", Decimal("2.50")),
        ("quantity", np.int64(7), Decimal(7)),
        ("quantity", np.float64(0.1), Decimal("0.1")),
        ("quantity", np.float32(0.1), Decimal("0.1")),
        ("quantity", 0, Decimal(0)),
        ("quantity", None, None),
        ("price", 70_000, Decimal(70_000)),
        ("price", "70000.5", Decimal("70000.5")),
        ("time_in_force", "ioc", TimeInForce.IOC),
        ("time_in_force", "fok", TimeInForce.FOK),
        ("trigger", "71000", Decimal(71_000)),
        ("time_in_force", TimeInForce.DAY, TimeInForce.DAY),
        ("time_in_force", 5, 5.0),
        ("time_in_force", "1.5", 1.5),
        ("time_in_force", timedelta(minutes=2), 120.0),
        ("side", "buy", Side.BUY),
        ("side", "SELL", Side.SELL),
        ("type", "Limit", OrderType.LIMIT),
        ("intent_type", "exit_signal", IntentType.EXIT_SIGNAL),
        ("at", NOW, NOW.timestamp()),
        ("at", NOW.astimezone(timezone(timedelta(hours=9))), NOW.timestamp()),
        ("at", 1_794_787_200, 1_794_787_200.0),
        ("at", np.float64(12.5), 12.5),
        ("confidence", 1, 1.0),
        ("confidence", np.float32(0.5), 0.5),
        ("symbol", np.str_("KRW-BTC"), "KRW-BTC"),
        ("reason", "a\0b\ud800", "a?b?"),
    ],
)
def test_clear_value_is_converted(field: str, given: Any, stored: object) -> None:
    made = signal(**{field: given})
    found = getattr(made, field)
    assert (type(found), found) == (type(stored), stored)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Signal) == made


@pytest.mark.parametrize(
    ("field", "given", "error"),
    [
        ("quantity", "x", ValueError),
        ("quantity", float("nan"), ValueError),
        ("quantity", Decimal("NaN"), ValueError),
        ("quantity", Decimal("sNaN"), ValueError),
        ("quantity", float("inf"), ValueError),
        ("quantity", -1, ValueError),
        ("quantity", Decimal("1e999999"), ValueError),
        ("quantity", Fraction(1, 3), ValueError),
        ("quantity", True, TypeError),
        ("quantity", [3], TypeError),
        ("price", 0, ValueError),
        ("price", -5.0, ValueError),
        ("price", Decimal("1e-999999"), ValueError),
        ("price", Decimal("Infinity"), ValueError),
        ("price", {}, TypeError),
        ("side", "hold", ValueError),
        ("side", 1, TypeError),
        ("side", None, TypeError),
        ("type", "iceberg", ValueError),
        ("intent_type", "leave", ValueError),
        ("at", datetime(2026, 11, 16), ValueError),  # noqa: DTZ001 - on purpose
        ("at", 1_794_787_200_000, ValueError),
        ("at", 10**400, ValueError),
        ("at", float("nan"), ValueError),
        ("at", -1.0, ValueError),
        ("at", "today", TypeError),
        ("at", None, TypeError),
        ("confidence", "high", ValueError),
        ("confidence", float("nan"), ValueError),
        ("confidence", None, TypeError),
        ("symbol", "", ValueError),
        ("symbol", " ", ValueError),
        ("symbol", "A\0", ValueError),
        ("symbol", 5930, TypeError),
        ("reason", None, TypeError),
        ("time_in_force", "GFD", ValueError),
        ("time_in_force", 0, ValueError),
        ("time_in_force", -5.0, ValueError),
        ("time_in_force", float("nan"), ValueError),
        ("time_in_force", 1e12, ValueError),
        ("time_in_force", timedelta(0), ValueError),
        ("time_in_force", True, TypeError),
        ("time_in_force", None, TypeError),
    ],
)
def test_unclear_value_is_refused_by_field(field: str, given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^Signal\.{field}: expected .*, got ") as caught:
        signal(**{field: given})
    assert type(caught.value) is error


def test_refusal_shows_a_short_value() -> None:
    with pytest.raises(
        ValueError, match=r"Signal\.price: expected a positive number, got 'xx"
    ) as e:
        signal(price="x" * 10_000)
    assert len(str(e.value)) < 200


@given(NUMBERS, st.sampled_from(["quantity", "price"]))
def test_any_number_round_trips(number: float | Decimal, field: str) -> None:
    made = signal(**{field: number})
    found = getattr(made, field)
    assert type(found) is Decimal
    assert type(number)(found) == number
    assert signal(**{field: str(number)}) == made
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Signal) == made


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - bounds
def test_any_time_round_trips(at: datetime) -> None:
    assert signal(at=at).at == at.timestamp()


def test_stored_form_is_that_of_the_exact_types() -> None:
    exact = signal(quantity=Decimal(3), price=Decimal("0.1"), type=OrderType.LIMIT)
    loose = signal(quantity=3, price=0.1, type="limit", side="buy", at=NOW)
    assert msgspec.json.encode(loose) == msgspec.json.encode(exact)
    assert msgspec.json.decode(msgspec.json.encode(exact)) == {
        "instruction": "signal",
        "symbol": "005930",
        "side": "BUY",
        "at": NOW.timestamp(),
        "quantity": "3",
        "type": "LIMIT",
        "price": "0.1",
        "confidence": 1.0,
        "intent_type": "ENTRY",
        "reason": "",
        "time_in_force": "DAY",
        "value": None,
        "share": None,
        "risk": None,
        "stop": None,
        "target": None,
        "trail": None,
        "trigger": None,
    }


def test_stored_signal_with_a_bad_number_is_refused() -> None:
    data = msgspec.json.encode({"symbol": "A", "side": "BUY", "at": 1.0, "quantity": "NaN"})
    with pytest.raises(msgspec.ValidationError, match=r"Signal\.quantity"):
        msgspec.json.decode(data, type=Signal)


@pytest.mark.parametrize("given", [TimeInForce.IOC, TimeInForce.GTC, 5.0])
def test_time_in_force_round_trips(given: TimeInForce | float) -> None:
    stored = msgspec.json.encode(signal(symbol="KRW-BTC", time_in_force=given))
    assert msgspec.json.decode(stored, type=Signal).time_in_force == given
    before = msgspec.json.encode({"symbol": "A", "side": "BUY", "at": 1.0})  # of an old journal
    assert msgspec.json.decode(before, type=Signal).time_in_force is TimeInForce.DAY


KNOWN: dict[str, Any] = {"symbol": "005930", "side": "BUY", "at": 1.0}
ORDER = OrderSnapshot(
    intent_id="i",
    symbol="005930",
    side=Side.BUY,
    state="ACKED",
    filled=Decimal(1),
    remaining=Decimal(2),
    price=Decimal(70_000),
)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda: Signal(**{**KNOWN, "value": -1}),
            "Signal.value: expected a number, zero or more, got -1",
        ),
        (
            lambda: Signal(**{**KNOWN, "share": 5}),
            "Signal.share: expected a part of the equity, from 0 to 1, got 5",
        ),
        (
            lambda: Signal(**{**KNOWN, "quantity": 1, "share": 0.1}),
            "Signal.share: expected one size (quantity, value, share, risk), got"
            " 'quantity and share'",
        ),
        (
            lambda: Signal(**{**KNOWN, "risk": 0.01}),
            "Signal.risk: expected a stop beside it: the risk is what is lost there, got None",
        ),
        (
            lambda: Signal(**{**KNOWN, "trail": 1}),
            "Signal.trail: expected a part of the price, above 0 and below 1, got Decimal('1')",
        ),
        (lambda: Signal(**{**KNOWN, "stop": 0}), "Signal.stop: expected a positive number, got 0"),
        (
            lambda: Replace(ORDER),
            "Replace.price: expected a price, a quantity, a trigger or several, got None",
        ),
        (
            lambda: Replace(ORDER, price=Decimal(0)),
            "Replace.price: expected a positive number, got Decimal('0')",
        ),
        (
            lambda: Replace(replace(ORDER, price=None), price=Decimal(1)),
            "Replace.price: expected none: the order is a market order, got Decimal('1')",
        ),
        (
            lambda: Cancel("i"),  # type: ignore[arg-type]
            "Cancel.order: expected an order of view.orders, got 'i'",
        ),
    ],
)
def test_sizes_and_changes_name_their_field(make: Callable[[], object], error: str) -> None:
    with pytest.raises((TypeError, ValueError)) as found:
        make()
    assert str(found.value) == error


def test_numbers_and_texts_are_the_same() -> None:
    assert Signal(**{**KNOWN, "value": "300000"}) == Signal(**{**KNOWN, "value": 300_000})
    assert Signal(**{**KNOWN, "share": 0.05}).share == Decimal("0.05")
    texts: dict[str, Any] = {"price": "69900"}
    assert Replace(ORDER, **texts).price == Decimal(69_900)
    assert ORDER.quantity == 3
