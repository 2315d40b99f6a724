"""The process of a lane: takes events out of a ring, calls handlers, tells what came of it.

It is started by `process.LaneProcess`, dies with the engine's process, and says in shared memory
what each of its threads has in hand, so that the engine knows after a crash whom to blame.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable

import msgspec

from qts.domain import EventRefusedError, SystemClock
from qts.events.catalogue import Catalogue, EventType
from qts.events.dispatch import HandlerRetry
from qts.events.event import Event, Priority
from qts.events.handlers import EventHandler, build, check_batch
from qts.events.lanes import event_id
from qts.events.loops import LoopThread
from qts.events.payloads import Payload
from qts.events.process import protocol

_LOOK_S = 0.1  # how often a process without work looks for its parent
_WAKE_NS = 500_000  # outcomes are told at least so often
_LONGEST_ERROR = 2000  # characters


class LaneChildSetup(msgspec.Struct, frozen=True):
    """What a lane's process begins with."""

    lane: int
    parent: int  # process id
    threads: int
    types: tuple[EventType, ...]
    handlers: dict[str, list[EventHandler]]  # by type


def run_child(setup: LaneChildSetup, inbox: protocol.Memory, outbox: protocol.Memory) -> None:
    """The whole life of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's process decides when it is over
    protocol.die_with_parent(setup.parent)
    if os.getppid() != setup.parent:
        return
    catalogue = Catalogue(setup.types)
    out = _Outbox(protocol.open_ring(outbox), catalogue, setup.parent)
    try:
        worker = _Worker(setup, catalogue, protocol.open_ring(inbox), out)
    except Exception as error:  # noqa: BLE001 - a factory may raise anything
        out.tell(protocol.LaneChildFailed(f"{type(error).__name__}: {error}"))
        return
    out.tell(protocol.LaneChildReady(worker.kinds()))
    worker.run(setup.threads)


class _Outbox:
    """The way back to the engine; any thread may tell."""

    def __init__(self, ring: protocol.SharedRing, catalogue: Catalogue, parent: int) -> None:
        self._ring = ring
        self._catalogue = catalogue
        self._codec = protocol.FrameCodec(catalogue)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._parent = parent
        self._last_wake = self._clock.monotonic_ns()
        self.publish: Callable[..., None] = self._publish

    def tell(self, record: protocol.Record) -> None:
        with self._lock:
            self._push(self._codec.record(record))
            self.wake()

    def tell_soon(self, record: protocol.Record) -> None:
        """It is in shared memory at once; the engine is woken for several together."""
        with self._lock:
            self._push(self._codec.record(record))
            if self._clock.monotonic_ns() - self._last_wake > _WAKE_NS:
                self.wake()

    def wake(self) -> None:
        self._last_wake = self._clock.monotonic_ns()
        self._ring.wake()

    def new_event(self, name: str, payload: Payload, source: str = "") -> Event:
        return self._catalogue[name].event(
            payload,
            event_id=event_id(),
            timestamp=self._clock.now().timestamp(),
            source=source,
        )

    def emit(self, name: str, payload: Payload, source: str = "") -> Event:
        event = self.new_event(name, payload, source)
        self.publish(event)
        return event

    def _publish(self, event: Event) -> None:
        """Into its lane, at the engine; refused here when it breaks the contract."""
        self._catalogue.check(event)
        with self._lock:
            self._push(self._codec.said(event))
            self.wake()

    def _push(self, data: bytes) -> None:
        if len(data) > self._ring.largest:
            raise EventRefusedError(
                f"{len(data):,} bytes are more than the way back to the engine has"
            )
        while not self._ring.push(data, _LOOK_S):
            self._ring.wake()
            if os.getppid() != self._parent:
                os._exit(1)


class _Tally:
    """What became of the events of one frame; an event's sequence is its place in there."""

    def __init__(self) -> None:
        self.retries: list[int] = []
        self.letters: list[protocol.HandlerFailure] = []
        self._errors: list[str] = []

    def retried(self, _lane: int, sequence: int, _type: int) -> None:
        self.retries.append(sequence)

    def add(self, _event: Event, _handler: str, error: BaseException) -> None:
        self._errors.append(f"{type(error).__name__}: {error}"[:_LONGEST_ERROR])

    def note(self, handler: int, handled: list[bool]) -> None:
        """Each that was not handled has left its error, in the same order."""
        lost = [place for place, good in enumerate(handled) if not good]
        for place, error in zip(lost, self._errors, strict=True):
            self.letters.append(protocol.HandlerFailure(place, handler, error))
        self._errors = []


