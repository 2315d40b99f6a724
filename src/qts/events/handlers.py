"""Handlers: what is called with an event, and for which types.

    f                   called with each event
    async def f         the same, on a loop of its lane; one event at a time, in order
    batch(f)            called with a list of events of one type, or of one symbol
    rows(f)             called with the same batch as an array of numbers, and the keys
    compiled(f, state)  a numba cfunc or any C function void(record*, state*): never takes the GIL
    factory(make)       make(publisher) gives one of the first four, where it will run

Handlers of one type are called in the order of their registration, compiled ones first.

Batches as arrays: one row of numbers an event instead of an object.

The lanes write a row when an event is published; only what was published before its handler was
there, is tried again, or is handled in a process of its own, is turned into rows here.
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
from qts.events.lanes import EVENT_DTYPE
from qts.events.payloads import Payload
from qts.events.process.protocol import key_hash

_VALUES = EVENT_DTYPE["values"].shape[0]


class RowBatchAdapter:
    """Calls a handler with rows, whatever the batch comes as."""

    def __init__(
        self,
        function: Callable[[npt.NDArray[np.void], Sequence[str]], object],
        numbers: dict[str, tuple[int, str | None]],
    ) -> None:
        self._function = function
        self._numbers = numbers  # number and key of each type

    def __call__(self, batch: bytes | Sequence[Event], keys: Sequence[str] | None = None) -> None:
        if isinstance(batch, bytes) and keys is not None:
            self._function(np.frombuffer(batch, dtype=EVENT_DTYPE), keys)
        else:
            self._function(*self._turned([each for each in batch if isinstance(each, Event)]))

    def _turned(self, events: list[Event]) -> tuple[npt.NDArray[np.void], list[str]]:
        rows = np.zeros(len(events), dtype=EVENT_DTYPE)
        keys = []
        for row, event in zip(rows, events, strict=True):
            number, key = self._numbers[event.event_type]
            keys.append(getattr(event.payload, key) if key else "")
            fields = (getattr(event.payload, name) for name in event.payload.__struct_fields__)
            found = [x for x in fields if isinstance(x, int | float) and not isinstance(x, bool)]
            row["key"] = key_hash(number, keys[-1])
            row["timestamp"], row["type"] = event.timestamp, number
            row["count"] = min(len(found), _VALUES)
            row["values"][: row["count"]] = found[:_VALUES]
        return rows, keys


Kind = Literal["plain", "async", "batch", "rows", "compiled", "factory"]
Plain = Callable[[Event], object]
Async = Callable[[Event], Awaitable[object]]
Batch = Callable[[Sequence[Event]], object]
Rows = Callable[[npt.NDArray[np.void], Sequence[str]], object]


class Publisher(Protocol):
    """What a factory is given: the engine, or in a lane's own process the way back to it."""

    def new_event(self, name: str, payload: Payload, source: str = "") -> Event: ...
    def emit(self, name: str, payload: Payload, source: str = "") -> Event: ...
    @property
    def publish(self) -> Callable[..., None]: ...


class EventHandler(msgspec.Struct, frozen=True):
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


Make = Callable[[Publisher], Plain | Async | EventHandler]


def batch(function: Batch) -> EventHandler:
    """Called with up to `batch_size` events at once."""
    return EventHandler(function, "batch", _name(function))


def rows(function: Rows) -> EventHandler:
    """Called with a batch as `events.RECORD` rows, and the key of each (its symbol)."""
    return EventHandler(function, "rows", _name(function))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> EventHandler:
    """`function` is a numba `cfunc`, anything else with an `address`, or the address itself."""
    return EventHandler(function, "compiled", _name(function), state=state)


def factory(make: Make) -> EventHandler:
    """`make` is called once, in the process that will run the handler, with a Publisher."""
    return EventHandler(make, "factory", _name(make))


def as_handler(given: Plain | Async | EventHandler, essential: bool) -> EventHandler:
    if isinstance(given, EventHandler):
        return msgspec.structs.replace(given, essential=essential)
    if not callable(given):
        raise EventRefusedError(f"a handler is a function, not {type(given).__name__}")
    call = given if inspect.isfunction(given) else getattr(given, "__call__", given)  # noqa: B004
    is_async = inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(call)
    return EventHandler(given, "async" if is_async else "plain", _name(given), essential)


def build(handler: EventHandler, publisher: Publisher, catalogue: Catalogue) -> EventHandler:
    """The handler as it is called: a factory's product, an array's rows."""
    maker, made = handler.call, handler
    if handler.kind == "factory":
        made = as_handler(handler.call(publisher), handler.essential)
        if made.kind in ("factory", "compiled"):
            raise EventRefusedError(f"{handler.name} made a {made.kind} handler; make a plain one")
    if made.kind == "rows":
        from qts.events.handlers import RowBatchAdapter

        numbers = {each.name: (n, each.key) for n, each in enumerate(catalogue)}
        made = msgspec.structs.replace(made, call=RowBatchAdapter(made.call, numbers))
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


class HandlerTable:
    """Who handles what; closed once the engine runs."""

    def __init__(self, catalogue: Catalogue, config: EventsConfig, publisher: Publisher) -> None:
        self._catalogue = catalogue
        self._config = config
        self._publisher = publisher
        self._by_type: dict[str, list[EventHandler]] = {each.name: [] for each in catalogue}

    def add(self, what: str | Priority, handler: EventHandler) -> None:
        types = matching(self._catalogue, what)
        for each in types:
            have = self._by_type.setdefault(each.name, [])
            if any(_same(other, handler) for other in have):
                raise EventRefusedError(
                    f"handler {handler.name} is registered for {each.name} already"
                )
            if self.is_isolated(each):
                _check_apart(each, handler)
            check_batch(each, handler)
        here: EventHandler | None = None
        for each in types:
            if self.is_isolated(each):
                self._by_type[each.name].append(handler)
                continue
            here = here or build(handler, self._publisher, self._catalogue)
            check_batch(each, here)
            self._by_type[each.name].append(here)

    def is_isolated(self, kind: EventType) -> bool:
        """Its lane has a process of its own."""
        return self._config.lanes[kind.priority].isolation == "process"

    def of(self, name: str) -> list[EventHandler]:
        """In the order in which they are called."""
        return sorted(self._by_type.get(name, []), key=lambda each: each.kind != "compiled")


def check_batch(kind: EventType, handler: EventHandler) -> None:
    if handler.kind in ("batch", "rows") and not kind.can_batch:
        raise EventRefusedError(
            f"{kind.name} cannot be batched; register {handler.name} plain for it"
        )
    if handler.kind == "rows" and kind.deep:
        raise EventRefusedError(
            f"{kind.name} has fields that are no numbers; register {handler.name} with batch()"
        )


def _same(one: EventHandler, other: EventHandler) -> bool:
    return bool((one.maker or one.call) == (other.maker or other.call))


def _check_apart(kind: EventType, handler: EventHandler) -> None:
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
