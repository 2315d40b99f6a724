"""Validation of events before they reach the database.

An error of PostgreSQL would abort the caller's transaction; a refusal leaves it usable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from qts.outbox.config import StreamConfig
from qts.outbox.envelope import SCHEMA_VERSION, Envelope, OutboxEvent
from qts.outbox.errors import OutboxEventRefusedError

MAX_BYTES = 1_000_000
MAX_NAME = 200
MAX_DELAY_S = 366 * 86_400.0

# Market data belongs in the event lanes and the cache: here it would delay orders.
MARKET_DATA = frozenset(
    [
        "pricetick",
        "orderbookupdate",
        "volumeupdate",
        "indexupdate",
        "vixupdate",
        "ticker",
        "tick",
        "orderbook",
        "trade",
        "quote",
        "candle",
    ]
)

_encoder = msgspec.json.Encoder()


def encode_checked(event: OutboxEvent, streams: Mapping[str, StreamConfig]) -> bytes:
    """Return the envelope as JSON; raise OutboxEventRefusedError with the reason."""
    envelope = event.envelope
    if event.stream not in streams:
        raise OutboxEventRefusedError(
            f"stream {event.stream!r} is unknown; known: {', '.join(streams)}"
        )
    if envelope.schema_version != SCHEMA_VERSION:
        raise _refused(envelope, f"schemaVersion {envelope.schema_version} is not {SCHEMA_VERSION}")
    _check_names(event)
    if _is_market_data(envelope.type):
        raise _refused(envelope, "market data is not allowed on the bus; use the event lanes")
    body = _encode(envelope)
    if len(body) > MAX_BYTES:
        raise _refused(envelope, f"{len(body):,} bytes are more than the {MAX_BYTES:,} allowed")
    # NaN and the infinities are encoded as null, and PostgreSQL stores no NUL; both are rare, so
    # only a body that may contain one is searched.
    unset = (envelope.strategy_key is None) + (envelope.market is None)
    if body.count(b"null") > unset or b"\\u0000" in body:
        _find_invalid(envelope, msgspec.to_builtins(envelope.payload), "payload")
        if b"\\u0000" in body:
            _find_invalid(envelope, msgspec.json.decode(body), "envelope")
    return body


@functools.lru_cache(maxsize=1000)
def _is_market_data(event_type: str) -> bool:
    return event_type.replace("_", "").casefold() in MARKET_DATA


def _check_names(event: OutboxEvent) -> None:
    envelope = event.envelope
    try:
        valid = (
            0 < len(envelope.type) <= MAX_NAME
            and 0 < len(event.aggregate_type) <= MAX_NAME
            and 0 < len(event.aggregate_id) <= MAX_NAME
            and 0 < len(envelope.trace_id) <= MAX_NAME
            and len(event.account) <= MAX_NAME
        )
    except TypeError:
        valid = False
    if not valid:
        raise _refused(
            envelope, f"type, aggregate and traceId need 1 to {MAX_NAME} characters each"
        )
    # They have columns; the JSON is checked as a whole.
    text = event.aggregate_type + event.aggregate_id + event.account
    if "\0" in text or (not text.isascii() and _has_surrogate(text)):
        raise _refused(envelope, "the aggregate contains a character that cannot be stored")
    if not 0 <= event.delay_s <= MAX_DELAY_S:
        raise _refused(envelope, f"delay_s {event.delay_s} is not between 0 and {MAX_DELAY_S:.0f}")
    if envelope.occurred_at.tzinfo is None:
        raise _refused(envelope, "occurredAt has no time zone")


def _encode(envelope: Envelope) -> bytes:
    try:
        if isinstance(envelope.payload, msgspec.Raw):
            # The encoder copies raw JSON unchecked: decode and encode it.
            payload = msgspec.json.decode(envelope.payload)
            envelope = msgspec.structs.replace(envelope, payload=payload)
        return _encoder.encode(envelope)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refused(envelope, f"the payload is not JSON: {error}") from None


def _find_invalid(envelope: Envelope, value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(envelope, f"{path} is {value}, which JSON cannot represent")
    if isinstance(value, str) and "\0" in value:
        raise _refused(envelope, f"{path} contains a NUL character, which cannot be stored")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _find_invalid(envelope, key, path)
            _find_invalid(envelope, inner, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, inner in enumerate(value):
            _find_invalid(envelope, inner, f"{path}[{index}]")


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _refused(envelope: Envelope, reason: str) -> OutboxEventRefusedError:
    return OutboxEventRefusedError(f"event {envelope.type!r} refused: {reason}")
