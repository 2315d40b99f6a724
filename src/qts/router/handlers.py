"""What a processor or a strategy does with its messages, in the order of what a message costs.

    compiled(f)  a numba cfunc or any C function: never takes the GIL, some nanoseconds
    batch(f)     one call a batch with an array of messages: the GIL once a batch
    each(f)      one call a message: the plain way, about a tenth of a microsecond and the body

A plain callable is `each`. An error raised by a callable fails the component: the run ends, the
message is named, and everything else is accounted for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qts._native import MESSAGE_SIZE, Message, message_fields

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


class Handler(msgspec.Struct, frozen=True):
    """Made by `each`, `batch` or `compiled`; `work` is what the native router takes."""

    work: tuple[Any, ...]
    keeps: tuple[Any, ...] = ()  # alive as long as the router may use it

    @property
    def uses_python(self) -> bool:
        return bool(self.work[0] != "compiled")


def each(function: Callable[[Message], object]) -> Handler:
    """Called with every message; it may keep the message."""
    return Handler(("each", function))


def batch(function: Callable[[Messages], object]) -> Handler:
    """Called with an array (dtype `MESSAGE`) that holds the messages until it returns.

    A processor may change the array; a strategy's changes go nowhere.
    """
    return Handler(("batch", function, np.zeros(BATCH, MESSAGE)))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> Handler:
    """A C function `void f(Message *messages, uint64_t count, void *state)`.

    `function` is a numba `cfunc`, anything else with an `address`, or the address itself;
    `state` is an array that the function may use as it likes.
    """
    address = function if isinstance(function, int) else function.address
    where = 0 if state is None else state.ctypes.data
    return Handler(("compiled", int(address), where), keeps=(function, state))


def handler(given: Handler | Callable[[Message], object]) -> Handler:
    return given if isinstance(given, Handler) else each(given)
