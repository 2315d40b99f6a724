"""Message arrays from mappings, with prices in currency instead of units of 10**-8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import numpy as np

from qts.domain import RefusedError
from qts.router.handlers import MESSAGE, Messages

_DECIMALS = 8
_MANTISSA = 2**48
_FOURTEEN_DIGITS = Context(prec=14)  # always fit the mantissa
_MAX = 2**63 - 1
_RANGE = {"msg_type": (0, 7), "symbol_id": (0, 2**32 - 1), "price_e8": (-_MAX, _MAX)}
_KEYS = ("msg_type", "symbol_id", "price", "price_e8", "quantity")


def message_array(rows: Iterable[Mapping[str, Any]]) -> Messages:
    """Return an array of dtype `MESSAGE`; missing keys are 0.

    Keys: msg_type, symbol_id, price and quantity (int, Decimal or text, kept exactly; a float is
    rounded to fit), or price_e8 for a price in units of 10**-8.
    """
    mappings = list(rows)
    array = np.zeros(len(mappings), MESSAGE)
    for index, row in enumerate(mappings):
        for key, value in row.items():
            _set(array[index : index + 1], key, value)
    return array


def _set(one: Messages, key: str, value: Any) -> None:
    match key:
        case "msg_type" | "symbol_id" | "price_e8":
            one["price" if key == "price_e8" else key] = _whole(key, value)
        case "price":
            one["price"] = _units(value)
        case "quantity":
            _set_quantity(one, value)
        case _:
            raise RefusedError(f"a message has no {key}; it has {', '.join(_KEYS)}")


def _whole(key: str, value: Any) -> int:
    low, high = _RANGE[key]
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise RefusedError(f"{key} of a message is {value!r}; expected an integer")
    if not low <= int(value) <= high:
        raise RefusedError(f"{key} of a message is {value}; expected {low} to {high}")
    return int(value)


def _units(price: Any) -> int:
    scaled = _decimal("price", price).scaleb(_DECIMALS)
    if isinstance(price, float):
        scaled = scaled.to_integral_value()
    if scaled != scaled.to_integral_value() or abs(scaled) > _MAX:
        raise RefusedError(
            f"price of a message is {price}; expected at most 8 decimals, below 92e9"
        )
    return int(scaled)


def _set_quantity(one: Messages, quantity: Any) -> None:
    number = _decimal("quantity", quantity).normalize()
    if isinstance(quantity, float):
        number = number.normalize(_FOURTEEN_DIGITS)
    sign, digits, _ = number.as_tuple()
    exponent = number.adjusted() + 1 - len(digits)
    mantissa = int("".join(map(str, digits)))
    while 0 < exponent <= 15 and mantissa * 10 < _MANTISSA:
        mantissa, exponent = mantissa * 10, exponent - 1
    if sign or mantissa >= _MANTISSA or not -128 <= exponent <= 127:
        raise RefusedError(
            f"quantity of a message is {quantity}; expected 0 or more, up to 14 digits"
        )
    one["quantity_exponent"] = exponent
    one["quantity_high"], one["quantity_low"] = mantissa >> 32, mantissa & 0xFFFFFFFF


def _decimal(key: str, value: Any) -> Decimal:
    try:
        # The shortest text of a float is the intended number.
        number = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or isinstance(value, bool):
        raise RefusedError(f"{key} of a message is {value!r}; expected a number")
    return number
