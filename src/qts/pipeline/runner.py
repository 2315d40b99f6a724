"""A strategy running in its lane: ticks arrive on one thread, signals leave on the event loop.

    tick ─▶ inbox ─▶ STRATEGY_EVALUATE (P2, at most one queued) ─▶ on_tick … evaluate ─▶ signals

One lane worker at a time calls `run_pending`; a second one returns at once and the first wakes the
strategy again. A call that raises, or returns what is no signal, is logged and the next tick is
handled. A strategy is disabled after 20 such calls in a row, or when a call does not return; a
paused lane is not counted as such a call.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from qts import telemetry
from qts.domain import Tick
from qts.pipeline.decision_journal import Entry, ParamsEntry, StrategyCallEntry
from qts.pipeline.strategy_call import CallError, call_strategy
from qts.strategies import Signal, Strategy, View

log = telemetry.logger("pipeline")
_ERRORS = telemetry.counter("qts_strategy_errors_total", "errors a strategy raised", ("strategy",))
_DROPPED = telemetry.counter(
    "qts_strategy_ticks_dropped_total", "ticks a strategy was too slow for", ("strategy",)
)

INBOX_CAPACITY = 10_000
MAX_ERRORS_IN_A_ROW = 20
CALL_TIMEOUT_S = 10.0
REORDER_WINDOW_S = 5.0  # a tick older than that means the clock was set back
ERROR_LOG_INTERVAL_S = 10.0


class RunnerHooks(NamedTuple):
    """What a runner needs of the run; `record` journals its calls, None without a journal."""

    view: Callable[[], View]
    wake: Callable[[str], object]
    deliver: Callable[[StrategyRunner, list[Signal]], None]
    loop: asyncio.AbstractEventLoop
    record: Callable[[Entry], None] | None


class StrategyRunner:
    """Calls one strategy; `stopped` says why it is no longer called."""

    def __init__(self, strategy: Strategy[Any], hooks: RunnerHooks) -> None:
        self.strategy = strategy
        self.errors = self.dropped = self.signals = 0
        self.stopped = ""
        self._view, self._wake, self._deliver, self._loop, self._record = hooks
        self._inbox: deque[Tick] = deque(maxlen=INBOX_CAPACITY)
        self._evaluations: deque[asyncio.Future[list[Signal]]] = deque()
        self._latest: dict[str, float] = {}  # time of the last tick handed over, by symbol
        self._running = threading.Lock()
        self._missed = False  # a call came while another was running
        self._call_since_s: float | None = None
        self._params: deque[msgspec.Struct] = deque()
        self._errors_in_a_row = 0
        self._has_on_tick = type(strategy).on_tick is not Strategy.on_tick

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        return self.strategy.key

    def tick(self, tick: Tick) -> None:
        """Queue a tick, from any thread; a full inbox drops its oldest."""
        if not self._has_on_tick or self.stopped or not self._wants(tick.symbol):
            return
        if len(self._inbox) == INBOX_CAPACITY:
            self.dropped += 1
            _DROPPED.labels(self.key).inc()
        self._inbox.append(tick)
        self._wake(self.key)

    def _wants(self, symbol: str) -> bool:
        try:
            return self.strategy.wants(symbol)
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            self._report(error)
            return False

    async def evaluate(self) -> list[Signal]:
        """Return its signals for this cycle; call on the loop. A disabled strategy has none."""
        if self.stopped:
            return []
        pending: asyncio.Future[list[Signal]] = self._loop.create_future()
        self._evaluations.append(pending)
        self._wake(self.key)
        try:
            return await self._result_of(pending)
        finally:
            pending.cancel()

    async def _result_of(self, pending: asyncio.Future[list[Signal]]) -> list[Signal]:
        """Wait for the evaluation; nothing if no worker called the strategy in time."""
        since_s = monotonic()
        while True:
            while (left_s := since_s + CALL_TIMEOUT_S - monotonic()) > 0:
                await asyncio.wait({pending}, timeout=left_s)
                if pending.done():
                    return pending.result()
            call_since_s = self._call_since_s
            if call_since_s is None:
                return []
            if call_since_s <= since_s:
                self._disable(f"a call did not return within {CALL_TIMEOUT_S:g} s")
                return []
            since_s = call_since_s  # the lane was paused and has resumed since

    @property
    def params(self) -> msgspec.Struct:
        """The parameters of its next call."""
        return self._params[-1] if self._params else self.strategy.params

    def set_params(self, params: msgspec.Struct) -> None:
        """Set parameters from its next call on."""
        self._params.append(params)

    def run_pending(self) -> None:
        """Handle what waits; called by a lane worker. What arrives meanwhile wakes it again."""
        self._missed = True
        if not self._running.acquire(blocking=False):
            return
        try:
            self._missed = False
            self._call_since_s = monotonic()
            self._handle_pending()
        finally:
            self._call_since_s = None
            self._running.release()
        if self._missed:
            self._wake(self.key)

    def _handle_pending(self) -> None:
        """Handle all queued ticks, then the pending evaluations."""
        self._take_params()
        view = self._view()
        ticks: list[Tick] = []
        found: list[Signal] = []
        evaluated: list[tuple[Signal, ...]] = []
        while not self.stopped and (tick := self._next_tick()):
            ticks.append(tick)
            found += self._call(self.strategy.on_tick, tick, view)
        if found:
            self.signals += len(found)
            self._loop.call_soon_threadsafe(self._deliver, self, found)
        while self._evaluations:
            pending = self._evaluations.popleft()
            if pending.done():
                continue
            signals = self._call(self.strategy.evaluate, view)
            self.signals += len(signals)
            evaluated.append(tuple(signals))
            self._loop.call_soon_threadsafe(_resolve, pending, signals)
        if self._record is not None and (ticks or evaluated):
            calls = (tuple(ticks), tuple(found), tuple(evaluated))
            self._record(StrategyCallEntry(self.key, view.version, view.now, *calls))

    def _next_tick(self) -> Tick | None:
        """Return the next tick; one that two lane workers delivered out of order is skipped."""
        while self._inbox:
            tick = self._inbox.popleft()
            behind_s = self._latest.get(tick.symbol, 0.0) - tick.at
            if not 0 < behind_s < REORDER_WINDOW_S:
                self._latest[tick.symbol] = tick.at
                return tick
        return None

    def _take_params(self) -> tuple[dict[str, Any], ...]:
        """Apply parameters set since the last call and return them."""
        taken = []
        while self._params:
            params = self._params[0]
            try:
                self.strategy.set_params(params)
            except Exception as error:  # noqa: BLE001 - a strategy may raise anything
                self._report(error)
                continue
            finally:
                self._params.popleft()
            taken.append(plain := msgspec.to_builtins(params))
            if self._record is not None:
                self._record(ParamsEntry(self.key, plain))
        return tuple(taken)

    def _call(self, method: Callable[..., Iterable[Signal]], *arguments: Any) -> list[Signal]:
        signals, error = call_strategy(method, *arguments)
        self._count_call(error)
        return signals

    def _count_call(self, error: CallError | None) -> None:
        if error is None:
            self._errors_in_a_row = 0
        else:
            self._failed(error)

    def _report(self, error: Exception) -> None:
        """Count an error outside of a call, from any thread."""
        failed = CallError.raised(error, self.strategy)
        self._loop.call_soon_threadsafe(self._failed, failed)

    def _failed(self, error: CallError) -> None:
        self.errors += 1
        self._errors_in_a_row += 1
        _ERRORS.labels(self.key).inc()
        if due := telemetry.log_every(ERROR_LOG_INTERVAL_S, f"{error.event} {self.key}"):
            log.error(error.event, strategy=self.key, error=error.error, where=error.where, **due)
        if self._errors_in_a_row >= MAX_ERRORS_IN_A_ROW and not self.stopped:
            self._disable(f"{self._errors_in_a_row} errors in a row: {error}")

    def _disable(self, reason: str) -> None:
        self.stopped = reason
        log.error("strategy disabled", strategy=self.key, reason=reason)


def _resolve(pending: asyncio.Future[list[Signal]], signals: list[Signal]) -> None:
    if not pending.done():
        pending.set_result(signals)
