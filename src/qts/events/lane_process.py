"""Engine's side of a lane whose handlers run in an isolated process.

    lane ─take─▶ frames ─ring─▶ process ─ring─▶ results ─settle─▶ lane
                    ▲                             │
                    └──── restarted: resend ◀─── died

When the process dies, the results of finished frames are still in the ring. A frame that it was
handling is resent, each event alone and counted as a retry, until `max_retries` make it a dead
letter; a frame that it had not started is resent unchanged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from qts import telemetry
from qts.domain import EventRefusedError, LaneFullError, OperationError
from qts.events.catalogue import Catalogue, Event
from qts.events.config import LaneConfig
from qts.events.dead_letters import RemoteHandlerError
from qts.events.handlers import EventHandler
from qts.events.in_flight import InFlightFrame, InFlightWindow, LaneChild, start_child
from qts.events.lane_child import (
    MAX_FRAME_BYTES,
    ChildPublished,
    FrameCodec,
    FrameDone,
    LaneChildSetup,
)
from qts.events.lanes import Lanes, ticks, ticks_to_ns

log = telemetry.logger("events")

_POLL_S = 0.05
_MAX_RECORDS = 512  # per read
_STABLE_S = 5.0  # uptime that resets the restart backoff
_MAX_BACKOFF_S = 5.0
_BATCHED = {"batch", "rows"}


class LaneProcessCallbacks(msgspec.Struct, frozen=True):
    """Callbacks of a LaneProcess to the engine."""

    settled: Callable[[Event, bool], None]  # event, handled
    dropped: Callable[[Event], None]
    dead_letter: Callable[[Event, EventHandler, BaseException], None]
    died: Callable[[int, str], None]  # lane, reason
    not_started: Callable[[int, str], None]


class LaneProcess:
    """Two threads: one feeds the lane's process, one supervises it and settles its results."""

    def __init__(
        self,
        setup: LaneChildSetup,
        catalogue: Catalogue,
        config: LaneConfig,
        lanes: Lanes,
        callbacks: LaneProcessCallbacks,
    ) -> None:
        self.lane = setup.lane
        self.window = InFlightWindow(config.batch_size, setup.threads)
        self.kinds: dict[str, list[str]] = {}
        self._setup = setup
        self._catalogue = catalogue
        self._lanes = lanes
        self._callbacks = callbacks
        self._numbers = {each.name: number for number, each in enumerate(catalogue)}
        self._stop = threading.Event()
        self._start_error: OperationError | None = None
        self._stop_timeout_s = 1.0
        self._ended = True
        self._ready = threading.Event()
        self._paused = self._critical_only = False
        self._feeder = LaneFeeder(
            self.lane, lanes, catalogue, config.batch_by == "symbol", self.window, self
        )
        name = f"qts-events-p{self.lane}"
        self._threads = [
            threading.Thread(target=self._supervise, name=f"{name}-supervisor", daemon=True),
            threading.Thread(target=self._feed, name=f"{name}-feed", daemon=True),
        ]

    # --- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process and wait for its handlers; it gets no events before `feed`."""
        # The supervisor starts it: the process is killed when the thread that started it ends.
        self._threads[0].start()
        self._ready.wait()
        if self._start_error is not None:
            self._threads[0].join()
            raise self._start_error

    def feed(self) -> None:
        self._threads[1].start()

    def _feed(self) -> None:
        self._feeder.run(self.kinds, self._stop.is_set)

    def stop(self, seconds: float) -> bool:
        """Stop the process after its current event; return False when it had to be killed."""
        self._stop_timeout_s = seconds
        self._stop.set()
        self.window.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        return self._ended

    @property
    def pid(self) -> int:
        child = self.window.child
        return child.pid if child else 0

    def set_mode(self, paused: bool, critical_only: bool) -> None:
        self._paused, self._critical_only = paused, critical_only
        if child := self.window.child:
            child.set_mode(paused, critical_only)

    def running_handlers(self) -> Iterator[tuple[str, int]]:
        """Yield the handlers of each frame being handled with their time so far in ns."""
        child, frames = self.window.in_flight()
        now = ticks_to_ns(ticks())
        for number, since in child.to_child.in_flight() if child else ():
            if number in frames:
                yield self._names(frames[number]), now - ticks_to_ns(since)

    # --- supervisor: reads results, restarts the process ------------------------------------------

    def _supervise(self) -> None:
        try:
            self._start_child()
        except OperationError as error:
            self._start_error = error
            return
        finally:
            self._ready.set()
        deaths = 0
        while not self._stop.is_set() and (child := self.window.child):
            if self._read(child, _POLL_S) or child.is_alive():
                continue
            while self._read(child, 0):
                pass  # records written before it died
            deaths = deaths + 1 if child.uptime_s() < _STABLE_S else 1
            self._recover_frames(child)
            self._restart(deaths)
        self._stop_child()

    def _stop_child(self) -> None:
        child = self.window.child
        if child is None:
            return
        child.to_child.close()
        deadline = time.monotonic() + self._stop_timeout_s
        while child.is_alive() and time.monotonic() < deadline:
            self._read(child, _POLL_S)
        self._ended = not child.is_alive()
        child.kill()
        while self._read(child, 0):
            pass
        child.close()

    def _start_child(self) -> None:
        child, self.kinds = start_child(self._setup, self._catalogue, self._stop)
        self.window.attach(child)
        child.set_mode(self._paused, self._critical_only)  # after attach, so no change is missed

    def _restart(self, deaths: int) -> None:
        """Restart the process, at once after the first death, then with growing backoff."""
        while not self._stop.is_set():
            backoff_s = 0.0 if deaths <= 1 else min(_MAX_BACKOFF_S, 0.05 * 2**deaths)
            if self._stop.wait(backoff_s):
                return
            try:
                self._start_child()
            except OperationError as error:
                deaths += 1
                if not self._stop.is_set():
                    self._callbacks.not_started(self.lane, str(error))
            else:
                return

    def _recover_frames(self, child: LaneChild) -> None:
        """Resend the frames of a dead process; those it was handling count as retries."""
        reason = child.exit_reason()
        marked = {number for number, _ in child.to_child.in_flight()}
        frames = self.window.detach()
        handlers = [self._names(frames[number]) for number in marked if number in frames]
        if handlers:
            reason += f" in {', '.join(handlers)}"
        resend = []
        for number, frame in frames.items():
            resend += self._retry_alone(frame, reason) if number in marked else [frame]
        self.window.resend(resend)
        child.close()
        self._callbacks.died(self.lane, reason)

    def _retry_alone(self, frame: InFlightFrame, reason: str) -> list[InFlightFrame]:
        """Return a frame for each event that has a retry left; dead-letter the others."""
        frames = []
        for event, sequence in frame.events:
            if event.retry_count >= event.max_retries:
                self.add_dead_letter(event, sequence, f"its process {reason}")
                continue
            self._lanes.count_retry(self.lane, sequence, self._numbers[event.event_type])
            retry = msgspec.structs.replace(event, retry_count=event.retry_count + 1)
            frames.append(InFlightFrame([(retry, sequence)]))
        return frames

    def add_dead_letter(self, event: Event, sequence: int, reason: str) -> None:
        handlers = self._setup.handlers[event.event_type]
        self._callbacks.dead_letter(event, handlers[0], RemoteHandlerError(reason))
        now = ticks()
        self.settle(event, sequence, False, now, now)

    def _names(self, frame: InFlightFrame) -> str:
        return ", ".join(each.name for each in self._setup.handlers[frame.events[0][0].event_type])

    # --- results --------------------------------------------------------------------------------

    def _read(self, child: LaneChild, seconds: float) -> bool:
        """Read and process records; return False when there were none."""
        records = child.from_child.pop_many(_MAX_RECORDS, seconds)
        for data in records:
            record = child.codec.read_record(data)
            if isinstance(record, FrameDone):
                self._finish_frame(record)
            elif isinstance(record, ChildPublished):
                self._publish(child.codec.event(record.event))
        return bool(records)

    def _finish_frame(self, done: FrameDone) -> None:
        took_ns = ticks_to_ns(done.ended) - ticks_to_ns(done.began)
        frame = self.window.finish(done.frame, took_ns)
        if done.dropped:
            for event, sequence in frame.events:
                self._lanes.drop_taken(self.lane, sequence)
                self._callbacks.dropped(event)
                self.window.settle_one()
            return
        dead = set()
        for failure in done.failures:
            event = frame.events[failure.index][0]
            handler = self._setup.handlers[event.event_type][failure.handler]
            self._callbacks.dead_letter(event, handler, RemoteHandlerError(failure.error))
            dead.add(failure.index)
        for index in done.retried:
            event, sequence = frame.events[index]
            self._lanes.count_retry(self.lane, sequence, self._numbers[event.event_type])
        for index, (event, sequence) in enumerate(frame.events):
            self.settle(event, sequence, index not in dead, done.began, done.ended)

    def settle(self, event: Event, sequence: int, handled: bool, began: int, ended: int) -> None:
        self._lanes.settle_at(self.lane, sequence, not handled, began, ended)
        self._callbacks.settled(event, handled)
        self.window.settle_one()

    def _publish(self, event: Event) -> None:
        """Publish an event of the process without waiting.

        Waiting for capacity could deadlock: the record that frees it may be behind this one.
        """
        source = EventHandler(None, "plain", f"P{self.lane}'s process")
        try:
            if not self._lanes.publish_overflow(event):
                text = f"lane P{event.priority} is at twice its capacity"
                self._callbacks.dead_letter(event, source, LaneFullError(text))
        except EventRefusedError as error:
            self._callbacks.dead_letter(event, source, error)


