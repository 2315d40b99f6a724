"""Ids that travel with the work: through calls, tasks and, carried, through threads.

One context variable holds them all: entering a context is paid on every event, so it has
to stay near a microsecond. `context_of` is for where even that is much: it asks for the ids only
when a log line or a span wants them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar, Token, copy_context
from types import MappingProxyType
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

P = ParamSpec("P")
R = TypeVar("R")

# Written as on the bus, so that a log line and an envelope can be searched with one word.
Ids = TypedDict(  # noqa: UP013 - the class form would need mixed-case attributes
    "Ids",
    {
        "traceId": str,
        "eventId": str,
        "stream": str,
        "eventType": str,
        "aggregateType": str,
        "aggregateId": str,
    },
    total=False,
)


class lazy_context:  # noqa: N801 - reads as a function: with context_of(delivery.ids):
    """As `context`, with the ids that `read` answers, the same ones whenever it is asked."""

    __slots__ = ("_read", "_token")

    _token: Token[_Known]

    def __init__(self, read: Callable[[], Ids]) -> None:
        self._read = read

    def __enter__(self) -> None:
        self._token = _ids.set(self)

    def __exit__(self, *_: object) -> None:
        _ids.reset(self._token)

    def ids(self) -> Mapping[str, str]:
        before = self._token.old_value
        known = {} if before is Token.MISSING else _now(before)
        return {**known, **self._read()}  # type: ignore[dict-item]


_Known = Mapping[str, str] | lazy_context
_ids: ContextVar[_Known] = ContextVar("qts_ids", default=MappingProxyType({}))


def _now(known: _Known) -> Mapping[str, str]:
    return known.ids() if isinstance(known, lazy_context) else known


class context:  # noqa: N801 - reads as a function: with context(traceId=...):
    """Add ids for the length of a `with` block; what stood there before comes back."""

    __slots__ = ("_added", "_token")

    _token: Token[_Known]

    def __init__(self, **ids: Unpack[Ids]) -> None:
        self._added = ids

    def __enter__(self) -> None:
        self._token = _ids.set({**_now(_ids.get()), **self._added})  # type: ignore[dict-item]

    def __exit__(self, *_: object) -> None:
        _ids.reset(self._token)


def bind(**ids: Unpack[Ids]) -> None:
    """Add ids for the rest of this task or thread."""
    _ids.set({**_now(_ids.get()), **ids})  # type: ignore[dict-item]


def current_context() -> dict[str, str]:
    """The ids in force here; a copy."""
    return dict(_now(_ids.get()))


def new_trace_id() -> str:
    """A W3C trace id: 32 lower-case hex digits, never all zero."""
    while True:
        if any(raw := os.urandom(16)):
            return raw.hex()


def with_context(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, run with the context of this moment wherever it is called.

    For executors and native threads; tasks inherit theirs. Many threads may call it at once.
    """
    taken = copy_context()

    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        return taken.copy().run(function, *args, **kwargs)

    return carried


def add_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Log processor: the ids in force, unless the line names its own."""
    for name, value in _now(_ids.get()).items():
        event.setdefault(name, value)
    return event
