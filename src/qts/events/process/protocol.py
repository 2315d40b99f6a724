"""Messages between the engine and a lane's process, and the shared rings that carry them.

Frames of events go to the process; records of results and published events come back.
"""

from __future__ import annotations

import multiprocessing
from ctypes import Array, c_ubyte
from typing import Any

import msgspec
import numpy as np

from qts._native import (
    SHARED_RING_OVERHEAD,
    SharedRing,
    die_with_parent,
    key_hash,
    ticks,
    ticks_to_ns,
)
from qts.events.catalogue import Catalogue
from qts.events.event import Event

# Re-exported.
__all__ = ["SharedRing", "die_with_parent", "key_hash", "ticks", "ticks_to_ns"]

Memory = Array[c_ubyte]
_CACHE_LINE = 64
_RING_BYTES = 4 << 20
MAX_FRAME_BYTES = _RING_BYTES // 2


class _EncodedEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Event with an undecoded payload; the fields of Event, in their order."""

    event_id: str
    event_type: str
    priority: int
    timestamp: float
    source: str
    payload: msgspec.Raw
    requires_ack: bool
    max_process_time_ms: float | None
    can_batch: bool
    can_collapse: bool
    can_drop: bool
    retry_count: int
    max_retries: int


class HandlerFailure(msgspec.Struct, frozen=True, array_like=True):
    """Handler and event of a frame that became a dead letter."""

    index: int  # of the event in its frame
    handler: int
    error: str


class LaneChildReady(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The process has created its handlers; the kind of each, by type."""

    kinds: dict[str, list[str]]


class LaneChildFailed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The process could not create its handlers."""

    reason: str


class FrameDone(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """All handlers of a frame have returned, or none was called."""

    frame: int
    began: int  # ticks of the machine-wide counter
    ended: int
    retried: list[int]  # index of the event of each retry
    failures: list[HandlerFailure]
    dropped: bool = False  # LEVEL_3 skips every handler


class ChildPublished(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A handler in the process has published an event."""

    event: _EncodedEvent


Record = LaneChildReady | LaneChildFailed | FrameDone | ChildPublished


def shared_memory(capacity: int = _RING_BYTES) -> Memory:
    """Return zeroed memory for a ring, shared with a process that is started with it."""
    return multiprocessing.get_context("spawn").RawArray(
        c_ubyte, _CACHE_LINE + SHARED_RING_OVERHEAD + capacity
    )


def open_ring(shared: Memory) -> SharedRing:
    """Open the ring at the first cache line of `shared`, the same offset in every process."""
    array = np.frombuffer(memoryview(shared), dtype=np.uint8)
    first = -array.ctypes.data % _CACHE_LINE
    return SharedRing(array[first : len(array) - _CACHE_LINE + first])


class FrameCodec:
    """Encoder and decoder of frames and records; used by one thread."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = msgspec.msgpack.Decoder(tuple[int, list[_EncodedEvent]])
        self._records = msgspec.msgpack.Decoder(Record)
        self._payloads = {each.name: msgspec.msgpack.Decoder(each.payload) for each in catalogue}

    def frame(self, number: int, events: list[Event]) -> bytes:
        return self._encoder.encode((number, [msgspec.structs.astuple(each) for each in events]))

    def read_frame(self, data: bytes) -> tuple[int, list[Event]]:
        number, events = self._frames.decode(data)
        return number, [self.event(each) for each in events]

    def record(self, record: Record) -> bytes:
        return self._encoder.encode(record)

    def published(self, event: Event) -> bytes:
        fields: list[Any] = [*msgspec.structs.astuple(event)]
        fields[5] = msgspec.Raw(self._encoder.encode(event.payload))
        return self._encoder.encode(ChildPublished(_EncodedEvent(*fields)))

    def read_record(self, data: bytes) -> Record:
        record: Record = self._records.decode(data)
        return record

    def event(self, encoded: _EncodedEvent) -> Event:
        fields: list[Any] = [*msgspec.structs.astuple(encoded)]
        fields[5] = self._payloads[encoded.event_type].decode(encoded.payload)
        return Event(*fields)
