"""What may be published: everything is checked before the database hears of it.

An error of PostgreSQL would spoil the caller's transaction; ours leaves it as it was.
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

# Ticks, books and trades go to the event lanes and the cache: here they would drown the orders.
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
    """The envelope as JSON, or EventRefused with the reason."""
    envelope = event.envelope
    if event.stream not in streams:
        raise OutboxEventRefusedError(
            f"stream {event.stream!r} is unknown; known: {', '.join(streams)}"
        )
    if envelope.schema_version != SCHEMA_VERSION:
        raise _refused(envelope, f"schemaVersion {envelope.schema_version} is not {SCHEMA_VERSION}")
    _check_names(event)
    if _is_market_data(envelope.type):
        raise _refused(envelope, "market data does not travel on the bus; use the event lanes")
    body = _encode(envelope)
    if len(body) > MAX_BYTES:
        raise _refused(envelope, f"{len(body):,} bytes are more than the {MAX_BYTES:,} allowed")
    # NaN and the infinities are encoded as null, and the store knows no NUL; both are rare, so
    # only a body that may hold one is searched.
    empty = (envelope.strategy_key is None) + (envelope.market is None)
    if body.count(b"null") > empty or b"\\u0000" in body:
        _search(envelope, msgspec.to_builtins(envelope.payload), "payload")
        if b"\\u0000" in body:
            _search(envelope, msgspec.json.decode(body), "envelope")
    return body


@functools.lru_cache(maxsize=1000)
def _is_market_data(event_type: str) -> bool:
    return event_type.replace("_", "").casefold() in MARKET_DATA


def _check_names(event: OutboxEvent) -> None:
    envelope = event.envelope
    try:
        fine = (
            0 < len(envelope.type) <= MAX_NAME
            and 0 < len(event.aggregate_type) <= MAX_NAME
            and 0 < len(event.aggregate_id) <= MAX_NAME
            and 0 < len(envelope.trace_id) <= MAX_NAME
        )
    except TypeError:
        fine = False
    if not fine:
        raise _refused(
            envelope, f"type, aggregate and traceId need 1 to {MAX_NAME} characters each"
        )
    # Both are stored apart from the JSON, which is checked as a whole.
    text = event.aggregate_type + event.aggregate_id
    if "\0" in text or (not text.isascii() and _unwritable(text)):
        raise _refused(envelope, "the aggregate holds a character that cannot be stored")
    if not 0 <= event.delay_s <= MAX_DELAY_S:
        raise _refused(envelope, f"delay_s {event.delay_s} is not between 0 and {MAX_DELAY_S:.0f}")
    if envelope.occurred_at.tzinfo is None:
        raise _refused(envelope, "occurredAt has no time zone")


def _encode(envelope: Envelope) -> bytes:
    try:
        if isinstance(envelope.payload, msgspec.Raw):
            # Trusted by the encoder as it is, so read it once and write it anew.
            payload = msgspec.json.decode(envelope.payload)
            envelope = msgspec.structs.replace(envelope, payload=payload)
        return _encoder.encode(envelope)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refused(envelope, f"the payload is not JSON: {error}") from None


def _search(envelope: Envelope, value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(envelope, f"{path} is {value}, which JSON cannot say")
    if isinstance(value, str) and "\0" in value:
        raise _refused(envelope, f"{path} holds a NUL character, which cannot be stored")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _search(envelope, key, path)
            _search(envelope, inner, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for place, inner in enumerate(value):
            _search(envelope, inner, f"{path}[{place}]")


def _unwritable(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _refused(envelope: Envelope, why: str) -> OutboxEventRefusedError:
    return OutboxEventRefusedError(f"event {envelope.type!r} refused: {why}")
