"""Cursors: the position of the last row of a page, as text that a client sends back as it is."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from qts.domain import RefusedError

R = TypeVar("R")
At = Annotated[datetime, Meta(tz=True)]
OrderPosition = tuple[At, UUID]
FillPosition = tuple[At, str, str, str]  # with broker, account and trade
RowPosition = tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)]]


def decode_cursor(cursor: str, kind: Any) -> Any:
    """Return the position of a cursor, a tuple of type `kind`; None without a cursor."""
    if not cursor:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        found: Any = msgspec.json.decode(text, type=kind)
        return tuple(map(_checked, found))
    except (msgspec.DecodeError, binascii.Error, UnicodeError, ValueError, OverflowError):
        raise RefusedError(
            f"cursor is {cursor[:40]!r}; expected the next_cursor of an earlier answer"
        ) from None


def cut_page(
    rows: Sequence[R], limit: int, position: Callable[[R], Sequence[Any]]
) -> tuple[list[R], str | None]:
    """Return the first rows, and the cursor of the next page if there are more than `limit`."""
    page = list(rows[:limit])
    return page, encode_cursor(position(page[-1])) if len(rows) > limit else None


def encode_cursor(position: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(tuple(position))).rstrip(b"=").decode()


def _checked(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # fails beyond the first and the last year
    if isinstance(value, str) and "\0" in value:
        raise ValueError("PostgreSQL has no text with a zero byte")
    return value
