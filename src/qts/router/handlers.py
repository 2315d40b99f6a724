"""Handlers of processors and strategies, cheapest per message first.

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

from collections.abc import Callable
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


SYMBOLS = 65_536
_MAX_SYMBOLS = 2**24
_MAX_PERIOD = 1_000_000


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
