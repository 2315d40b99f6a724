"""Feeder of a lane's process: takes events, forms frames and writes them to the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from qts.events.catalogue import Catalogue
from qts.events.event import Event
from qts.events.lanes import Lanes
from qts.events.process import protocol
from qts.events.process.in_flight import InFlightFrame, InFlightWindow

_POLL_S = 0.05
_BATCHED = {"batch", "rows"}


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
        self._codec = protocol.FrameCodec(catalogue)
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
        taken = self._lanes.take(self._lane, limit, _POLL_S)
        self._window.add_taken(len(taken))
        return self._form_frames(taken)

    def _form_frames(self, taken: list[tuple[Event, int]]) -> list[InFlightFrame]:
        frames: list[InFlightFrame] = []
        groups: dict[tuple[str, str], InFlightFrame] = {}
        for event, sequence in taken:
            kinds = self._kinds[event.event_type]
            if not kinds:  # no handlers
                now = protocol.ticks()
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
        if len(data) > protocol.MAX_FRAME_BYTES:
            reason = f"{len(data):,} bytes; at most {protocol.MAX_FRAME_BYTES:,} are allowed"
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
