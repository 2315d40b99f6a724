"""State of a strategy that lasts: encoded, checked, restored."""

from __future__ import annotations

from typing import Any

import msgspec

from qts.domain import RefusedError, name_choices

MAX_STATE_BYTES = 65_536


class NoState(msgspec.Struct):
    """State of a strategy that keeps none."""


def encode_state(key: str, state: msgspec.Struct) -> bytes:
    """Return the stored form of a state; raise RefusedError for one that has none."""
    try:
        data = msgspec.msgpack.encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RefusedError(f"strategy {key}: its state cannot be stored: {error}") from None
    if len(data) > MAX_STATE_BYTES:
        raise RefusedError(
            f"strategy {key}: its state has {len(data):,} bytes; at most {MAX_STATE_BYTES:,}"
        )
    return data


def decode_state(key: str, kind: type[msgspec.Struct], data: bytes) -> msgspec.Struct:
    """Restore a state; raise RefusedError naming the field that the class no longer has so.

    A field that the class has and the stored state has not takes its default.
    """
    way_out = f"; `qts ops state clear {key}` removes the stored state"
    stored: Any = msgspec.msgpack.decode(data)
    fields = msgspec.structs.fields(kind)
    known = {each.encode_name for each in fields}
    for name in stored if isinstance(stored, dict) else ():
        if name not in known:
            raise RefusedError(
                f"strategy {key}: its stored state has the field {name!r}, which State has not;"
                f" expected {name_choices(name, sorted(known))}{way_out}"
            )
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RefusedError(
            f"strategy {key}: its stored state does not fit State: {error}{way_out}"
        ) from None
