"""A strategy at work in its lane: ticks go in from one thread, signals come out on the loop.

    tick ─▶ inbox ─▶ STRATEGY_EVALUATE (P2, one waits at most) ─▶ on_tick … evaluate ─▶ signals

A worker of the lane calls `work`, and never two at once: one that comes while another is at it
leaves, and the other wakes again. A strategy that raises is told of and goes on with the next tick.
One that raises time after time is given up; one that never returns holds only itself and its one
worker, and is given up too. A lane that is paused is no such strategy: nobody is in it.
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
from qts.pipeline.process_protocol import call
from qts.strategies import Signal, Strategy, View

log = telemetry.logger("pipeline")
_ERRORS = telemetry.counter("qts_strategy_errors_total", "errors a strategy raised", ("strategy",))
_DROPPED = telemetry.counter(
    "qts_strategy_ticks_dropped_total", "ticks a strategy was too slow for", ("strategy",)
)

INBOX = 10_000
GIVE_UP_AFTER = 20  # errors in a row
HANGS_AFTER_S = 10.0
OVERTAKEN_S = 5.0  # older than that is no tick that was overtaken: the clock was set back


class RunnerHooks(NamedTuple):
    """What a strategy at work is joined to."""

    view: Callable[[], View]
    wake: Callable[[str], object]
    deliver: Callable[[StrategyRunner, list[Signal]], None]
    loop: asyncio.AbstractEventLoop


class StrategyRunner:
    def __init__(self, strategy: Strategy[Any], joints: RunnerHooks) -> None:
        self.strategy = strategy
        self.errors = self.dropped = self.signals = 0
        self.stopped = ""  # why it is not called any more
        self._view, self._wake, self._deliver, self._loop = joints
        self._inbox: deque[Tick] = deque(maxlen=INBOX)
        self._asked: deque[asyncio.Future[list[Signal]]] = deque()
        self._latest: dict[str, float] = {}  # by symbol, of what the strategy was handed
        self._at_work = threading.Lock()
        self._missed = False  # somebody came while another was at work
        self._turn_since_s: float | None = None  # when the one at work came
        self._params: deque[msgspec.Struct] = deque()
        self.note: Callable[[Entry], None] | None = None
        self._in_a_row = 0
        self._hears_ticks = type(strategy).on_tick is not Strategy.on_tick

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        return self.strategy.key

    def tick(self, tick: Tick) -> None:
        """From any thread; when the strategy lags behind, its oldest ticks go."""
        if not self._hears_ticks or self.stopped or not self.strategy.wants(tick.symbol):
            return
        if len(self._inbox) == INBOX:
            self.dropped += 1
            _DROPPED.labels(self.key).inc()
        self._inbox.append(tick)
        self._wake(self.key)

    async def evaluate(self) -> list[Signal]:
        """What it wants now; on the loop. A strategy that was given up wants nothing."""
        if self.stopped:
            return []
        asked: asyncio.Future[list[Signal]] = self._loop.create_future()
        self._asked.append(asked)
        self._wake(self.key)
        try:
            return await self._answer_to(asked)
        finally:
            asked.cancel()  # nobody waits for it any more

    async def _answer_to(self, asked: asyncio.Future[list[Signal]]) -> list[Signal]:
        """Nothing, if nobody came to ask the strategy; one that was asked must answer in time."""
        since_s = monotonic()
        while True:
            while (left_s := since_s + HANGS_AFTER_S - monotonic()) > 0:
                await asyncio.wait({asked}, timeout=left_s)
                if asked.done():
                    return asked.result()
            turn_since_s = self._turn_since_s
            if turn_since_s is None:
                return []
            if turn_since_s <= since_s:
                self._give_up(f"it has not answered for {HANGS_AFTER_S:g} s")
                return []
            since_s = turn_since_s  # the lane was paused, and has gone on since

    @property
    def params(self) -> msgspec.Struct:
        """Those in force at its next turn."""
        return self._params[-1] if self._params else self.strategy.params

    def set_params(self, params: msgspec.Struct) -> None:
        """Others from its next turn on: never while it computes."""
        self._params.append(params)

    def run_pending(self) -> None:
        """In the lane. What comes up meanwhile is not lost: it wakes once more."""
        self._missed = True
        if not self._at_work.acquire(blocking=False):
            return
        try:
            self._missed = False
            self._turn_since_s = monotonic()
            self._work()
        finally:
            self._turn_since_s = None
            self._at_work.release()
        if self._missed:
            self._wake(self.key)

    def _work(self) -> None:
        """All ticks that wait, then every evaluation that somebody asked for."""
        self._take_params()
        view = self._view()
        ticks: list[Tick] = []
        found: list[Signal] = []
        answers: list[tuple[Signal, ...]] = []
        while not self.stopped and (tick := self._next_tick()):
            ticks.append(tick)
            found += self._call(self.strategy.on_tick, tick, view)
        if found:
            self.signals += len(found)
            self._loop.call_soon_threadsafe(self._deliver, self, found)
        while self._asked:
            asked = self._asked.popleft()
            if asked.done():
                continue
            wanted = self._call(self.strategy.evaluate, view)
            self.signals += len(wanted)
            answers.append(tuple(wanted))
            self._loop.call_soon_threadsafe(_answer, asked, wanted)
        if self.note is not None and (ticks or answers):
            turn = (tuple(ticks), tuple(found), tuple(answers))
            self.note(StrategyCallEntry(self.key, view.version, view.now, *turn))

    def _next_tick(self) -> Tick | None:
        """At work. Two workers of a lane may hand two ticks of a symbol over in the wrong order:
        the older one has been overtaken, and is left out."""
        while self._inbox:
            tick = self._inbox.popleft()
            behind_s = self._latest.get(tick.symbol, 0.0) - tick.at
            if not 0 < behind_s < OVERTAKEN_S:
                self._latest[tick.symbol] = tick.at
                return tick
        return None

    def _take_params(self) -> tuple[dict[str, Any], ...]:
        """Those that were set meanwhile, in force from now on."""
        taken = []
        while self._params:
            self.strategy.set_params(params := self._params[0])
            self._params.popleft()
            taken.append(plain := msgspec.to_builtins(params))
            if self.note is not None:
                self.note(ParamsEntry(self.key, plain))
        return tuple(taken)

    def _call(self, method: Callable[..., Iterable[Signal]], *arguments: Any) -> list[Signal]:
        found = call(method, *arguments)
        if isinstance(found, Exception):
            self._failed(repr(found))
            return []
        self._in_a_row = 0
        return found

    def _failed(self, error: str) -> None:
        self.errors += 1
        self._in_a_row += 1
        _ERRORS.labels(self.key).inc()
        log.error("a strategy failed", strategy=self.key, error=error)
        if self._in_a_row >= GIVE_UP_AFTER:
            self._give_up(f"it failed {self._in_a_row} times in a row: {error}")

    def _give_up(self, why: str) -> None:
        self.stopped = why
        log.error("a strategy was given up", strategy=self.key, reason=why)


def _answer(asked: asyncio.Future[list[Signal]], found: list[Signal]) -> None:
    if not asked.done():
        asked.set_result(found)
