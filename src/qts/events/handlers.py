"""Kinds of handlers, and the table of handlers by event type.

    f                   called with each event
    async def f         the same, on the event loop of its lane; one event at a time, in order
    batch(f)            called with a list of events of one type, or of one symbol
    rows(f)             called with the same batch as an array of numbers, and the keys
    compiled(f, state)  a numba cfunc or any C function void(record*, state*): never takes the GIL
    factory(make)       make(publisher) returns one of the first four, in the process that runs it

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
from qts.events.catalogue import Catalogue, Event, EventType, Priority
from qts.events.config import EventsConfig
from qts.events.lanes import EVENT_DTYPE, key_hash

_VALUES = EVENT_DTYPE["values"].shape[0]


class RowBatchAdapter:
    """Call of a `rows` handler with an array.

    The lanes write an event's row when it is published. Events published before the handler was
    registered, retries and events of an isolated lane arrive as objects and are converted here.
    """

    def __init__(
        self,
        function: Callable[[npt.NDArray[np.void], Sequence[str]], object],
        numbers: dict[str, tuple[int, str | None]],
    ) -> None:
        self._function = function
        self._numbers = numbers  # number and key field of each type

    def __call__(self, batch: bytes | Sequence[Event], keys: Sequence[str] | None = None) -> None:
        if isinstance(batch, bytes) and keys is not None:
            self._function(np.frombuffer(batch, dtype=EVENT_DTYPE), keys)
        else:
            self._function(*self._to_rows([each for each in batch if isinstance(each, Event)]))

    def _to_rows(self, events: list[Event]) -> tuple[npt.NDArray[np.void], list[str]]:
        rows = np.zeros(len(events), dtype=EVENT_DTYPE)
        keys = []
        for row, event in zip(rows, events, strict=True):
            number, key = self._numbers[event.event_type]
            keys.append(getattr(event.payload, key) if key else "")
            fields = (getattr(event.payload, name) for name in event.payload.__struct_fields__)
            values = [x for x in fields if isinstance(x, int | float) and not isinstance(x, bool)]
            row["key"] = key_hash(number, keys[-1])
            row["timestamp"], row["type"] = event.timestamp, number
            row["count"] = min(len(values), _VALUES)
            row["values"][: row["count"]] = values[:_VALUES]
        return rows, keys


Kind = Literal["plain", "async", "batch", "rows", "compiled", "factory"]
Plain = Callable[[Event], object]
Async = Callable[[Event], Awaitable[object]]
Batch = Callable[[Sequence[Event]], object]
Rows = Callable[[npt.NDArray[np.void], Sequence[str]], object]


class Publisher(Protocol):
    """Publishing methods passed to a factory; in a lane's process they publish to the engine."""

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event: ...
    def emit(self, name: str, payload: msgspec.Struct, source: str = "") -> Event: ...
    @property
    def publish(self) -> Callable[..., None]: ...


class EventHandler(msgspec.Struct, frozen=True):
    """Registered handler."""

    call: Any
    kind: Kind
    name: str
    essential: bool = False  # also called in LEVEL_3
    state: Any = None  # of a compiled handler
    make: Any = None  # of a factory

    @property
    def address(self) -> int:
        return int(self.call if isinstance(self.call, int) else self.call.address)

    @property
    def state_address(self) -> int:
        return 0 if self.state is None else int(self.state.ctypes.data)


MakeHandler = Callable[[Publisher], Plain | Async | EventHandler]


def batch(function: Batch) -> EventHandler:
    """Call `function` with up to `batch_size` events at once."""
    return EventHandler(function, "batch", _name(function))


def rows(function: Rows) -> EventHandler:
    """Call `function` with a batch as `EVENT_DTYPE` rows and the key (symbol) of each."""
    return EventHandler(function, "rows", _name(function))


def compiled(function: Any, state: npt.NDArray[Any] | None = None) -> EventHandler:
    """Call a numba `cfunc`, another object with an `address`, or an address."""
    return EventHandler(function, "compiled", _name(function), state=state)


def factory(make: MakeHandler) -> EventHandler:
    """Call `make` once with a Publisher, in the process that will run the handler it returns."""
    return EventHandler(make, "factory", _name(make))


