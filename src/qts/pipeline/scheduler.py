"""Cycles of the strategies at an interval: one call of a strategy, one cycle in each account.

    ETEDA_CYCLE_START (P2) ─▶ evaluate, once ─▶ signals ─┬▶ pipeline of one account
                                  on_tick, on_fill, … ───┴▶ pipeline of another

A signal goes to the account of its symbol. An account whose last cycle of a strategy still waits
for fills takes no signals of the next one, so a venue that hangs delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from qts.domain import Clock
from qts.events import Payload
from qts.events import payloads as p
from qts.pipeline.config import PipelineConfig
from qts.pipeline.cycle import Cycle
from qts.pipeline.runner import StrategyRunner
from qts.strategies import Cancel, Instruction, Replace, Signal

START_REPEAT_S = 10.0


class SignalPipeline(Protocol):
    """What takes the signals of strategies for one account: its pipeline, here or elsewhere."""

    @property
    def may_start(self) -> bool: ...

    def start(
        self, key: str, signals: Callable[[], Awaitable[list[Signal]]]
    ) -> asyncio.Task[Cycle]: ...

    def on_signals(
        self, runner: StrategyRunner, signals: list[Signal], *, after_order: bool = False
    ) -> None: ...

    def change_orders(
        self, runner: StrategyRunner, changes: Iterable[Cancel | Replace]
    ) -> object: ...


Route = Callable[[str], SignalPipeline]


class CycleScheduler:
    """Scheduler of a run; `pipeline_of` returns the pipeline that takes the orders of a symbol."""

    def __init__(
        self,
        pipelines: Sequence[SignalPipeline],
        pipeline_of: Route,
        config: PipelineConfig,
        emit: Callable[[str, Payload], object],
        clock: Clock,
    ) -> None:
        self._pipelines = pipelines
        self._pipeline_of = pipeline_of
        self._interval_s = config.interval_ms / 1000
        self._emit = emit
        self._clock = clock
        self._starts: dict[str, asyncio.Event] = {}  # by strategy
        self._started = 0

    async def run(self, runner: StrategyRunner) -> None:
        """Run cycles of one strategy until cancelled, in an account never two at once."""
        due_ns = self._clock.monotonic_ns()
        running: dict[SignalPipeline, asyncio.Task[Cycle]] = {}
        while True:
            if self._active():
                await self._wait_for_start(runner.key)
            free = [each for each in self._active() if each not in running]
            running |= self._start(runner, free)
            if running:
                await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
            running = {each: task for each, task in running.items() if not task.done()}
            due_ns = max(due_ns + round(self._interval_s * 1e9), self._clock.monotonic_ns())
            await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)

    def start_cycle(self, key: str) -> None:
        """Start the cycle of a strategy whose turn in lane P2 has come."""
        if key in self._starts:
            self._starts[key].set()

    def on_signals(
        self, runner: StrategyRunner, returned: Sequence[Instruction], *, after_order: bool = False
    ) -> None:
        """Pass what a strategy returned for a tick, a fill or an order to the accounts."""
        for pipeline in self._pipelines:
            if found := self._signals_of(pipeline, runner, returned):
                pipeline.on_signals(runner, found, after_order=after_order)

    def _active(self) -> list[SignalPipeline]:
        return [each for each in self._pipelines if each.may_start]

    def _start(
        self, runner: StrategyRunner, pipelines: Sequence[SignalPipeline]
    ) -> dict[SignalPipeline, asyncio.Task[Cycle]]:
        """Start a cycle in each account on the signals of one call."""
        if len(pipelines) == 1:

            async def signals_of(pipeline: SignalPipeline) -> list[Signal]:
                return self._signals_of(pipeline, runner, await runner.evaluate())

        else:
            called: list[asyncio.Task[list[Instruction]]] = []

            async def signals_of(pipeline: SignalPipeline) -> list[Signal]:
                if not called:
                    called.append(asyncio.create_task(runner.evaluate()))
                return self._signals_of(pipeline, runner, await asyncio.shield(called[0]))

        return {each: each.start(runner.key, partial(signals_of, each)) for each in pipelines}

    def _signals_of(
        self, pipeline: SignalPipeline, runner: StrategyRunner, returned: Sequence[Instruction]
    ) -> list[Signal]:
        """Return the signals for an account, after it has the changes of its orders."""
        signals: list[Signal] = []
        changes: list[Cancel | Replace] = []
        for each in returned:
            symbol = getattr(each, "symbol", "")
            if len(self._pipelines) > 1 and self._pipeline_of(symbol) is not pipeline:
                continue
            if isinstance(each, Cancel | Replace):
                changes.append(each)
            else:  # a later step refuses what is not a signal
                signals.append(each)
        if changes:
            pipeline.change_orders(runner, changes)
        return signals

    async def _wait_for_start(self, key: str) -> None:
        """Wait for a turn in lane P2: while it is paused, no cycle starts."""
        start = self._starts.setdefault(key, asyncio.Event())
        start.clear()
        while not start.is_set():
            self._started += 1
            self._emit("ETEDA_CYCLE_START", p.CycleStart(cycle=self._started, strategy_type=key))
            with contextlib.suppress(TimeoutError):  # a lane that was replaced has lost it
                async with asyncio.timeout(START_REPEAT_S):
                    await start.wait()