class FrameSettler(Protocol):
    """Receiver of events that are settled without being sent."""

    def settle(
        self, event: Event, sequence: int, handled: bool, began: int, ended: int
    ) -> None: ...
    def add_dead_letter(self, event: Event, sequence: int, reason: str) -> None: ...


class LaneFeeder:
    """Feeder that runs on a dedicated thread."""

    def __init__(
        self,
        lane: int,
        lanes: Lanes,
        catalogue: Catalogue,
        by_symbol: bool,
        window: InFlightWindow,
        settler: FrameSettler,
    ) -> None:
        self._lane = lane
        self._lanes = lanes
        self._catalogue = catalogue
        self._by_symbol = by_symbol
        self._window = window
        self._settler = settler
        self._codec = FrameCodec(catalogue)
        self._kinds: dict[str, list[str]] = {}
        self._batches = False

    def run(self, kinds: dict[str, list[str]], stopped: Callable[[], bool]) -> None:
        """Feed until `stopped`; `kinds` are those of the handlers of each type."""
        self._kinds = kinds
        self._batches = any(_BATCHED & set(each) for each in kinds.values())
        while not stopped():
            for frame in self._next():
                self._send(frame, stopped)
            if child := self._window.child:
                child.to_child.wake()

    def _next(self) -> list[InFlightFrame]:
        if not self._window.wait(_POLL_S):
            return []
        if frame := self._window.next_resend():
            return [frame]
        # A batch is not split when the window has capacity for only a part of it.
        limit = self._window.batch
        if not self._batches:
            limit = min(self._window.capacity, limit)
        if limit < 1:  # a frame that was slower than those before has ended since the wait
            return []
        taken = self._lanes.take(self._lane, limit, _POLL_S)
        self._window.add_taken(len(taken))
        return self._form_frames(taken)

    def _form_frames(self, taken: list[tuple[Event, int]]) -> list[InFlightFrame]:
        frames: list[InFlightFrame] = []
        groups: dict[tuple[str, str], InFlightFrame] = {}
        for event, sequence in taken:
            kinds = self._kinds[event.event_type]
            if not kinds:  # no handlers
                now = ticks()
                self._settler.settle(event, sequence, True, now, now)
                continue
            if not _BATCHED & set(kinds):
                frames.append(InFlightFrame([(event, sequence)]))
                continue
            key = self._catalogue[event.event_type].key if self._by_symbol else None
            group = (event.event_type, getattr(event.payload, key) if key else "")
            if group not in groups:
                groups[group] = InFlightFrame([])
                frames.append(groups[group])
            groups[group].events.append((event, sequence))
        return frames

    def _send(self, frame: InFlightFrame, stopped: Callable[[], bool]) -> None:
        """Write a frame to the ring; an event that cannot be sent becomes a dead letter."""
        number = self._window.next_number()
        try:
            data = self._codec.frame(number, [event for event, _ in frame.events])
        except (OverflowError, TypeError, ValueError) as error:
            self._send_alone(frame, str(error), stopped)
            return
        if len(data) > MAX_FRAME_BYTES:
            reason = f"{len(data):,} bytes; at most {MAX_FRAME_BYTES:,} are allowed"
            self._send_alone(frame, reason, stopped)
            return
        child = self._window.register(number, frame)
        while child is not None and not child.to_child.push(data, _POLL_S):
            child.to_child.wake()
            if stopped() or self._window.child is not child:
                return  # registered: it is resent or settled with the other frames

    def _send_alone(self, frame: InFlightFrame, reason: str, stopped: Callable[[], bool]) -> None:
        """Send each event of a batch alone; a single event becomes a dead letter."""
        if len(frame.events) > 1:
            for each in frame.events:
                self._send(InFlightFrame([each]), stopped)
            return
        event, sequence = frame.events[0]
        self._settler.add_dead_letter(event, sequence, f"cannot be sent to its process: {reason}")
