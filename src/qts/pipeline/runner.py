"""A strategy running in its lane: ticks arrive on one thread, signals leave on the event loop.

    fill, order ─┐
    bar, timer ──┤
    tick ────────┴▶ inbox ─▶ STRATEGY_EVALUATE (P2, at most one queued)
                                 └─▶ on_fill, on_order, on_bar, on_tick … evaluate ─▶ signals

One lane worker at a time calls `run_pending`; a second one returns at once and the first wakes the
strategy again. A call that raises, or returns what is no signal, is logged and the next tick is
handled. A strategy is disabled after 20 such calls in a row, or when a call does not return; a
paused lane is not counted as such a call.

Cancels and replacements of orders leave with the signals.

A strategy with a warm-up is called with a symbol once each of its series has so many bars, and
without a symbol (on_start, on_timer, evaluate) once one symbol has: it never decides on half an
average.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic, time_ns
from typing import Any

import msgspec
from msgspec.structs import astuple

from qts import telemetry
from qts.domain import Bar, Clock, RefusedError, Tick
from qts.pipeline.decision_journal import ParamsEntry, StrategyCallEntry
from qts.pipeline.runner_hooks import RunnerHooks, StateGate, Then, TickInbox, resolve, trace_call
from qts.pipeline.strategy_call import (
    BarInput,
    CallError,
    Instructions,
    MarketCalls,
    Moment,
    StrategyUpdate,
    call_strategy,
    call_with_update,
    has_method,
    takes_updates,
)
from qts.strategies import (
    Cancel,
    Instruction,
    Strategy,
    View,
    WarmUpCount,
    bar_subscription,
)

log = telemetry.logger("pipeline")
_ERRORS = telemetry.counter("qts_strategy_errors_total", "errors a strategy raised", ("strategy",))
_DROPPED = telemetry.counter(
    "qts_strategy_ticks_dropped_total", "ticks a strategy was too slow for", ("strategy",)
)

MAX_ERRORS_IN_A_ROW = 20
CALL_TIMEOUT_S = 10.0
ERROR_LOG_INTERVAL_S = 10.0


class StrategyRunner:
    """Calls one strategy; `stopped` says why it is no longer called."""

    def __init__(self, strategy: Strategy[Any], hooks: RunnerHooks) -> None:
        self.strategy = strategy
        self.errors = self.dropped = self.signals = 0
        self.stopped = ""
        self.disabled = asyncio.Event()  # set on the event loop, once `stopped` has a reason
        self._view, self._wake, self._deliver, self._loop, self._record, _ = hooks
        self._inbox = TickInbox()
        self._updates: deque[tuple[StrategyUpdate, Then | None]] = deque()  # none is dropped
        self._then: list[Then] = []  # of the updates that are being handled
        self._evaluations: deque[asyncio.Future[list[Instruction]]] = deque()
        self._running = threading.Lock()
        self._missed = False  # a call came while another was running
        self._call_since_s: float | None = None
        self._params: deque[msgspec.Struct] = deque()
        self._errors_in_a_row = 0
        self._has_on_tick = has_method(strategy, "on_tick")
        self._has_on_bar = has_method(strategy, "on_bar")
        self._takes_updates = takes_updates(strategy)
        self._is_traced = telemetry.tracing()
        self._gate = StateGate(strategy, hooks)
        self.keeps_state = self._gate.keeps_state
        self._moments: deque[Moment] = deque()
        if has_method(strategy, "on_start"):
            self._moments.append("on_start")
        self._ended: asyncio.Future[None] | None = None  # after on_stop
        self.subscription = bar_subscription(strategy)
        self._market = MarketCalls(strategy)
        self._bars: deque[BarInput] = deque()  # none is dropped
        self.warm_up = WarmUpCount(self.subscription)
        self.is_warming_up = self.subscription.warm_up > 0

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        return self.strategy.key

    def tick(self, tick: Tick) -> None:
        """Queue a tick, from any thread; a full inbox drops its oldest."""
        if not self._has_on_tick or self.stopped or not self._wants(tick.symbol):
            return
        if not self.warm_up.is_warm(tick.symbol):
            return
        if self._inbox.is_full:
            self.dropped += 1
            _DROPPED.labels(self.key).inc()
        self._inbox.add(tick)
        self._wake(self.key)

    def update(self, update: StrategyUpdate, then: Then | None = None) -> None:
        """Queue what happened to one of its orders, from any thread.

        `then` runs on the event loop after the call, what it returned, and its state are kept.
        """
        if self._takes_updates and not self.stopped:
            self._updates.append((update, then))
            self._wake(self.key)
        elif then is not None:
            self._loop.call_soon_threadsafe(then)

    def add_bars(
        self, bars: Iterable[tuple[Bar, tuple[float, ...]]], *, is_new: bool = True
    ) -> None:
        """Queue closed bars with the values of its indicators; history is not new."""
        for bar, values in bars:
            is_ready = self.warm_up.add(bar)
            self._bars.append(BarInput(bar, values, is_new and self._has_on_bar and is_ready))
        if self.warm_up.warm:
            self.is_warming_up = False
        if self._bars and not self.stopped:
            self._wake(self.key)

    async def run_timer(self, clock: Clock) -> None:
        """Queue on_timer at each multiple of `timer_s`, if there is one."""
        while interval_s := self.strategy.timer_s:
            now = clock.now().timestamp()
            await clock.sleep((now // interval_s + 1) * interval_s - now)
            if not self.stopped and "on_timer" not in self._moments:
                self._moments.append("on_timer")
                self._wake(self.key)

    async def close(self, timeout_s: float) -> None:
        """Call on_stop, after all that waits; at most so long."""
        if self.stopped or self.is_warming_up or not has_method(self.strategy, "on_stop"):
            return
        self._ended = self._loop.create_future()
        self._moments.append("on_stop")
        self._wake(self.key)
        await asyncio.wait({self._ended}, timeout=timeout_s)

    def _wants(self, symbol: str) -> bool:
        try:
            return self.strategy.wants(symbol)
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            self._report(error)
            return False

    async def evaluate(self) -> list[Instruction]:
        """Return its signals for this cycle; call on the loop.

        A strategy that is disabled or warms up has none.
        """
        if self.stopped or self.is_warming_up:
            return []
        pending: asyncio.Future[list[Instruction]] = self._loop.create_future()
        self._evaluations.append(pending)
        self._wake(self.key)
        try:
            return await self._result_of(pending)
        finally:
            pending.cancel()

    async def _result_of(self, pending: asyncio.Future[list[Instruction]]) -> list[Instruction]:
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
            try:
                self._gate.flush()
            except RefusedError as error:
                self._disable(str(error))
        finally:
            self._call_since_s = None
            self._running.release()
        if self._missed:
            self._wake(self.key)

    def _handle_pending(self) -> None:
        """Handle queued moments and updates, bars and ticks, then the pending evaluations."""
        self._take_params()
        self._handle_moments()
        updates = self._take_updates()
        ticks, bars = self._take_ticks(), self._take_bars()
        view = self._market.view_of(self._view())
        followed = self._handle_updates(updates, view)
        handled: list[BarInput | Tick] = []
        found: list[Instruction] = []
        began_ns = time_ns() if self._is_traced else 0
        for item, result in self._market.run(bars, ticks, view):
            handled.append(item)
            if result is None:
                continue
            self._count_call(result.error)
            found += result.instructions
            if began_ns:
                trace_call(self.key, result.instructions, began_ns, item)
                began_ns = time_ns()
            if self.stopped:
                break
        if found:
            self.signals += len(found)
            self._gate.pass_on(partial(self._deliver, self, found))
        evaluated = self._handle_evaluations(view)
        if self._record is not None and (updates or handled or evaluated):
            seen = tuple(astuple(each) for each in handled if isinstance(each, Tick))
            bars = tuple(each for each in handled if isinstance(each, BarInput))
            calls = (seen, tuple(found), tuple(evaluated), updates, tuple(followed), bars)
            self._record(StrategyCallEntry(self.key, view.version, view.now, *calls))

    def _handle_evaluations(self, view: View) -> list[Instructions]:
        evaluated: list[Instructions] = []
        while self._evaluations:
            pending = self._evaluations.popleft()
            if pending.done():
                continue
            signals = self._call(self.strategy.evaluate, view)
            self.signals += len(signals)
            evaluated.append(tuple(signals))
            self._gate.pass_on(partial(resolve, pending, signals))
        return evaluated

    def _handle_moments(self) -> None:
        while (moment := self._next_moment()) is not None:
            history = self._take_history()
            self._market.add(history)
            view = self._market.view_of(self._view())
            found = self._call(getattr(self.strategy, moment), view)
            if self._record is not None:  # before `close` returns: then the journal is closed too
                calls: tuple[Any, ...] = ((), tuple(found), (), (), (), history, moment)
                self._record(StrategyCallEntry(self.key, view.version, view.now, *calls))
            self._gate.pass_on(partial(self._moment_passed, moment, found))

    def _next_moment(self) -> Moment | None:
        if self.stopped or self.is_warming_up or not self._moments:
            return None
        if self._moments[0] == "on_stop" and (self._inbox or self._bars or self._updates):
            return None  # what waits comes first
        return self._moments.popleft()

    def _moment_passed(self, moment: Moment, found: list[Instruction]) -> None:
        """Deliver what a moment returned, on the loop; of on_stop the cancels alone."""
        if moment == "on_stop":
            if cancels := [each for each in found if isinstance(each, Cancel)]:
                self._deliver(self, cancels)
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)
        elif found:
            self.signals += len(found)
            self._deliver(self, found)

    def _take_ticks(self) -> tuple[Tick, ...]:
        if self.stopped:
            self._inbox.clear()
        return self._inbox.take()

    def _take_history(self) -> tuple[BarInput, ...]:
        """Return the history in front of the first new bar."""
        taken = []
        while self._bars and not self._bars[0].is_new:
            taken.append(self._bars.popleft())
        return tuple(taken)

    def _take_bars(self) -> tuple[BarInput, ...]:
        if self.stopped:
            self._bars.clear()
        return tuple(self._bars.popleft() for _ in range(len(self._bars)))

    def _take_updates(self) -> tuple[StrategyUpdate, ...]:
        """Return the queued updates, before the view that they are handled with is taken."""
        taken = [self._updates.popleft() for _ in range(len(self._updates))]
        self._then += [then for _, then in taken if then is not None]
        return () if self.stopped else tuple(update for update, _ in taken)

    def _handle_updates(self, updates: Iterable[StrategyUpdate], view: View) -> list[Instruction]:
        found: list[Instruction] = []
        for update in updates:
            began_ns = time_ns()
            for signals, error in call_with_update(self.strategy, update, view):
                self._count_call(error)
                found += signals
                if self._is_traced:
                    trace_call(self.key, signals, began_ns)
        if found:
            self.signals += len(found)
            self._gate.pass_on(partial(self._deliver, self, found, after_order=True))
        settled, self._then = self._then, []
        for each in settled:  # after what the updates led to
            self._gate.pass_on(each)
        return found

    def restore_state(self, data: bytes) -> None:
        """Continue with a stored state, before the first call."""
        self.strategy.restore_state(data)
        self._gate.restored()

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

    def _call(
        self, method: Callable[..., Iterable[Instruction] | None], *arguments: Any
    ) -> list[Instruction]:
        began_ns = time_ns()
        signals, error = call_strategy(method, *arguments)
        self._count_call(error)
        if self._is_traced:
            trace_call(self.key, signals, began_ns)
        return list(signals)

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
        self._loop.call_soon_threadsafe(self.disabled.set)
        log.error("strategy disabled", strategy=self.key, reason=reason)