def as_handler(given: Plain | Async | EventHandler, essential: bool) -> EventHandler:
    if isinstance(given, EventHandler):
        return msgspec.structs.replace(given, essential=essential)
    if not callable(given):
        raise EventRefusedError(f"a handler must be callable, not {type(given).__name__}")
    call = given if inspect.isfunction(given) else getattr(given, "__call__", given)  # noqa: B004
    is_async = inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(call)
    return EventHandler(given, "async" if is_async else "plain", _name(given), essential)


def build(handler: EventHandler, publisher: Publisher, catalogue: Catalogue) -> EventHandler:
    """Return the callable form of a handler: run its factory, wrap a `rows` function."""
    make, built = handler.call, handler
    if handler.kind == "factory":
        built = as_handler(handler.call(publisher), handler.essential)
        if built.kind in ("factory", "compiled"):
            raise EventRefusedError(
                f"factory {handler.name} returned a {built.kind} handler; "
                "allowed: plain, async, batch, rows"
            )
    if built.kind == "rows":
        numbers = {each.name: (n, each.key) for n, each in enumerate(catalogue)}
        built = msgspec.structs.replace(built, call=RowBatchAdapter(built.call, numbers))
    return msgspec.structs.replace(built, name=handler.name, make=make)


def matching(catalogue: Catalogue, target: str | Priority) -> list[EventType]:
    """Return the types of a name, a pattern such as FILL_*, or a lane."""
    if isinstance(target, Priority):
        found = [each for each in catalogue if each.priority == target]
    elif any(sign in target for sign in "*?["):
        found = [each for each in catalogue if fnmatchcase(each.name, target)]
    else:
        return [catalogue[target]]
    if not found:
        raise EventRefusedError(f"{target!r} matches no event type")
    return found


class HandlerTable:
    """Handlers by event type."""

    def __init__(self, catalogue: Catalogue, config: EventsConfig, publisher: Publisher) -> None:
        self._catalogue = catalogue
        self._config = config
        self._publisher = publisher
        self._by_type: dict[str, list[EventHandler]] = {each.name: [] for each in catalogue}

    def add(self, target: str | Priority, handler: EventHandler) -> None:
        types = matching(self._catalogue, target)
        for each in types:
            registered = self._by_type.setdefault(each.name, [])
            if any(_same(other, handler) for other in registered):
                raise EventRefusedError(
                    f"handler {handler.name} is already registered for {each.name}"
                )
            if self.is_isolated(each):
                _check_isolated(each, handler)
            check_batch(each, handler)
        built: EventHandler | None = None
        for each in types:
            if self.is_isolated(each):
                self._by_type[each.name].append(handler)
                continue
            built = built or build(handler, self._publisher, self._catalogue)
            check_batch(each, built)
            self._by_type[each.name].append(built)

    def is_isolated(self, event_type: EventType) -> bool:
        """Return whether the type's lane runs its handlers in an isolated process."""
        return self._config.lanes[event_type.priority].isolation == "process"

    def handlers_of(self, name: str) -> list[EventHandler]:
        """Return the handlers of a type in the order of their calls."""
        return sorted(self._by_type.get(name, []), key=lambda each: each.kind != "compiled")


def check_batch(event_type: EventType, handler: EventHandler) -> None:
    if handler.kind in ("batch", "rows") and not event_type.can_batch:
        raise EventRefusedError(
            f"{event_type.name} cannot be batched; register {handler.name} as a plain handler"
        )
    if handler.kind == "rows" and event_type.has_nested_fields:
        raise EventRefusedError(
            f"{event_type.name} has nested fields; register {handler.name} with batch()"
        )


def _same(one: EventHandler, other: EventHandler) -> bool:
    return bool((one.make or one.call) == (other.make or other.call))


def _check_isolated(event_type: EventType, handler: EventHandler) -> None:
    lane = f"P{int(event_type.priority)}"
    if handler.kind == "compiled":
        raise EventRefusedError(
            f"compiled handler {handler.name} of {event_type.name} cannot run in {lane}'s process; "
            f'it needs events.{lane.lower()}.isolation = "thread"'
        )
    try:
        pickle.dumps(handler.call)
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the object does
        raise EventRefusedError(
            f"handler {handler.name} of {event_type.name} cannot run in {lane}'s process: {error}; "
            "use a module-level function or factory()"
        ) from None


def _name(function: object) -> str:
    inner = getattr(function, "__wrapped__", function)
    name = getattr(inner, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(inner, '__module__', '') or '?'}.{name}"
