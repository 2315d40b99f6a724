"""What a runner of a strategy needs of its run, and the order in which it passes results on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qts.pipeline.decision_journal import Entry
from qts.pipeline.strategy_call import StateWatch
from qts.strategies import Instruction, NoState, Strategy, View

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
