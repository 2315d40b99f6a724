"""What is under way between a lane and its process: frames sent, and frames to send again.

The window keeps a few milliseconds of work under way, measured by what handling took so far: enough
to keep the process busy, little enough that the lane's policy still acts on what waits.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque

import msgspec

from qts.events.event import Event
from qts.events.process.child import LaneChild

_UNDER_WAY_NS = 5_000_000
_SHARE = 0.1  # of the newest event in the mean


class InFlightFrame(msgspec.Struct):
    """A frame under way: one event, or one batch."""

    events: list[tuple[Event, int]]  # and its sequence


class InFlightWindow:
    """Shared by the thread that feeds and the one that reads; also says which process is there."""

    def __init__(self, batch: int, threads: int) -> None:
        self.batch = batch
        self._least = 2 * threads
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._flying: dict[int, InFlightFrame] = {}
        self._again: deque[InFlightFrame] = deque()
        self._under_way = 0  # events
        self._mean_ns = 0.0
        self._over = False
        self.running: LaneChild | None = None

    # --- the feeding thread ---------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Whether there is a process, and room or something to send again."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._may_feed(), seconds)
            return not self._over and self._may_feed()

    def next_again(self) -> InFlightFrame | None:
        with self._changed:
            return self._again.popleft() if self._again else None

    def taken(self, count: int) -> None:
        with self._changed:
            self._under_way += count

    def number(self) -> int:
        return next(self._numbers)

    def sent(self, number: int, frame: InFlightFrame) -> LaneChild | None:
        """Before it is sent: to whom; None: it waits for the next process."""
        with self._changed:
            if self.running is None:
                self._again.append(frame)
            else:
                self._flying[number] = frame
            return self.running

    # --- the reading thread ---------------------------------------------------------------------

    def done(self, number: int, took_ns: int) -> InFlightFrame:
        with self._changed:
            frame = self._flying.pop(number)
            each = took_ns / len(frame.events)
            self._mean_ns += (each - self._mean_ns) * (_SHARE if self._mean_ns else 1)
            return frame

    def settled(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def began(self, running: LaneChild) -> None:
        with self._changed:
            self.running = running
            self._changed.notify_all()

    def died(self) -> dict[int, InFlightFrame]:
        """All that was under way, oldest first; the caller says what goes `again`."""
        with self._changed:
            self.running = None
            flying, self._flying = self._flying, {}
        return dict(sorted(flying.items()))

    def again(self, frames: list[InFlightFrame]) -> None:
        """Before all that waits: it was taken before it."""
        with self._changed:
            self._again.extendleft(reversed(frames))
            self._changed.notify_all()

    # --- any thread -----------------------------------------------------------------------------

    def under_way(self) -> tuple[LaneChild | None, dict[int, InFlightFrame]]:
        with self._changed:
            return self.running, dict(self._flying)

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def room(self) -> int:
        """How many more events may leave the lane."""
        soon = _UNDER_WAY_NS / self._mean_ns if self._mean_ns else 0
        return int(max(self._least, min(2 * self.batch, soon))) - self._under_way

    def _may_feed(self) -> bool:
        return self.running is not None and (bool(self._again) or self.room > 0)
