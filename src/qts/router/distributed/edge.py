"""Edge between two machines: settings, names on NATS, and the codec of a batch."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from qts.domain import OperationError, RefusedError, Secret
from qts.router.handlers import BATCH, MESSAGE, Messages

TYPES = 8
STREAMS = 256 * TYPES  # of (producer, type)

_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_SCHEMES = ("nats", "tls")
_HEAD = struct.Struct("<4sBBHQII")  # magic, version, last, bytes of a message, number, rows, count
_MAGIC, _VERSION = b"QTSE", 1
_ROW = np.dtype([("stream", "<u2"), ("before", "<u8")])


class EdgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an edge; both sides use the same server and the same run."""

    url: Annotated[Secret, Meta(description="of the NATS server: nats://user:password@host:4222")]
    run: Annotated[str, Meta(description="name of the run; a second source of it is refused")]
    batch: Annotated[int, Meta(description="messages in one NATS message, at most")] = 1024
    in_flight: Annotated[int, Meta(description="batches sent and not yet stored, at most")] = 16
    held: Annotated[int, Meta(description="batches stored and not yet confirmed, at most")] = 512
    unconfirmed: Annotated[
        int, Meta(description="batches a sink receives before it confirms, at most")
    ] = 64
    timeout_s: Annotated[
        float, Meta(description="how long the other side may be silent before this one fails")
    ] = 10.0

    def __post_init__(self) -> None:
        if not _is_url(self.url.reveal()):
            raise RefusedError(
                f"the URL of NATS is not valid; expected {' or '.join(_SCHEMES)}://host:port"
            )
        if not _RUN.fullmatch(self.run):
            raise RefusedError(
                f"run is {self.run[:80]!r}; expected 1 to 64 letters, digits, _ and -"
            )
        for name, low, high in (
            ("batch", BATCH, 8192),
            ("in_flight", 1, 256),
            ("held", 1, 1_000_000),
            ("unconfirmed", 2, 10_000),
        ):
            if not low <= (value := getattr(self, name)) <= high:
                raise RefusedError(f"{name} is {value}; expected {low} to {high}")
        if not 0 < self.timeout_s < 86_400:
            raise RefusedError(f"timeout is {self.timeout_s:g} s; expected above 0, below a day")

    @property
    def server(self) -> str:
        """Address of the server, without the password that its URL may hold."""
        return f"NATS at {self.host}:{self.port}"

    @property
    def host(self) -> str:
        return urlsplit(self.url.reveal()).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url.reveal()).port or 4222

    @property
    def stream(self) -> str:
        return f"QTS_ROUTE_{self.run}"

    @property
    def subject(self) -> str:
        return f"qts.route.{self.run}"

    def heartbeat_subject(self, role: str) -> str:
        """Return the subject of a side's heartbeat, which is not part of the stream."""
        return f"{self.subject}.alive.{role}"

    def message_id(self, number: int) -> str:
        return f"{self.run}.{number}"


class Batch(NamedTuple):
    """`before`: messages of each stream (producer * 8 + type) that precede this batch."""

    number: int
    last: bool
    before: dict[int, int]
    messages: Messages


def encode(number: int, before: Mapping[int, int], messages: bytes, *, last: bool = False) -> bytes:
    rows = np.array(list(before.items()), _ROW)
    count = len(messages) // MESSAGE.itemsize
    head = _HEAD.pack(_MAGIC, _VERSION, last, MESSAGE.itemsize, number, len(rows), count)
    return head + rows.tobytes() + messages


def decode(data: bytes) -> Batch:
    """Return the batch with a private copy of its messages; raise OperationError if malformed."""
    try:
        magic, version, last, size, number, rows, count = _HEAD.unpack_from(data)
    except struct.error:
        raise OperationError("the stream holds data that is not a batch of messages") from None
    if (magic, version, size) != (_MAGIC, _VERSION, MESSAGE.itemsize):
        raise OperationError(
            "the stream was written by another version of QTS; use the same on both sides"
        )
    if len(data) != _HEAD.size + rows * _ROW.itemsize + count * size:
        raise OperationError(f"batch {number} of the stream is cut off or too long")
    table = np.frombuffer(data, _ROW, rows, _HEAD.size)
    messages = np.frombuffer(data, MESSAGE, count, _HEAD.size + rows * _ROW.itemsize)
    before = dict(zip(table["stream"].tolist(), table["before"].tolist(), strict=True))
    return Batch(number, bool(last), before, messages.copy())


def streams_of(messages: Messages) -> npt.NDArray[np.intp]:
    """Return the stream number of each message."""
    streams: npt.NDArray[np.intp] = messages["producer_id"].astype(np.intp) * TYPES
    streams += messages["msg_type"]
    return streams


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        return False
