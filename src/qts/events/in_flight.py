"""Process of a lane as the engine holds it, and the frames in flight to it.

The window holds a few milliseconds of work, estimated from past handling times: enough to keep the
process busy, little enough that the lane's overflow policy still applies to waiting events.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import signal
import threading
import time
from collections import deque
from multiprocessing.context import SpawnProcess

import msgspec

from qts.domain import OperationError
from qts.events.catalogue import Catalogue, Event
from qts.events.lane_child import (
    FrameCodec,
    LaneChildFailed,
    LaneChildReady,
    LaneChildSetup,
    Memory,
    open_ring,
    run_child,
    shared_memory,
)

_START_TIMEOUT_S = 60.0
_POLL_S = 0.05


class LaneChild:
    """Process with its two rings; spawned, because the engine has threads."""

    def __init__(self, process: SpawnProcess, codec: FrameCodec, rings: list[Memory]) -> None:
        self._process = process
        self._began = time.monotonic()
        self.codec = codec
        self.to_child, self.from_child = (open_ring(each) for each in rings)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    def set_mode(self, paused: bool, critical_only: bool) -> None:
        self.to_child.flag = critical_only
        self.to_child.pause(paused)

    def exit_reason(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self._process.close()


def start_child(
    setup: LaneChildSetup, catalogue: Catalogue, stop: threading.Event
) -> tuple[LaneChild, dict[str, list[str]]]:
    """Start a process and wait for its handlers; return it with their kinds by type.

    The process is killed when the calling thread ends. Raises OperationError.
    """
    rings = [shared_memory(), shared_memory()]
    process = multiprocessing.get_context("spawn").Process(
        target=run_child, args=(setup, *rings), name=f"qts-events-p{setup.lane}", daemon=True
    )
    lane = f"P{setup.lane}'s process"
    try:
        process.start()
    except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())  # some texts have several lines
        raise OperationError(f"{lane} could not be started: {reason}") from None
    child = LaneChild(process, FrameCodec(catalogue), rings)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not stop.is_set() and time.monotonic() < deadline:
        alive = child.is_alive()
        data = child.from_child.pop(_POLL_S)
        if data is None and not alive:
            reason = f"it {child.exit_reason()} before it was ready"
            child.close()
            raise OperationError(
                f"{lane} did not start: {reason}; "
                'start the engine under `if __name__ == "__main__"`'
            )
        record = child.codec.read_record(data) if data is not None else None
        if isinstance(record, LaneChildReady):
            return child, record.kinds
        if isinstance(record, LaneChildFailed):
            child.kill()
            child.close()
            raise OperationError(f"{lane} could not create its handlers: {record.reason}")
    child.kill()
    child.close()
    raise OperationError(f"{lane} was not ready after {_START_TIMEOUT_S:g} s")


_TARGET_NS = 5_000_000
_MEAN_WEIGHT = 0.1  # of the newest handling time


class InFlightFrame(msgspec.Struct):
    """One event or one batch, with the sequence of each event."""

    events: list[tuple[Event, int]]


class InFlightWindow:
    """Window shared by the feeding and the reading thread; also holds the current process."""

    def __init__(self, batch: int, threads: int) -> None:
        self.batch = batch
        self._min_events = 2 * threads
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._frames: dict[int, InFlightFrame] = {}
        self._resend: deque[InFlightFrame] = deque()
        self._events = 0
        self._mean_ns = 0.0
        self._closed = False
        self.child: LaneChild | None = None

    # --- the feeding thread ---------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Wait until a process can take a frame; return whether it can."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_feed(), seconds)
            return not self._closed and self._may_feed()

    def next_resend(self) -> InFlightFrame | None:
        with self._changed:
            return self._resend.popleft() if self._resend else None

    def add_taken(self, count: int) -> None:
        with self._changed:
            self._events += count

    def next_number(self) -> int:
        return next(self._numbers)

    def register(self, number: int, frame: InFlightFrame) -> LaneChild | None:
        """Record a frame before it is sent; return None when it waits for the next process."""
        with self._changed:
            if self.child is None:
                self._resend.append(frame)
            else:
                self._frames[number] = frame
            return self.child

    # --- the reading thread ---------------------------------------------------------------------

    def finish(self, number: int, took_ns: int) -> InFlightFrame:
        with self._changed:
            frame = self._frames.pop(number)
            each = took_ns / len(frame.events)
            self._mean_ns += (each - self._mean_ns) * (_MEAN_WEIGHT if self._mean_ns else 1)
            return frame

    def settle_one(self) -> None:
        with self._changed:
            self._events -= 1
            self._changed.notify_all()

    def attach(self, child: LaneChild) -> None:
        with self._changed:
            self.child = child
            self._changed.notify_all()

    def detach(self) -> dict[int, InFlightFrame]:
        """Remove the dead process and return its frames, oldest first."""
        with self._changed:
            self.child = None
            frames, self._frames = self._frames, {}
        return dict(sorted(frames.items()))

    def resend(self, frames: list[InFlightFrame]) -> None:
        """Send frames to the next process, before any other."""
        with self._changed:
            self._resend.extendleft(reversed(frames))
            self._changed.notify_all()

    # --- any thread -----------------------------------------------------------------------------

    def in_flight(self) -> tuple[LaneChild | None, dict[int, InFlightFrame]]:
        with self._changed:
            return self.child, dict(self._frames)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def capacity(self) -> int:
        """How many more events may leave the lane."""
        target = _TARGET_NS / self._mean_ns if self._mean_ns else 0
        return int(max(self._min_events, min(2 * self.batch, target))) - self._events

    def _may_feed(self) -> bool:
        return self.child is not None and (bool(self._resend) or self.capacity > 0)
