"""Progress of a run: a line each second, and the reaction to signals.

running ── done ──────────────▶ report
   │ first signal                 ▲
   ▼                              │
draining ── done, 60 s, or second signal
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TextIO, TypedDict

DRAIN_SECONDS = 60.0
_POLL_SECONDS = 0.05  # latency of a signal
_ABORT_SECONDS = 5.0


class RunSnapshot(TypedDict):
    """Figures of a run so far; `depths` counts the messages that wait before each stage."""

    produced: int
    processed: int
    delivered: int
    depths: dict[str, int]
    latency_us: dict[str, float]  # p50 and p99 of the last second, total; empty: none measured


class RouterRun(Protocol):
    """A started run."""

    def snapshot(self) -> RunSnapshot: ...
    def stop(self) -> None: ...
    def abort(self) -> None: ...
    def wait(self, timeout: float) -> bool: ...


class ProgressLine:
    """Writes snapshots: on a terminal in place, elsewhere one per line."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = self._last = clock()
        self._delivered = 0
        self._in_place = stream.isatty()

    def show(self, snapshot: RunSnapshot) -> None:
        now = self._clock()
        span, self._last = now - self._last, now
        fresh, self._delivered = snapshot["delivered"] - self._delivered, snapshot["delivered"]
        line = _line(snapshot, now - self._started, fresh / span if span > 0 else 0.0)
        if self._in_place:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[2K{line[: columns - 1]}")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def note(self, text: str) -> None:
        """Write a separate line."""
        self._stream.write(f"\r\x1b[2K{text}\n" if self._in_place else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Keep the last line on the terminal."""
        if self._in_place:
            self._stream.write("\n")
            self._stream.flush()


def watch_run(run: RouterRun, live: ProgressLine) -> None:
    """Show a started run to its end; the first SIGINT or SIGTERM stops it, a second aborts it."""
    signals: list[int] = []
    with _recorded(signals):
        next_line, deadline = time.monotonic() + 1.0, None
        while not run.wait(_POLL_SECONDS):
            now = time.monotonic()
            if signals and deadline is None:
                run.stop()
                deadline = now + DRAIN_SECONDS
                live.note("stopping: delivering messages in flight; a second signal aborts")
            if len(signals) > 1 or (deadline is not None and now > deadline):
                run.abort()
                run.wait(_ABORT_SECONDS)
                break
            if now >= next_line:
                live.show(run.snapshot())
                next_line += 1.0
    live.close()


@contextmanager
def _recorded(signals: list[int]) -> Iterator[None]:
    """Record signals in a list; the loop acts on them, outside of the handler."""

    def record(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(snapshot: RunSnapshot, seconds: float, rate: float) -> str:
    depths = " ".join(f"{name} {count:,}" for name, count in snapshot["depths"].items())
    spans = " ".join(f"{name} {us:.2f}" for name, us in snapshot["latency_us"].items())
    parts = [
        f"{seconds:5.0f} s",
        f"{rate / 1e6:.2f} M/s",
        f"produced {snapshot['produced']:,}",
        f"processed {snapshot['processed']:,}",
        f"delivered {snapshot['delivered']:,}",
        f"waiting: {depths}" if depths else "",
        f"us: {spans}" if spans else "",
    ]
    return "  ".join(part for part in parts if part)
