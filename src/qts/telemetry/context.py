"""What logs and spans share: ids that follow a piece of work, and the redaction of secrets.

One context variable holds all ids, so that entering a context costs about a microsecond per event.
`lazy_context` costs less: it computes the ids only when a log line or a span needs them.

A value is masked when its key looks like a secret's name or when it can be revealed
(`Secret`). Every text, tracebacks included, loses the passwords of URLs, the values of
secret-looking names (`appkey=…`, `"password": "…"`, `Authorization: Bearer …`), JSON web
tokens, and the tokens that Telegram and Slack carry in a path.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Set
from contextvars import ContextVar, Token
from datetime import date, datetime
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


MASK = "***"
MAX_DEPTH = 8  # deeper values are printed as text, which ends cycles

_ANYWHERE = (
    "password|passwd|passphrase|secret|app[_-]?key|api[_-]?key|access[_-]?key|private[_-]?key"
    "|approval[_-]?key|authorization|signature|credential"
)
_AT_THE_END = "token|pwd|cookie|session[_-]?id"
_SECRET_KEY = re.compile(rf"{_ANYWHERE}|(?:{_AT_THE_END})$", re.IGNORECASE)

# Fast path: most texts match none of these and need no substitution.
_SUSPECT = re.compile(rf"{_ANYWHERE}|{_AT_THE_END}|://|bearer|eyJ|/bot", re.IGNORECASE)

# Every repetition that can fail is bounded, so that a hostile text cannot block the logging thread.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # scheme://user:password@host; the password may contain @ or /; a port is none
    (
        re.compile(r"(://[^\s:/@\"'<>]{0,128}:)(?!\d{1,5}(?:[/?#]|$))[^\s\"'<>]{0,512}@"),
        rf"\1{MASK}@",
    ),
    (re.compile(r"(/bot)\d+:[\w-]+"), rf"\1{MASK}"),
    (re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[\w/-]+"), rf"\1{MASK}"),
    (re.compile(r"(?<![\w-])eyJ[\w-]+\.[\w-]+\.[\w-]*"), MASK),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    # name=value, name: value, "name": "value", ("name", "value"), name=Type('value')
    (
        re.compile(
            rf"((?:{_ANYWHERE})[\w-]{{0,40}}|(?:{_AT_THE_END}))"
            r"(\\?[\"']?\s*(?:[=:]|%3D)\s*|\\?[\"']\s*,\s*(?=[bru]?\\?[\"']))"
            r"(?:(?:bearer|basic|digest)\s+|\w+\((?=[\"']))?"
            r"(?:\*\*\*(?!\w)|[bru]?\\[\"'][^\"']*[\"']?|[bru]?\"(?:\\.|[^\"\\])*\"?|[bru]?'(?:\\.|[^'\\])*'?|[^\s&]+)",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}",
    ),
)


def redact_text(text: str) -> str:
    """Replace everything in the text that looks like a secret by three stars."""
    if _SUSPECT.search(text) is None:
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def redact_value(value: object, depth: int = 0) -> Any:
    """Return the value as plain data (text, numbers, lists, dicts) with secrets masked."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return redact_text(str(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if hasattr(type(value), "reveal"):
        return MASK
    if isinstance(value, datetime | date):
        return value.isoformat()
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {redact_text(str(k)): redact_pair(k, v, depth + 1) for k, v in value.items()}
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | bytes):
            return [redact_value(value[0]), redact_pair(*value, depth + 1)]  # a header
        if isinstance(value, list | tuple | Set):
            return [redact_value(item, depth + 1) for item in value]
    if isinstance(value, BaseException):
        return redact_text(f"{type(value).__name__}: {value}")
    return redact_text(str(value))


def redact_pair(key: object, value: object, depth: int = 0) -> Any:
    """Return the redacted value, or three stars when the key is a secret's name."""
    name = key.decode("latin-1") if isinstance(key, bytes) else str(key)
    if _SECRET_KEY.search(name) and value is not None and not isinstance(value, bool):
        return MASK
    try:
        return redact_value(value, depth)
    except Exception as error:  # noqa: BLE001 - a broken __str__ must not break the line that logs it
        return f"<{type(value).__name__}, unprintable: {type(error).__name__}>"


def redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Redact a whole log line."""
    return {key: redact_pair(key, value) for key, value in event.items()}
