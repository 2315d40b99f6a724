"""Process of a lane: its messages with the engine, their shared rings, and its main function.

Frames of events go to the process; records of results and published events come back.
`LaneProcess` starts it; it dies with the engine's process. Each thread marks its current frame in
shared memory, so that after a crash the engine can name the handler.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from ctypes import Array, c_ubyte
from typing import Any

import msgspec
import numpy as np

from qts._native import SHARED_RING_OVERHEAD, SharedRing, die_with_parent, ticks
from qts.domain import EventRefusedError, SystemClock
from qts.events.catalogue import Catalogue, Event, EventType
from qts.events.dispatch import HandlerRetry, LoopThread
from qts.events.handlers import EventHandler, build, check_batch
from qts.events.lanes import event_id

Memory = Array[c_ubyte]
_CACHE_LINE = 64
_RING_BYTES = 4 << 20
MAX_FRAME_BYTES = _RING_BYTES // 2
_LOOP_STOP_S = 0.5  # in which async handlers close what they hold
_POLL_S = 0.1  # interval at which an idle process checks for its parent
_WAKE_INTERVAL_NS = 500_000  # of the engine, for buffered records
_MAX_ERROR_CHARS = 2000


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


class LaneChildSetup(msgspec.Struct, frozen=True):
    """Arguments of a lane's process."""

    lane: int
    parent: int  # process id
    threads: int
    types: tuple[EventType, ...]
    handlers: dict[str, list[EventHandler]]  # by type


def run_child(setup: LaneChildSetup, to_child: Memory, from_child: Memory) -> None:
    """Run the process until the ring is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine stops this process
    die_with_parent(setup.parent)
    if os.getppid() != setup.parent:
        return
    catalogue = Catalogue(setup.types)
    publisher = _ChildPublisher(open_ring(from_child), catalogue, setup.parent)
    try:
        worker = _Worker(setup, catalogue, open_ring(to_child), publisher)
    except Exception as error:  # noqa: BLE001 - a factory may raise anything
        publisher.send(LaneChildFailed(f"{type(error).__name__}: {error}"))
        return
    publisher.send(LaneChildReady(worker.kinds()))
    worker.run(setup.threads)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # finalising a large interpreter takes longer than a stop waits


class _ChildPublisher:
    """Sender of records and events to the engine; usable by any thread."""

    def __init__(self, ring: SharedRing, catalogue: Catalogue, parent: int) -> None:
        self._ring = ring
        self._catalogue = catalogue
        self._codec = FrameCodec(catalogue)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._parent = parent
        self._last_wake = self._clock.monotonic_ns()

    def send(self, record: Record) -> None:
        with self._lock:
            self._push(self._codec.record(record))
            self.wake()

    def send_buffered(self, record: Record) -> None:
        """Write a record at once, but wake the engine for several together."""
        with self._lock:
            self._push(self._codec.record(record))
            if self._clock.monotonic_ns() - self._last_wake > _WAKE_INTERVAL_NS:
                self.wake()

    def wake(self) -> None:
        self._last_wake = self._clock.monotonic_ns()
        self._ring.wake()

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        return self._catalogue[name].event(
            payload,
            event_id=event_id(),
            timestamp=self._clock.now().timestamp(),
            source=source,
        )

    def emit(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        event = self.new_event(name, payload, source)
        self.publish(event)
        return event

    def publish(self, event: Event) -> None:
        """Send an event to its lane in the engine; raise when it breaks the contract."""
        self._catalogue.check(event)
        with self._lock:
            self._push(self._codec.published(event))
            self.wake()

    def _push(self, data: bytes) -> None:
        if len(data) > self._ring.max_record_size:
            raise EventRefusedError(
                f"the event has {len(data):,} bytes; at most {self._ring.max_record_size:,} fit"
            )
        while not self._ring.push(data, _POLL_S):
            self._ring.wake()
            if os.getppid() != self._parent:
                os._exit(1)


class _FrameResult:
    """Retries and failures of one frame; an event's sequence is its index in the frame."""

    def __init__(self) -> None:
        self.retries: list[int] = []
        self.failures: list[HandlerFailure] = []
        self._errors: list[str] = []

    def count_retry(self, _lane: int, sequence: int, _type: int) -> None:
        self.retries.append(sequence)

    def add(self, _event: Event, _handler: str, error: BaseException) -> None:
        self._errors.append(f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS])

    def add_failures(self, handler: int, handled: list[bool]) -> None:
        """Pair each event that was not handled with its error; both are in the same order."""
        failed = [index for index, good in enumerate(handled) if not good]
        for index, error in zip(failed, self._errors, strict=True):
            self.failures.append(HandlerFailure(index, handler, error))
        self._errors = []


