"""The way from a lane to its process: takes events, makes frames, writes them to the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from qts.events.catalogue import Catalogue
from qts.events.event import Event
from qts.events.lanes import Lanes
from qts.events.process import protocol
from qts.events.process.in_flight import InFlightFrame, InFlightWindow

_LOOK_S = 0.05
_BATCHED = {"batch", "rows"}


class FrameSettler(Protocol):
    """Who says what became of an event that is not sent."""

    def settle(
        self, event: Event, sequence: int, handled: bool, began: int, ended: int
    ) -> None: ...
    def give_up(self, event: Event, sequence: int, why: str) -> None: ...


class LaneFeeder:
    """Runs on a thread of its own."""

    def __init__(
        self,
        lane: int,
        lanes: Lanes,
        catalogue: Catalogue,
        by_symbol: bool,
        flight: InFlightWindow,
        settler: FrameSettler,
    ) -> None:
        self._lane = lane
        self._lanes = lanes
        self._catalogue = catalogue
        self._by_symbol = by_symbol
        self._flight = flight
        self._settler = settler
        self._codec = protocol.FrameCodec(catalogue)
        self._kinds: dict[str, list[str]] = {}
        self._batches = False

    def run(self, kinds: dict[str, list[str]], over: Callable[[], bool]) -> None:
        """`kinds`: of the handlers of each type."""
        self._kinds = kinds
        self._batches = any(_BATCHED & set(each) for each in kinds.values())
        while not over():
            for frame in self._next():
                self._send(frame, over)
            if running := self._flight.running:
                running.inbox.wake()

    def _next(self) -> list[InFlightFrame]:
        if not self._flight.wait(_LOOK_S):
            return []
        if again := self._flight.next_again():
            return [again]
        # A batch is not cut because there is room for a part of it.
        most = self._flight.batch if self._batches else min(self._flight.room, self._flight.batch)
        taken = self._lanes.take(self._lane, most, _LOOK_S)
        self._flight.taken(len(taken))
        return self._framed(taken)

    def _framed(self, taken: list[tuple[Event, int]]) -> list[InFlightFrame]:
        frames: list[InFlightFrame] = []
        groups: dict[tuple[str, str], InFlightFrame] = {}
        for event, sequence in taken:
            kinds = self._kinds[event.event_type]
            if not kinds:  # nobody wants it
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

    def _send(self, frame: InFlightFrame, over: Callable[[], bool]) -> None:
        """Into the ring; what cannot go there is given up."""
        number = self._flight.number()
        try:
            data = self._codec.frame(number, [event for event, _ in frame.events])
        except (OverflowError, TypeError, ValueError) as error:
            self._too_much(frame, str(error), over)
            return
        if len(data) > protocol.LARGEST:
            why = f"it has {len(data):,} bytes, at most {protocol.LARGEST:,} are allowed"
            self._too_much(frame, why, over)
            return
        running = self._flight.sent(number, frame)
        while running is not None and not running.inbox.push(data, _LOOK_S):
            running.inbox.wake()
            if over() or self._flight.running is not running:
                return  # it is among those under way, and goes where they go

    def _too_much(self, frame: InFlightFrame, why: str, over: Callable[[], bool]) -> None:
        """Of a batch each goes alone, so that only those die that cannot go at all."""
        if len(frame.events) > 1:
            for each in frame.events:
                self._send(InFlightFrame([each]), over)
            return
        event, sequence = frame.events[0]
        self._settler.give_up(event, sequence, f"it cannot be sent to its process: {why}")
