"""Codec for events on NATS and Kafka: the envelope is the body, the aggregate is in the headers."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from qts.outbox.bus import Delivery
from qts.outbox.config import StreamConfig
from qts.outbox.envelope import Envelope, decode_envelope, uuid7
from qts.outbox.handling import HandlerResult

# Percent-encoded: NATS headers are single lines.
AGGREGATE_TYPE = "Qts-Aggregate-Type"
AGGREGATE_ID = "Qts-Aggregate-Id"
EVENT_TYPE = "Qts-Event-Type"
ACCOUNT = "Qts-Account"  # absent for an event of no account
MESSAGE_ID = "Nats-Msg-Id"  # deduplicates on NATS; informative on Kafka


_encoder = msgspec.json.Encoder()


def encode_body(delivery: Delivery) -> bytes:
    return _encoder.encode(delivery.envelope)


def encode_headers(delivery: Delivery) -> dict[str, str]:
    headers = {
        MESSAGE_ID: f"{delivery.event_id}.{delivery.row_id}",
        AGGREGATE_TYPE: quote(delivery.aggregate_type),
        AGGREGATE_ID: quote(delivery.aggregate_id),
        EVENT_TYPE: quote(delivery.envelope.type),
    }
    return headers | {ACCOUNT: quote(delivery.account)} if delivery.account else headers


def account_of(headers: Mapping[str, str]) -> str:
    """Return the account that a message belongs to; "" for none."""
    return unquote(headers.get(ACCOUNT, ""))


def partition_key(delivery: Delivery) -> bytes:
    """Return the key that all events of one aggregate share."""
    key = f"{quote(delivery.aggregate_type, safe='')}/{quote(delivery.aggregate_id)}"
    return (f"{quote(delivery.account, safe='')}/{key}" if delivery.account else key).encode()


def decode_delivery(
    stream: str, config: StreamConfig, headers: Mapping[str, str], body: bytes, attempt: int
) -> tuple[Delivery, HandlerResult | None]:
    """Decode a message; with a dead result if its envelope is invalid."""
    invalid = None
    try:
        envelope: Envelope = decode_envelope(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        invalid = HandlerResult("dead", "ENVELOPE_INVALID", str(error))
        text = body.decode(errors="replace")
        envelope = Envelope(
            event_id=_event_id(headers), type="?", trace_id="?", payload={"body": text}
        )
    aggregate_type, aggregate_id = (
        unquote(headers.get(name, "?")) for name in (AGGREGATE_TYPE, AGGREGATE_ID)
    )
    delivery = Delivery(
        stream, aggregate_type, aggregate_id, envelope, attempt, config.max_attempts
    )
    delivery.account = account_of(headers)
    return delivery, invalid


def _event_id(headers: Mapping[str, str]) -> UUID:
    try:
        return UUID(headers.get(MESSAGE_ID, "").partition(".")[0])
    except ValueError:
        return uuid7()  # not published by QTS
