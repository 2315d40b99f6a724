"""Ids that follow a piece of work through calls and tasks.

One context variable holds all ids, so that entering a context costs about a microsecond per event.
`lazy_context` costs less: it computes the ids only when a log line or a span needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

# Spelled as in the outbox envelope, so that one search finds log lines and events.
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


class lazy_context:  # noqa: N801 - reads as a function: with lazy_context(delivery.ids):
    """Variant of `context` whose ids `read` returns on demand; they must not change."""

    __slots__ = ("_read", "_token")

    _token: Token[_State]

    def __init__(self, read: Callable[[], Ids]) -> None:
        self._read = read

    def __enter__(self) -> None:
        self._token = _ids.set(self)

    def __exit__(self, *_: object) -> None:
        _ids.reset(self._token)

    def ids(self) -> Mapping[str, str]:
        before = self._token.old_value
        outer = {} if before is Token.MISSING else _resolve(before)
        return {**outer, **self._read()}  # type: ignore[dict-item]


_State = Mapping[str, str] | lazy_context
_ids: ContextVar[_State] = ContextVar("qts_ids", default=MappingProxyType({}))


def _resolve(state: _State) -> Mapping[str, str]:
    return state.ids() if isinstance(state, lazy_context) else state


class context:  # noqa: N801 - reads as a function: with context(traceId=...):
    """Add ids for the length of a `with` block."""

    __slots__ = ("_added", "_token")

    _token: Token[_State]

    def __init__(self, **ids: Unpack[Ids]) -> None:
        self._added = ids

    def __enter__(self) -> None:
        self._token = _ids.set({**_resolve(_ids.get()), **self._added})  # type: ignore[dict-item]

    def __exit__(self, *_: object) -> None:
        _ids.reset(self._token)


def current_context() -> dict[str, str]:
    """Return a copy of the ids that apply here."""
    return dict(_resolve(_ids.get()))


def new_trace_id() -> str:
    """Return a W3C trace id: 32 lower-case hex digits, never all zero."""
    while True:
        if any(raw := os.urandom(16)):
            return raw.hex()


def add_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Add the current ids to a log line, except those the line sets itself."""
    for name, value in _resolve(_ids.get()).items():
        event.setdefault(name, value)
    return event