class _Worker:
    def __init__(
        self, setup: LaneChildSetup, catalogue: Catalogue, inbox: protocol.SharedRing, out: _Outbox
    ) -> None:
        self._catalogue = catalogue
        self._inbox = inbox
        self._out = out
        self._parent = setup.parent
        self._taking = threading.Lock()
        self._loop: LoopThread | None = None
        made: dict[int, EventHandler] = {}
        self._handlers: dict[str, list[EventHandler]] = {}
        for name, given in setup.handlers.items():
            self._handlers[name] = have = []
            for each in given:
                if id(each) not in made:
                    made[id(each)] = build(each, out, catalogue)
                check_batch(catalogue[name], made[id(each)])
                have.append(made[id(each)])
        if any(each.kind == "async" for have in self._handlers.values() for each in have):
            self._loop = LoopThread(f"qts-events-p{setup.lane}")

    def kinds(self) -> dict[str, list[str]]:
        return {name: [each.kind for each in have] for name, have in self._handlers.items()}

    def run(self, threads: int) -> None:
        others = [
            threading.Thread(target=self._serve_or_die, args=(slot,), daemon=True)
            for slot in range(1, threads)
        ]
        for thread in others:
            thread.start()
        self._serve_or_die(0)
        for thread in others:
            thread.join()

    def _serve_or_die(self, slot: int) -> None:
        """A thread that ended alone would keep what it has in hand for ever."""
        try:
            self._serve(slot)
        except BaseException:  # noqa: BLE001 - sys.exit in a handler is one
            traceback.print_exc()
            os._exit(1)

    def _serve(self, slot: int) -> None:
        codec = protocol.FrameCodec(self._catalogue)
        while not self._inbox.closed:
            data = self._next()
            if data is None:
                continue
            number, events = codec.read_frame(data)
            self._inbox.mark(slot, number)
            self._out.tell_soon(self._handle(number, events))
            self._inbox.mark(slot, 0)

    def _next(self) -> bytes | None:
        with self._taking:
            data = self._inbox.pop(0)
            if data is None:
                self._out.wake()
                data = self._inbox.pop(_LOOK_S)
        if data is None and os.getppid() != self._parent:
            os._exit(1)
        return data

    def _handle(self, number: int, events: list[Event]) -> protocol.FrameDone:
        kind = self._catalogue[events[0].event_type]
        tally = _Tally()
        retry = HandlerRetry(tally, tally, lambda _event, _handler, _error: None)
        began = protocol.ticks()
        for place, handler in enumerate(self._handlers[kind.name]):
            if self._inbox.flag and not handler.essential:
                continue
            tally.note(place, self._call(kind, handler, events, retry))
        return protocol.FrameDone(number, began, protocol.ticks(), tally.retries, tally.letters)

    def _call(
        self, kind: EventType, handler: EventHandler, events: list[Event], retry: HandlerRetry
    ) -> list[bool]:
        if handler.kind in ("batch", "rows"):
            return _call_batch(handler, events, retry)
        if handler.kind == "async" and self._loop is not None:
            limit_ms = kind.max_process_time_ms if kind.priority == Priority.P3 else None
            limit_s = limit_ms / 1000 if limit_ms else None
            return [self._loop.run(retry.attempt(each, handler, limit_s)) for each in events]
        return [_call_plain(handler, each, place, retry) for place, each in enumerate(events)]


def _call_plain(handler: EventHandler, event: Event, place: int, retry: HandlerRetry) -> bool:
    try:
        handler.call(event)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
        return retry.again(event, handler, error, place, 0)
    return True


def _call_batch(handler: EventHandler, events: list[Event], retry: HandlerRetry) -> list[bool]:
    try:
        handler.call([*events])
    except Exception as error:  # noqa: BLE001 - the same
        return retry.batch_again(events, handler, error, range(len(events)), 0)
    return [True] * len(events)
