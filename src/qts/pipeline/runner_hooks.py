"""What a runner of a strategy works with: hooks of its run, the inbox of its ticks, spans of calls.

    span       follows the span before it by
    tick
    strategy   symbol and time of the tick
    gate       the id of the signal
    commit     (runs inside gate)
    request    the id of the intent
    fill       the id of the intent

A tick that is not sampled has no span; what it leads to has: the trace of such an order starts with
`strategy`, that of an exit of the stops with `gate`. Ticks, signals and proposals carry nothing of
a trace, so that a journaled decision is the same with traces and without.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from qts import telemetry
from qts.domain import Tick
from qts.pipeline.decision_journal import Entry
from qts.pipeline.steps import signal_id_of
from qts.pipeline.strategy_call import StateWatch
from qts.strategies import Instruction, NoState, Signal, Strategy, View

Then = Callable[[], object]

# Takes a key, its state (None: as before) and functions to call, on the event loop, after all that
# the strategy has changed so far is stored.
KeepState = Callable[[str, bytes | None, Sequence[Then]], None]


def call_all(_key: str, _state: bytes | None, then: Sequence[Then]) -> None:
    """Call the functions; for a run that stores no state."""
    for each in then:
        each()


def resolve(pending: asyncio.Future[list[Instruction]], signals: list[Instruction]) -> None:
    """Set the result of an evaluation that still waits for it."""
    if not pending.done():
        pending.set_result(signals)


class RunnerHooks(NamedTuple):
    """What a runner needs of the run; `record` journals its calls, None without a journal.

    `deliver` takes the runner and what its strategy returned, on the event loop, with
    `after_order=True` for what answers a fill or an order.
    """

    view: Callable[[], View]
    wake: Callable[[str], object]
    deliver: Callable[..., None]
    loop: asyncio.AbstractEventLoop
    record: Callable[[Entry], None] | None
    keep_state: KeepState = call_all


class StateGate:
    """Passes results on to the event loop; those of a strategy with a `State` after it is kept."""

    def __init__(self, strategy: Strategy[Any], hooks: RunnerHooks) -> None:
        self._strategy = strategy
        self._loop, self._keep = hooks.loop, hooks.keep_state
        self._watch = StateWatch(strategy)
        self._waiting: list[Then] = []
        self.keeps_state = strategy.State is not NoState

    def restored(self) -> None:
        """Continue with the state that the strategy has now."""
        self._watch = StateWatch(self._strategy)

    def pass_on(self, function: Then) -> None:
        if self.keeps_state:
            self._waiting.append(function)
        else:
            self._loop.call_soon_threadsafe(function)

    def flush(self) -> None:
        """Pass on what waits, with the state; raise RefusedError if that cannot be stored."""
        waiting, self._waiting = self._waiting, []
        state = self._watch.changed()
        if waiting or state is not None:
            key = self._strategy.key
            self._loop.call_soon_threadsafe(self._keep, key, state, waiting)


INBOX_CAPACITY = 10_000
REORDER_WINDOW_S = 5.0  # a tick older than that means the clock was set back


class TickInbox:
    """Queue of one strategy: any thread adds, one at a time takes; a full one drops its oldest."""

    def __init__(self) -> None:
        self._ticks: deque[Tick] = deque(maxlen=INBOX_CAPACITY)
        self._latest: dict[str, float] = {}  # time of the last tick taken, by symbol

    def __len__(self) -> int:
        return len(self._ticks)

    @property
    def is_full(self) -> bool:
        return len(self._ticks) == INBOX_CAPACITY

    def add(self, tick: Tick) -> None:
        self._ticks.append(tick)

    def clear(self) -> None:
        self._ticks.clear()

    def take(self) -> tuple[Tick, ...]:
        """Return what waits now."""
        return tuple(islice(iter(self._next, None), len(self._ticks)))

    def _next(self) -> Tick | None:
        """Return the next tick; one that two lane workers delivered out of order is skipped."""
        while self._ticks:
            tick = self._ticks.popleft()
            behind_s = self._latest.get(tick.symbol, 0.0) - tick.at
            if not 0 < behind_s < REORDER_WINDOW_S:
                self._latest[tick.symbol] = tick.at
                return tick
        return None


def tick_key(tick: Tick) -> Hashable:
    """Return what the span of a tick is remembered under."""
    return tick.symbol, tick.at


def trace_call(
    strategy_key: str, returned: Sequence[Instruction], began_ns: int, source: object = None
) -> None:
    """Record a call that ends now, where it returned signals or its `source` is a sampled tick."""
    signals = [each for each in returned if isinstance(each, Signal)]
    before = tick_key(source) if isinstance(source, Tick) else None
    if not signals and not telemetry.trace_id_of(before):
        return
    with telemetry.span(
        "strategy", follows=before, began_ns=began_ns, strategy=strategy_key, signals=len(signals)
    ) as call:
        for signal in signals:
            call.remember(signal_id_of(strategy_key, signal))
