"""A line each second, and what the first and the second signal do to a run."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator

import pytest

from qts.router import ProgressLine, RunSnapshot, progress, watch_run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def snapshot(delivered: int) -> RunSnapshot:
    return {
        "produced": delivered + 5,
        "processed": delivered + 2,
        "delivered": delivered,
        "depths": {"stage1": 3, "strategies": 2},
        "latency_us": {"p50": 0.36, "p99": 18.0},
    }


def ticking() -> Iterator[float]:
    yield from map(float, range(100, 200))


def test_a_pipe_gets_a_plain_line_for_each_snapshot() -> None:
    stream, clock = io.StringIO(), ticking()
    live = ProgressLine(stream, lambda: next(clock))
    live.show(snapshot(2_000_000))
    live.show(snapshot(5_000_000))
    live.close()
    first, second = stream.getvalue().splitlines()
    assert "1 s  2.00 M/s  produced 2,000,005  processed 2,000,002  delivered 2,000,000" in first
    assert "2 s  3.00 M/s" in second
    assert second.endswith("waiting: stage1 3 strategies 2  us: p50 0.36 p99 18.00")
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_one_line_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream, clock = Terminal(), ticking()
    live = ProgressLine(stream, lambda: next(clock))
    live.show(snapshot(1))
    live.show(snapshot(2))
    live.close()
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r\x1b[2K") == 2
    assert all(len(part.strip("\n")) < 40 for part in stream.getvalue().split("\r\x1b[2K"))


class ScriptedRun:
    """Run that gets signals at given polls, and ends by itself, when stopped, or never."""

    def __init__(
        self, signals: dict[int, int], *, ends_at: int = 10**9, drains: bool = True
    ) -> None:
        self.signals, self.ends_at, self.drains = signals, ends_at, drains
        self.polls = 0
        self.calls: list[str] = []

    def snapshot(self) -> RunSnapshot:
        self.calls.append("snapshot")
        return snapshot(self.polls)

    def stop(self) -> None:
        self.calls.append("stop")
        if self.drains:
            self.ends_at = self.polls + 2

    def abort(self) -> None:
        self.calls.append("abort")

    def wait(self, timeout: float) -> bool:
        assert timeout > 0
        self.polls += 1
        if number := self.signals.get(self.polls):
            os.kill(os.getpid(), number)
        return self.polls >= self.ends_at


def watched(run: ScriptedRun) -> str:
    stream = io.StringIO()
    watch_run(run, ProgressLine(stream))
    return stream.getvalue()


def test_a_run_that_ends_by_itself_is_neither_stopped_nor_ended() -> None:
    before = signal.getsignal(signal.SIGINT)
    run = ScriptedRun({}, ends_at=5)
    watched(run)
    assert run.calls == []
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_lets_it_drain(number: int) -> None:
    run = ScriptedRun({3: number})
    assert "a second signal aborts" in watched(run)
    assert run.calls == ["stop"]


def test_the_second_signal_ends_it_even_if_something_is_stuck() -> None:
    run = ScriptedRun({3: signal.SIGTERM, 6: signal.SIGINT}, drains=False)
    watched(run)
    assert run.calls == ["stop", "abort"]


def test_a_drain_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DRAIN_SECONDS", 0.0)
    run = ScriptedRun({3: signal.SIGINT}, drains=False)
    watched(run)
    assert run.calls == ["stop", "abort"]


def test_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    watched(ScriptedRun({1: signal.SIGTERM}))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
