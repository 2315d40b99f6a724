"""What a processor or a strategy does with its messages, in the order of what a message costs.

    compiled(f)  a numba cfunc or any C function: never takes the GIL, some nanoseconds
    batch(f)     one call a batch with an array of messages: the GIL once a batch
    each(f)      one call a message: the plain way, about a tenth of a microsecond and the body

A plain callable is `each`. An error raised by a callable fails the component: the run ends, the
message is named, and everything else is accounted for. One handler may serve several components;
they may then call it from several threads.

Indicators computed in C++ on every message, one value for each symbol.

An indicator is the handler of one processor or strategy and sees what passes there. Its `values`
is an array indexed by symbol id that the router writes in place: reading it copies nothing and
takes no lock. NaN means that the value is not known yet.
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

BATCH = 256  # messages in the array a batch handler is given, at most

# A message as numpy sees it; prices are integers in units of 10**-8.
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
    """Made by `each`, `batch`, `compiled`, or one of the indicators."""

    kind: str
    given: tuple[Any, ...]

    @property
    def uses_python(self) -> bool:
        return self.kind in ("each", "batch")

    def work(self) -> tuple[Any, ...]:
        """What the native router takes; made anew for every component."""
        # Two components must not fill one array: each is in the hands of its own thread.
        own = (np.zeros(BATCH, MESSAGE),) if self.kind == "batch" else ()
        return (self.kind, *self.given, *own)


def _give_way() -> None:
    """Called between messages: at its beginning the interpreter lets waiting threads in."""


def each(function: Callable[[Message], object]) -> MessageHandler:
    """Called with every message; it may keep the message."""
    return MessageHandler("each", (function, _give_way))


def batch(function: Callable[[Messages], object]) -> MessageHandler:
    """Called with an array (dtype `MESSAGE`) that holds the messages until it returns.

    A processor may change the array; a strategy's changes go nowhere. An array that is kept
    longer shows later messages; keep a copy.
    """
    return MessageHandler("batch", (function,))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> MessageHandler:
    """A C function `void f(Message *messages, uint64_t count, void *state)`.

    `function` is a numba `cfunc`, anything else with an `address`, or the address itself;
    `state` is an array that the function may use as it likes.
    """
    address = function if isinstance(function, int) else getattr(function, "address", None)
    if not isinstance(address, int) or address == 0:
        raise RefusedError(
            f"compiled takes a numba cfunc or an address, not {type(function).__name__}"
        )
    where = 0 if state is None else state.ctypes.data
    return MessageHandler("compiled", (address, where, (function, state)))


def handler(given: MessageHandler | Callable[[Message], object]) -> MessageHandler:
    if isinstance(given, MessageHandler):
        return given
    if not callable(given):
        raise RefusedError(f"a handler is a callable, not {type(given).__name__}")
    return each(given)


SYMBOLS = 65_536
_MOST_SYMBOLS = 2**24
_LONGEST = 1_000_000


class Indicator(MessageHandler, frozen=True, eq=False):
    values: npt.NDArray[np.float64]


def ema(period: int, *, symbols: int = SYMBOLS) -> Indicator:
    """Exponential moving average of the price with alpha 2 / (period + 1), from the first price."""
    return _indicator("ema", period, symbols)


def rsi(period: int = 14, *, symbols: int = SYMBOLS) -> Indicator:
    """Relative strength index after Wilder, 0 to 100; 50 where the price has not moved."""
    return _indicator("rsi", period, symbols)


def vwap(*, symbols: int = SYMBOLS) -> Indicator:
    """Average price since the start, weighted by quantity."""
    return _indicator("vwap", 1, symbols)


def _indicator(kind: str, period: int, symbols: int) -> Indicator:
    for name, value, most in (("period", period, _LONGEST), ("symbols", symbols, _MOST_SYMBOLS)):
        if not 1 <= value <= most:
            raise RefusedError(f"{name} of an indicator is {value}; expected 1 to {most:,}")
    table = np.full(symbols, np.nan)
    values = table.view()
    values.flags.writeable = False
    return Indicator(kind, (period, table), values)
