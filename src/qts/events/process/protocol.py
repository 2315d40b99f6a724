"""What goes between the engine and a lane's process: events there, outcomes and events back."""

from __future__ import annotations

import multiprocessing
from ctypes import Array, c_ubyte
from typing import Any

import msgspec
import numpy as np

from qts._native import (
    COUNT_IN_ORDER,
    SHARED_RING_OVERHEAD,
    SharedRing,
    die_with_parent,
    key_hash,
    ticks,
    ticks_to_ns,
)
from qts.events.catalogue import Catalogue
from qts.events.event import Event

__all__ = [
    "COUNT_IN_ORDER",
    "LARGEST",
    "ChildPublished",
    "FrameCodec",
    "FrameDone",
    "HandlerFailure",
    "LaneChildFailed",
    "LaneChildReady",
    "Memory",
    "Record",
    "SharedRing",
    "die_with_parent",
    "key_hash",
    "open_ring",
    "shared_memory",
    "ticks",
    "ticks_to_ns",
]

Memory = Array[c_ubyte]
_CACHE_LINE = 64
_RING_BYTES = 4 << 20
LARGEST = _RING_BYTES // 2  # bytes of a frame


class _Sent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event whose payload is still to be read; the fields of Event, in their order."""

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
    """One handler gave up on one event of a frame."""

    place: int
    handler: int
    error: str


class LaneChildReady(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The process has its handlers; what kind each is, by type."""

    kinds: dict[str, list[str]]


class LaneChildFailed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The process could not make its handlers."""

    why: str


class FrameDone(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A frame is done."""

    frame: int
    began: int  # ticks, the same counter in every process of a machine
    ended: int
    retried: list[int]  # the place of an event for each time it was tried again
    letters: list[HandlerFailure]


class ChildPublished(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A handler has published."""

    event: _Sent


Record = LaneChildReady | LaneChildFailed | FrameDone | ChildPublished


def shared_memory(room: int = _RING_BYTES) -> Memory:
    """Zeros that a process started with them sees too: enough for a ring of `room` bytes."""
    return multiprocessing.get_context("spawn").RawArray(
        c_ubyte, _CACHE_LINE + SHARED_RING_OVERHEAD + room
    )


def open_ring(shared: Memory) -> SharedRing:
    """From the first cache line on: at the same place in every process, since pages are."""
    array = np.frombuffer(memoryview(shared), dtype=np.uint8)
    first = -array.ctypes.data % _CACHE_LINE
    return SharedRing(array[first : len(array) - _CACHE_LINE + first])


class FrameCodec:
    """Bytes of frames and records; belongs to one thread."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = msgspec.msgpack.Decoder(tuple[int, list[_Sent]])
        self._records = msgspec.msgpack.Decoder(Record)
        self._payloads = {each.name: msgspec.msgpack.Decoder(each.payload) for each in catalogue}

    def frame(self, number: int, events: list[Event]) -> bytes:
        return self._encoder.encode((number, [msgspec.structs.astuple(each) for each in events]))

    def read_frame(self, data: bytes) -> tuple[int, list[Event]]:
        number, sent = self._frames.decode(data)
        return number, [self.event(each) for each in sent]

    def record(self, record: Record) -> bytes:
        return self._encoder.encode(record)

    def said(self, event: Event) -> bytes:
        fields: list[Any] = [*msgspec.structs.astuple(event)]
        fields[5] = msgspec.Raw(self._encoder.encode(event.payload))
        return self._encoder.encode(ChildPublished(_Sent(*fields)))

    def read_record(self, data: bytes) -> Record:
        record: Record = self._records.decode(data)
        return record

    def event(self, sent: _Sent) -> Event:
        fields: list[Any] = [*msgspec.structs.astuple(sent)]
        fields[5] = self._payloads[sent.event_type].decode(sent.payload)
        return Event(*fields)
