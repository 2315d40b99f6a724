"""Handlers of processors and strategies, cheapest per message first, and arrays of messages.

    compiled(f)  a numba cfunc or any C function: never takes the GIL, some nanoseconds
    batch(f)     one call per batch with an array of messages: takes the GIL once per batch
    each(f)      one call per message: about a tenth of a microsecond plus the body

A plain callable means `each`. An exception fails the component and ends the run; the report names
the message and accounts for all others. Components that share a handler may call it from several
threads.

`ema`, `rsi` and `vwap` are handlers computed in C++, each for one processor or strategy. `values`
is an array indexed by symbol id that the router writes in place: reading it copies nothing and
takes no lock. NaN means that there is no value yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qts._native import MESSAGE_SIZE, message_fields
from qts._native import Message as Message
from qts.domain import RefusedError

BATCH = 256  # most messages in the array of a batch handler

# numpy dtype of a message; prices are integers in units of 10**-8.
MESSAGE = np.dtype(
    {
        "names": [name for name, _, _ in message_fields()],
        "formats": [form for _, form, _ in message_fields()],
        "offsets": [offset for _, _, offset in message_fields()],
        "itemsize": MESSAGE_SIZE,
    }
)

Messages = npt.NDArray[np.void]

SYMBOLS = 65_536
_MAX_SYMBOLS = 2**24
_MAX_PERIOD = 1_000_000

_DECIMALS = 8
_MANTISSA = 2**48
_FOURTEEN_DIGITS = Context(prec=14)  # always fit the mantissa
_MAX = 2**63 - 1
_RANGE = {"msg_type": (0, 7), "symbol_id": (0, 2**32 - 1), "price_e8": (-_MAX, _MAX)}
_KEYS = ("msg_type", "symbol_id", "price", "price_e8", "quantity")


class MessageHandler(msgspec.Struct, frozen=True, eq=False):
    """Handler created by `each`, `batch`, `compiled` or one of the indicators."""

    kind: str
    arguments: tuple[Any, ...]

    @property
    def uses_python(self) -> bool:
        return self.kind in ("each", "batch")

    def to_native(self) -> tuple[Any, ...]:
        """Return what the native router takes for one component."""
        # A separate array for every component: each fills it on its own thread.
        buffer = (np.zeros(BATCH, MESSAGE),) if self.kind == "batch" else ()
        return (self.kind, *self.arguments, *buffer)


def _yield_gil() -> None:
    """Do nothing between messages: the interpreter lets waiting threads run when it is called."""


def each(function: Callable[[Message], object]) -> MessageHandler:
    """Call `function` with every message, which it may keep."""
    return MessageHandler("each", (function, _yield_gil))


def batch(function: Callable[[Messages], object]) -> MessageHandler:
    """Call `function` with an array (dtype `MESSAGE`) that is valid until it returns.

    A processor may change the array; changes by a strategy have no effect. An array kept longer
    shows later messages: keep a copy instead.
    """
    return MessageHandler("batch", (function,))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> MessageHandler:
    """Call a C function `void f(Message *messages, uint64_t count, void *state)`.

    `function` is a numba `cfunc`, anything else with an `address`, or the address itself;
    `state` is an array for the function's use.
    """
    address = function if isinstance(function, int) else getattr(function, "address", None)
    if not isinstance(address, int) or address == 0:
        raise RefusedError(
            f"compiled takes a numba cfunc or an address, not {type(function).__name__}"
        )
    state_address = 0 if state is None else state.ctypes.data
    return MessageHandler("compiled", (address, state_address, (function, state)))


def as_handler(function: MessageHandler | Callable[[Message], object]) -> MessageHandler:
    """Return a handler as it is, and any other callable as an `each` handler."""
    if isinstance(function, MessageHandler):
        return function
    if not callable(function):
        raise RefusedError(f"a handler is a callable, not {type(function).__name__}")
    return each(function)


class Indicator(MessageHandler, frozen=True, eq=False):
    values: npt.NDArray[np.float64]


def ema(period: int, *, symbols: int = SYMBOLS) -> Indicator:
    """Exponential moving average of the prices, from the mean of the first `period` ones on."""
    return _indicator("ema", period, symbols)


def rsi(period: int = 14, *, symbols: int = SYMBOLS) -> Indicator:
    """Relative strength index after Wilder, 0 to 100; 0 where the price has not moved."""
    return _indicator("rsi", period, symbols)


def vwap(*, symbols: int = SYMBOLS) -> Indicator:
    """Average price since the start, weighted by quantity."""
    return _indicator("vwap", 1, symbols)


def _indicator(kind: str, period: int, symbols: int) -> Indicator:
    for name, value, limit in (("period", period, _MAX_PERIOD), ("symbols", symbols, _MAX_SYMBOLS)):
        if not 1 <= value <= limit:
            raise RefusedError(f"{name} of an indicator is {value}; expected 1 to {limit:,}")
    table = np.full(symbols, np.nan)
    values = table.view()
    values.flags.writeable = False
    return Indicator(kind, (period, table), values)


def message_array(rows: Iterable[Mapping[str, Any]]) -> Messages:
    """Return an array of dtype `MESSAGE` from mappings; missing keys are 0.

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
