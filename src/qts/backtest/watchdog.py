"""Watchdog of a backtest: a strategy that does not return ends it with an error.

    each second   no call returned and no event was played for the limit ─▶ OperationError
    5 s later     still nothing: compiled code that never returns to Python ─▶ with `ends_process`,
                  the process ends with exit code 1 and a traceback on stderr

The first works by a signal, which only the main thread of a process gets; elsewhere nothing is
watched. Time spent on reading the tape does not count.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from qts.backtest.engine import BacktestEngine
from qts.domain import OperationError
from qts.pipeline import CallError

CHECK_S = 1.0
GRACE_S = 5.0


class _HungError(BaseException):
    """Raised inside a call that does not return: no `except Exception` of a strategy stops it."""


class Watchdog:
    """Watches the calls of an engine while it is entered, in the main thread."""

    def __init__(self, engine: BacktestEngine, *, ends_process: bool) -> None:
        self._engine = engine
        self._limit_s = engine.config.call_limit_s
        self._is_playing = False
        self._progress: tuple[float, ...] = ()
        self._since = self._entered = 0.0
        self._handler: Any = None
        self._timer = (0.0, 0.0)  # of somebody else
        self._works = threading.current_thread() is threading.main_thread()
        self._ends_process = ends_process and self._works

    def __enter__(self) -> Self:
        if self._works:
            self._handler = signal.signal(signal.SIGALRM, self._check)
            self._timer = signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)
            self._entered = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._works:
            left_s = max(0.001, self._timer[0] - (time.monotonic() - self._entered))
            signal.setitimer(signal.ITIMER_REAL, left_s if self._timer[0] else 0, self._timer[1])
            signal.signal(signal.SIGALRM, self._handler)
        if isinstance(error, _HungError):
            raise self._described(error) from None

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Count time until the block ends; outside of one, nothing is watched."""
        self._note()
        self._is_playing = True
        try:
            yield
        finally:
            self._is_playing = False
            if self._ends_process:
                faulthandler.cancel_dump_traceback_later()

    def _note(self) -> None:
        self._progress, self._since = self._now(), time.monotonic()
        if self._ends_process and sys.__stderr__ is not None:
            seconds = self._limit_s + GRACE_S
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    def _now(self) -> tuple[float, ...]:
        return (self._engine.clock.at, *(run.progress for run in self._engine.runs))

    def _check(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_playing:
            return
        if self._progress != self._now():
            self._note()
        elif time.monotonic() - self._since >= self._limit_s:
            raise _HungError

    def _described(self, error: _HungError) -> OperationError:
        called = [run for run in self._engine.runs if run.calls > run.returned]
        run = (called or self._engine.runs)[0]
        where = CallError.raised(error, run.strategy).where
        what = f"strategy {run.key} did not return" if called else "the backtest made no progress"
        return OperationError(
            f"{what} within {self._limit_s:g} s{f' at {where}' if where else ''}; ended. If it is"
            " only slow, pass a larger --call-limit"
        )
