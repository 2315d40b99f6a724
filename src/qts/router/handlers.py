"""What a processor or a strategy does with its messages, in the order of what a message costs.

    compiled(f)  a numba cfunc or any C function: never takes the GIL, some nanoseconds
    batch(f)     one call a batch with an array of messages: the GIL once a batch
    each(f)      one call a message: the plain way, about a tenth of a microsecond and the body

A plain callable is `each`. An error raised by a callable fails the component: the run ends, the
message is named, and everything else is accounted for. One handler may serve several components;
they may then call it from several threads.
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


class Handler(msgspec.Struct, frozen=True, eq=False):
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


def each(function: Callable[[Message], object]) -> Handler:
    """Called with every message; it may keep the message."""
    return Handler("each", (function, _give_way))


def batch(function: Callable[[Messages], object]) -> Handler:
    """Called with an array (dtype `MESSAGE`) that holds the messages until it returns.

    A processor may change the array; a strategy's changes go nowhere. An array that is kept
    longer shows later messages; keep a copy.
    """
    return Handler("batch", (function,))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> Handler:
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
    return Handler("compiled", (address, where, (function, state)))


def handler(given: Handler | Callable[[Message], object]) -> Handler:
    if isinstance(given, Handler):
        return given
    if not callable(given):
        raise RefusedError(f"a handler is a callable, not {type(given).__name__}")
    return each(given)
