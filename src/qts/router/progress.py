"""A run as it goes: a line each second, and what a signal does to it.

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
_LOOK_SECONDS = 0.05  # how soon a signal is noticed
_ABORT_SECONDS = 5.0


class RunSnapshot(TypedDict):
    """Numbers of a run so far; depths are messages waiting before each stage."""

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
    """Writes snapshots: over each other on a terminal, one below the other elsewhere."""

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
        """A line of its own."""
        self._stream.write(f"\r\x1b[2K{text}\n" if self._in_place else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the last line standing."""
        if self._in_place:
            self._stream.write("\n")
            self._stream.flush()


def watch_run(run: RouterRun, live: ProgressLine) -> None:
    """Show a started run to its end; the first SIGINT or SIGTERM stops it, a second ends it."""
    asked: list[int] = []
    with _handled(asked):
        next_line, deadline = time.monotonic() + 1.0, None
        while not run.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if asked and deadline is None:
                run.stop()
                deadline = now + DRAIN_SECONDS
                live.note(
                    "stopping: what is on its way is being delivered; once more ends it at once"
                )
            if len(asked) > 1 or (deadline is not None and now > deadline):
                run.abort()
                run.wait(_ABORT_SECONDS)
                break
            if now >= next_line:
                live.show(run.snapshot())
                next_line += 1.0
    live.close()


@contextmanager
def _handled(asked: list[int]) -> Iterator[None]:
    """Signals are only noted: the loop acts on them, outside of the handler."""

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
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
