"""Handlers: what is called with an event, and for which types.

    f                   called with each event
    async def f         the same, on a loop of its lane; one event at a time, in order
    batch(f)            called with a list of events of one type, or of one symbol
    rows(f)             called with the same batch as an array of numbers, and the keys
    compiled(f, state)  a numba cfunc or any C function void(record*, state*): never takes the GIL
    factory(make)       make(publisher) gives one of the first four, where it will run

Handlers of one type are called in the order of their registration, compiled ones first.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import EventRefusedError
from qts.events.catalogue import Catalogue, EventType
from qts.events.config import EventsConfig
from qts.events.event import Event, Priority
from qts.events.payloads import Payload

Kind = Literal["plain", "async", "batch", "rows", "compiled", "factory"]
Plain = Callable[[Event], object]
Async = Callable[[Event], Awaitable[object]]
Batch = Callable[[Sequence[Event]], object]
Rows = Callable[[npt.NDArray[np.void], Sequence[str]], object]


class Publisher(Protocol):
    """What a factory is given: the engine, or in a lane's own process the way back to it."""

    def event(self, name: str, payload: Payload, source: str = "") -> Event: ...
    def emit(self, name: str, payload: Payload, source: str = "") -> Event: ...
    @property
    def publish(self) -> Callable[..., None]: ...


class Handler(msgspec.Struct, frozen=True):
    """One handler as the engine keeps it."""

    call: Any
    kind: Kind
    name: str
    essential: bool = False  # goes on in LEVEL_3, when only the critical is handled
    state: Any = None  # of a compiled handler
    maker: Any = None  # the factory's function that made it

    @property
    def address(self) -> int:
        return int(self.call if isinstance(self.call, int) else self.call.address)

    @property
    def state_address(self) -> int:
        return 0 if self.state is None else int(self.state.ctypes.data)


Make = Callable[[Publisher], Plain | Async | Handler]


def batch(function: Batch) -> Handler:
    """Called with up to `batch_size` events at once."""
    return Handler(function, "batch", _name(function))


def rows(function: Rows) -> Handler:
    """Called with a batch as `events.RECORD` rows, and the key of each (its symbol)."""
    return Handler(function, "rows", _name(function))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> Handler:
    """`function` is a numba `cfunc`, anything else with an `address`, or the address itself."""
    return Handler(function, "compiled", _name(function), state=state)


def factory(make: Make) -> Handler:
    """`make` is called once, in the process that will run the handler, with a Publisher."""
    return Handler(make, "factory", _name(make))


def as_handler(given: Plain | Async | Handler, essential: bool) -> Handler:
    if isinstance(given, Handler):
        return msgspec.structs.replace(given, essential=essential)
    if not callable(given):
        raise EventRefusedError(f"a handler is a function, not {type(given).__name__}")
    call = given if inspect.isfunction(given) else getattr(given, "__call__", given)  # noqa: B004
    is_async = inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(call)
    return Handler(given, "async" if is_async else "plain", _name(given), essential)


def build(handler: Handler, publisher: Publisher, catalogue: Catalogue) -> Handler:
    """The handler as it is called: a factory's product, an array's rows."""
    maker, made = handler.call, handler
    if handler.kind == "factory":
        made = as_handler(handler.call(publisher), handler.essential)
        if made.kind in ("factory", "compiled"):
            raise EventRefusedError(f"{handler.name} made a {made.kind} handler; make a plain one")
    if made.kind == "rows":
        from qts.events.rows import RowCall

        numbers = {each.name: (n, each.key) for n, each in enumerate(catalogue)}
        made = msgspec.structs.replace(made, call=RowCall(made.call, numbers))
    return msgspec.structs.replace(made, name=handler.name, maker=maker)


def matching(catalogue: Catalogue, what: str | Priority) -> list[EventType]:
    """The types that a name, a pattern such as FILL_*, or a lane means."""
    if isinstance(what, Priority):
        found = [each for each in catalogue if each.priority == what]
    elif any(sign in what for sign in "*?["):
        found = [each for each in catalogue if fnmatchcase(each.name, what)]
    else:
        return [catalogue[what]]
    if not found:
        raise EventRefusedError(f"{what!r} matches no event type")
    return found


class Handlers:
    """Who handles what; closed once the engine runs."""

    def __init__(self, catalogue: Catalogue, config: EventsConfig, publisher: Publisher) -> None:
        self._catalogue = catalogue
        self._config = config
        self._publisher = publisher
        self._by_type: dict[str, list[Handler]] = {each.name: [] for each in catalogue}

    def add(self, what: str | Priority, handler: Handler) -> None:
        types = matching(self._catalogue, what)
        for each in types:
            have = self._by_type.setdefault(each.name, [])
            if any(_same(other, handler) for other in have):
                raise EventRefusedError(
                    f"handler {handler.name} is registered for {each.name} already"
                )
            if self.apart(each):
                _check_apart(each, handler)
            check_batch(each, handler)
        here: Handler | None = None
        for each in types:
            if self.apart(each):
                self._by_type[each.name].append(handler)
                continue
            here = here or build(handler, self._publisher, self._catalogue)
            check_batch(each, here)
            self._by_type[each.name].append(here)

    def apart(self, kind: EventType) -> bool:
        """Its lane has a process of its own."""
        return self._config.lanes[kind.priority].isolation == "process"

    def of(self, name: str) -> list[Handler]:
        """In the order in which they are called."""
        return sorted(self._by_type.get(name, []), key=lambda each: each.kind != "compiled")


def check_batch(kind: EventType, handler: Handler) -> None:
    if handler.kind in ("batch", "rows") and not kind.can_batch:
        raise EventRefusedError(
            f"{kind.name} cannot be batched; register {handler.name} plain for it"
        )
    if handler.kind == "rows" and kind.deep:
        raise EventRefusedError(
            f"{kind.name} has fields that are no numbers; register {handler.name} with batch()"
        )


def _same(one: Handler, other: Handler) -> bool:
    return bool((one.maker or one.call) == (other.maker or other.call))


def _check_apart(kind: EventType, handler: Handler) -> None:
    lane = f"P{int(kind.priority)}"
    if handler.kind == "compiled":
        raise EventRefusedError(
            f"handler {handler.name} is compiled and {kind.name} is handled in {lane}'s process; "
            f'a compiled handler needs events.{lane.lower()}.isolation = "thread"'
        )
    try:
        pickle.dumps(handler.call)
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the object does
        raise EventRefusedError(
            f"handler {handler.name} for {kind.name} cannot go into {lane}'s process: {error}; "
            "write it as a function of a module, or make it there with factory()"
        ) from None


def _name(function: object) -> str:
    inner = getattr(function, "__wrapped__", function)
    name = getattr(inner, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(inner, '__module__', '') or '?'}.{name}"
