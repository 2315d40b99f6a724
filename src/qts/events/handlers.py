"""Handlers: what is called with an event, and for which types.

    f                   called with each event
    async def f         the same, on a loop of its lane; one event at a time, in order
    batch(f)            called with a list of events of one type, or of one symbol
    compiled(f, state)  a numba cfunc or any C function void(record*, state*): never takes the GIL

Handlers of one type are called in the order of their registration, compiled ones first.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec
import numpy.typing as npt

from qts.domain import EventRefused
from qts.events.catalogue import Catalogue, EventType
from qts.events.event import Event, Priority

Kind = Literal["plain", "async", "batch", "compiled"]
Plain = Callable[[Event], object]
Async = Callable[[Event], Awaitable[object]]
Batch = Callable[[Sequence[Event]], object]


class Handler(msgspec.Struct, frozen=True):
    """One handler as the engine keeps it."""

    call: Any
    kind: Kind
    name: str
    essential: bool = False  # goes on in LEVEL_3, when only the critical is handled
    state: Any = None  # of a compiled handler

    @property
    def address(self) -> int:
        return int(self.call if isinstance(self.call, int) else self.call.address)

    @property
    def state_address(self) -> int:
        return 0 if self.state is None else int(self.state.ctypes.data)


def batch(function: Batch) -> Handler:
    """Called with up to `batch_size` events at once."""
    return Handler(function, "batch", _name(function))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> Handler:
    """`function` is a numba `cfunc`, anything else with an `address`, or the address itself."""
    return Handler(function, "compiled", _name(function), state=state)


def as_handler(given: Plain | Async | Handler, essential: bool) -> Handler:
    if isinstance(given, Handler):
        return msgspec.structs.replace(given, essential=essential)
    if not callable(given):
        raise EventRefused(f"a handler is a function, not {type(given).__name__}")
    call = given if inspect.isfunction(given) else getattr(given, "__call__", given)  # noqa: B004
    is_async = inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(call)
    return Handler(given, "async" if is_async else "plain", _name(given), essential)


def matching(catalogue: Catalogue, what: str | Priority) -> list[EventType]:
    """The types that a name, a pattern such as FILL_*, or a lane means."""
    if isinstance(what, Priority):
        found = [each for each in catalogue if each.priority == what]
    elif any(sign in what for sign in "*?["):
        found = [each for each in catalogue if fnmatchcase(each.name, what)]
    else:
        return [catalogue[what]]
    if not found:
        raise EventRefused(f"{what!r} matches no event type")
    return found


class Handlers:
    """Who handles what; closed once the engine runs."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._by_type: dict[str, list[Handler]] = {each.name: [] for each in catalogue}

    def add(self, what: str | Priority, handler: Handler) -> None:
        types = matching(self._catalogue, what)
        for each in types:
            have = self._by_type.setdefault(each.name, [])
            if any(other.call is handler.call or other.call == handler.call for other in have):
                raise EventRefused(f"handler {handler.name} is registered for {each.name} already")
            if handler.kind == "batch" and not each.can_batch:
                raise EventRefused(
                    f"{each.name} cannot be batched; register {handler.name} plain for it"
                )
        for each in types:
            self._by_type[each.name].append(handler)

    def of(self, name: str) -> list[Handler]:
        """In the order in which they are called."""
        return sorted(self._by_type.get(name, []), key=lambda each: each.kind != "compiled")


def _name(function: object) -> str:
    inner = getattr(function, "__wrapped__", function)
    name = getattr(inner, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(inner, '__module__', '') or '?'}.{name}"
