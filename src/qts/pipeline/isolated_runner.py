"""A strategy isolated in a process: its computation delays nothing else.

    tick, bar, fill, order ─▶ inbox ─▶ STRATEGY_EVALUATE (P2)
                               └─▶ request ══ socket ══▶ process ══▶ reply ─▶ signals

One request is in flight at a time; what arrives meanwhile waits for the next. A process that ends
is restarted with the `State` of its last reply and the bars it had as history, without what else
its strategy had built up. The strategy is disabled when its process keeps ending, or does not
reply: then the process is killed.

`ProcessPauser` stops these processes (SIGSTOP) while an exit leaves, so that orders do not wait for
a CPU that a strategy computes on. A pause ends after 25 ms whatever became of the exit; further
exits prolong it, up to one second, after which strategies get half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from time import monotonic, time_ns
from typing import Any

import msgspec
from msgspec.structs import astuple

from qts import telemetry
from qts.domain import OrderBook, Tick
from qts.pipeline.decision_journal import RestartEntry, StateEntry, StrategyCallEntry
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.runner_hooks import RunnerHooks, Then, resolve, tick_key, trace_call
from qts.pipeline.strategy_call import (
    LENGTH,
    BarInput,
    CallError,
    Instructions,
    MarketCalls,
    Moment,
    StrategyFailed,
    StrategyHello,
    StrategyReady,
    StrategyReply,
    StrategyRequest,
    StrategyUpdate,
    decode_reply,
    frame,
    has_method,
)
from qts.pipeline.strategy_config import StrategyConfig
from qts.strategies import Instruction, Strategy

_ENDED = telemetry.counter(
    "qts_strategy_processes_ended_total", "processes of a strategy that ended", ("strategy",)
)

MAX_ENDS_IN_A_ROW = 5
STABLE_AFTER_S = 60.0  # a process that lived so long starts the count of ends again
RESTART_BACKOFF_S = 0.2
PAUSE_S = 0.025  # an order has left by then
MAX_PAUSE_S = 1.0
REST_S = 0.5  # after the longest pause

Evaluation = asyncio.Future[list[Instruction]]


class IsolatedRunner(StrategyRunner):
    """Runner whose strategy lives in a process; `run` supervises it until cancelled."""

    def __init__(self, source: str, strategy: Strategy[Any], hooks: RunnerHooks) -> None:
        super().__init__(strategy, hooks)
        self._source = source  # module:Class
        self._keep_state = hooks.keep_state
        self._lock = threading.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._in_flight: tuple[StrategyRequest, Evaluation | None] | None = None
        self._sent_ticks: dict[str, Tick] = {}  # last tick per symbol that the process has
        self._sent_books: dict[str, OrderBook] = {}
        self._sent_inbox = False  # the last request carried ticks
        self._ready = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_state: bytes | None = None  # of its process, or restored

    def __str__(self) -> str:
        return f"{self.key} (isolated)"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def evaluate(self) -> list[Instruction]:
        await self._ready.wait()
        return await super().evaluate()

    def run_pending(self) -> None:
        """Send the next request; called by a lane worker. A reply wakes the strategy again."""
        with self._lock:
            if self._writer is None or self._in_flight is not None or self.stopped:
                return
            self._in_flight = self._next_request()
            if self._in_flight is not None:  # under the lock: never sent to the next process
                self._call_since_s = monotonic()
                self._loop.call_soon_threadsafe(self._send, frame(self._in_flight[0]))

    def pause(self) -> None:
        """Stop its process until `resume`; may be called from any thread."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    # --- requests -------------------------------------------------------------------------------

    def _next_request(self) -> tuple[StrategyRequest, Evaluation | None] | None:
        """Alternate between ticks and evaluations, so that neither waits long."""
        if (moment := self._next_moment()) is not None:
            return self._request((), (self._take_history(), ()), None, moment), None
        while self._evaluations and self._evaluations[0].done():
            self._evaluations.popleft()
        if not self._has_pending:
            return None
        updates = self._take_updates()
        has_market = bool(self._inbox or self._bars)
        self._sent_inbox = has_market and not (self._sent_inbox and self._evaluations)
        market = (self._take_bars(), self._take_ticks()) if self._sent_inbox else ((), ())
        is_evaluated = self._evaluations and not self._sent_inbox
        evaluation = self._evaluations.popleft() if is_evaluated else None
        return self._request(updates, market, evaluation, None), evaluation

    @property
    def _has_pending(self) -> bool:
        return bool(self._updates or self._inbox or self._bars or self._evaluations)

    def _request(
        self,
        updates: tuple[StrategyUpdate, ...],
        market: tuple[tuple[BarInput, ...], tuple[Tick, ...]],
        evaluation: Evaluation | None,
        moment: Moment | None,
    ) -> StrategyRequest:
        bars, ticks = market
        self._market.add(bars)
        params = self._take_params()
        view = self._view()
        changed = tuple(
            tick for symbol, tick in view.ticks.items() if self._sent_ticks.get(symbol) is not tick
        )
        self._sent_ticks = dict(view.ticks)
        books = dict(view.books)
        changed_books = tuple(
            book for symbol, book in books.items() if self._sent_books.get(symbol) is not book
        )
        self._sent_books = books
        return StrategyRequest(
            params,
            updates,
            ticks,
            evaluation is not None,
            changed,
            view.now,
            tuple(view.positions.values()),
            view.account,
            view.equity,
            view.version,
            changed_books,
            bars,
            moment,
            self._market.view_of(view).orders,
        )

    def _send(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)

    def _on_reply(self, reply: StrategyReply) -> None:
        if self._in_flight is None:
            return
        request, evaluation = self._in_flight
        followed: list[Instruction] = []
        found: list[Instruction] = []
        after_orders = sum(update.calls for update in request.updates)
        for number, signals in enumerate(reply.returned):
            self._count_call(reply.errors.get(number))
            (followed if number < after_orders else found).extend(signals)
        self.signals += len(followed) + len(found) * (request.moment is None)
        if self._is_traced:
            self._trace_reply(request, [*followed, *found])
        outgoing: list[Then] = []
        if followed:
            outgoing.append(partial(self._deliver, self, followed, after_order=True))
        if request.moment is not None:
            outgoing.append(partial(self._moment_passed, request.moment, found))
        elif evaluation is None and found:
            outgoing.append(partial(self._deliver, self, found))
        elif evaluation is not None:
            outgoing.append(partial(resolve, evaluation, found))
        outgoing += self._then
        self._then = []
        if reply.state_error:
            self._disable(reply.state_error)
        else:
            self._last_state = reply.state or self._last_state
            self._keep_state(self.key, reply.state, outgoing)
        self._record_call(request, tuple(followed), tuple(found), evaluation is not None)
        self._call_since_s = None
        self._in_flight = None
        if self._has_pending or self._moments:
            self._wake(self.key)

    def restore_state(self, data: bytes) -> None:
        super().restore_state(data)
        self._last_state = data

    def _trace_reply(self, request: StrategyRequest, signals: list[Instruction]) -> None:
        """Record a request and its reply as one call, of the first sampled tick in it."""
        now = monotonic()
        began_ns = time_ns() - round((now - (self._call_since_s or now)) * 1e9)
        sampled = (each for each in request.ticks if telemetry.trace_id_of(tick_key(each)))
        trace_call(self.key, signals, began_ns, next(sampled, None))

    def _record_call(
        self, request: StrategyRequest, followed: Instructions, found: Instructions, evaluated: bool
    ) -> None:
        if self._record is not None:
            on_tick, evaluations = ((), (found,)) if evaluated else (found, ())
            ticks = tuple(map(astuple, request.ticks))
            after = (request.updates, followed, request.bars, request.moment)
            calls = (ticks, on_tick, evaluations, *after)
            self._record(StrategyCallEntry(self.key, request.version, request.now, *calls))

    # --- the process ----------------------------------------------------------------------------

    async def run(self) -> None:
        ends = 0
        while True:
            began = self._loop.time()
            try:
                how = await self._run_process()
            except OSError as error:
                how = f"could not be started: {error.strerror}"
            if self.stopped:
                return
            ends = 1 if self._loop.time() - began > STABLE_AFTER_S else ends + 1
            _ENDED.labels(self.key).inc()
            if ends > MAX_ENDS_IN_A_ROW:
                self._disable(f"its process ended {ends} times in a row: it {how}")
                return
            self._failed(CallError("strategy process ended", f"its process {how}; restarting"))
            await asyncio.sleep(RESTART_BACKOFF_S * ends)

    async def _run_process(self) -> str:
        """Start a process, serve it until it ends, and return how it ended."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._process = process = _start(theirs.fileno())
            try:
                await self._talk(*await asyncio.open_unix_connection(sock=ours.dup()))
            except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
                pass  # it ended, or sent what cannot be decoded
            finally:
                self._process_ended()
                self._process = None
                process.kill()
                status = await asyncio.shield(asyncio.to_thread(process.wait))
        return f"was killed by signal {-status}" if status < 0 else f"ended with {status}"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(frame(StrategyHello(self._instance(), self._last_state)))
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                match decode_reply(await reader.readexactly(length)):
                    case StrategyReady():
                        self._writer = writer
                        self._ready.set()
                        self._wake(self.key)
                    case StrategyFailed(why):
                        self._disable(why)
                        return
                    case StrategyReply() as reply:
                        self._on_reply(reply)

    def _instance(self) -> StrategyConfig:
        """Return what the process creates its strategy from, with the parameters of now."""
        strategy = self.strategy
        return StrategyConfig(
            source=self._source,
            name=strategy.key,
            symbols=None if strategy.symbols is None else tuple(strategy.symbols),
            parameters=msgspec.to_builtins(strategy.params),
        )

    def _process_ended(self) -> None:
        """Resolve pending evaluations with no signals and forget what the process was sent."""
        with self._lock:
            self._writer = None
            in_flight, self._in_flight = self._in_flight, None
            pending = [in_flight[1] if in_flight is not None else None, *self._evaluations]
            self._evaluations.clear()
            lost, self._then = self._then, []  # with the updates that it was called with
            for then in lost:
                self._loop.call_soon(then)
            self._call_since_s = None
            self._sent_ticks, self._sent_books = {}, {}
            self._queue_start()
        self._ready.clear()
        for evaluation in pending:
            if evaluation is not None and not evaluation.done():
                evaluation.set_result([])
        if self._record is not None:
            self._record(RestartEntry(self.key))
            if self._last_state is not None:
                self._record(StateEntry(self.key, self._last_state))
        if self.stopped:
            self._ready.set()

    def _queue_start(self) -> None:
        """Begin the next process with the bars that this one had, and with on_start."""
        if self._market.bars is not None:
            had = [BarInput(bar, values, is_new=False) for bar, values in self._market.bars.all()]
            self._market = MarketCalls(self.strategy)
            self._bars.extendleft(reversed(had))
        if has_method(self.strategy, "on_start") and "on_start" not in self._moments:
            self._moments.appendleft("on_start")

    def _disable(self, reason: str) -> None:
        super()._disable(reason)
        self._ready.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if (process := self._process) is not None:
            process.send_signal(number)


def _start(fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "qts.pipeline.process_main", str(fd)],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=2,  # keep what a strategy prints out of the run's output
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C goes to the run alone, which ends the process
    )


class ProcessPauser:
    """Pauses isolated strategies while an exit leaves."""

    def __init__(self, runners: Mapping[str, StrategyRunner]) -> None:
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.TimerHandle | None = None
        self._since = self._rests_until = 0.0

    def __call__(self) -> None:
        """Pause at once; may be called from any thread."""
        isolated = [each for each in self._runners.values() if isinstance(each, IsolatedRunner)]
        if not isolated or self._loop.time() < self._rests_until:
            return
        for each in isolated:
            each.pause()
        self._loop.call_soon_threadsafe(self._schedule_resume, isolated)

    def _schedule_resume(self, paused: list[IsolatedRunner]) -> None:
        now = self._loop.time()
        if self._end is None:
            self._since = now
        elif now >= self._since + MAX_PAUSE_S:
            return  # its end is due
        else:
            self._end.cancel()
        ends = min(now + PAUSE_S, self._since + MAX_PAUSE_S)
        self._end = self._loop.call_at(ends, self._resume, paused)

    def _resume(self, paused: list[IsolatedRunner]) -> None:
        self._end = None
        now = self._loop.time()
        if now - self._since >= MAX_PAUSE_S:
            self._rests_until = now + REST_S
        for each in paused:
            each.resume()