class _Worker:
    """Threads that read frames from the ring and call the handlers."""

    def __init__(
        self,
        setup: LaneChildSetup,
        catalogue: Catalogue,
        ring: SharedRing,
        publisher: _ChildPublisher,
    ) -> None:
        self._catalogue = catalogue
        self._ring = ring
        self._publisher = publisher
        self._parent = setup.parent
        self._read_lock = threading.Lock()
        self._loop: LoopThread | None = None
        built: dict[int, EventHandler] = {}
        self._handlers: dict[str, list[EventHandler]] = {}
        for name, registered in setup.handlers.items():
            self._handlers[name] = handlers = []
            for each in registered:
                if id(each) not in built:
                    built[id(each)] = build(each, publisher, catalogue)
                check_batch(catalogue[name], built[id(each)])
                handlers.append(built[id(each)])
        if any(each.kind == "async" for handlers in self._handlers.values() for each in handlers):
            self._loop = LoopThread(f"qts-events-p{setup.lane}")

    def kinds(self) -> dict[str, list[str]]:
        return {name: [each.kind for each in handlers] for name, handlers in self._handlers.items()}

    def run(self, threads: int) -> None:
        others = [
            threading.Thread(target=self._serve_or_exit, args=(slot,), daemon=True)
            for slot in range(1, threads)
        ]
        for thread in others:
            thread.start()
        self._serve_or_exit(0)
        for thread in others:
            thread.join()
        if self._loop is not None:
            self._loop.stop(_LOOP_STOP_S)

    def _serve_or_exit(self, slot: int) -> None:
        """End the whole process when a thread fails, so that its frame is resent."""
        try:
            self._serve(slot)
        except BaseException:  # noqa: BLE001 - also sys.exit in a handler
            traceback.print_exc()
            os._exit(1)

    def _serve(self, slot: int) -> None:
        codec = FrameCodec(self._catalogue)
        while not self._ring.closed:
            data = self._next()
            if data is None:
                continue
            number, events = codec.read_frame(data)
            self._ring.mark_in_flight(slot, number)
            self._publisher.send_buffered(self._handle(number, events))
            self._ring.mark_in_flight(slot, 0)

    def _next(self) -> bytes | None:
        with self._read_lock:
            data = self._ring.pop(0)
            if data is None:
                self._publisher.wake()
                data = self._ring.pop(_POLL_S)
        if data is None and os.getppid() != self._parent:
            os._exit(1)
        return data

    def _handle(self, number: int, events: list[Event]) -> FrameDone:
        event_type = self._catalogue[events[0].event_type]
        result = _FrameResult()
        retry = HandlerRetry(result, result, lambda _event, _handler, _error: None)
        began = ticks()
        handlers = self._handlers[event_type.name]
        essential = self._ring.flag  # LEVEL_3
        for index, handler in enumerate(handlers):
            if essential and not handler.essential:
                continue
            result.add_failures(index, self._call(event_type, handler, events, retry))
        ended = ticks()
        dropped = bool(essential) and not any(each.essential for each in handlers)
        return FrameDone(number, began, ended, result.retries, result.failures, dropped)

    def _call(
        self, event_type: EventType, handler: EventHandler, events: list[Event], retry: HandlerRetry
    ) -> list[bool]:
        """Call one handler for all events; return whether each was handled."""
        if handler.kind in ("batch", "rows"):
            return _call_batch(handler, events, retry)
        if handler.kind == "async" and self._loop is not None:
            timeout_s = event_type.async_timeout_s
            loop = self._loop
            return [
                loop.run(retry.call_async(each, handler, timeout_s, loop.is_stopping))
                for each in events
            ]
        return [_call_plain(handler, each, index, retry) for index, each in enumerate(events)]


def _call_plain(handler: EventHandler, event: Event, index: int, retry: HandlerRetry) -> bool:
    try:
        handler.call(event)
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything, also SystemExit
        return retry.retry(event, handler, error, index, 0)
    return True


def _call_batch(handler: EventHandler, events: list[Event], retry: HandlerRetry) -> list[bool]:
    try:
        handler.call([*events])
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything, also SystemExit
        return retry.retry_batch(events, handler, error, range(len(events)), 0)
    return [True] * len(events)
