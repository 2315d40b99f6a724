"""Cycles of the strategies at an interval: one call of a strategy, one cycle in each account.

    ETEDA_CYCLE_START (P2) ─▶ evaluate, once ─▶ signals ─┬▶ pipeline of one account
                                  on_tick, on_fill, … ───┴▶ pipeline of another

A signal goes to the account of its symbol. An account whose last cycle of a strategy still waits
for fills takes no signals of the next one, so a venue that hangs delays no other.

The handlers of lane P2 are here as well: while it is paused, none of this work starts.

ETEDA_CYCLE_START      the cycle runs on the event loop
EXTRACT_COMPLETE ...   duration of the step (qts_cycle_step_seconds)
SIGNAL_GENERATED ...   how far signals come (qts_signals_total)
PORTFOLIO_EVALUATE     an order, a fill or a freeze: positions and risk are written to the cache
RISK_EVALUATE          the same for new prices, before the cached values expire
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from qts import telemetry
from qts.domain import Clock, EventRefusedError, OperationError
from qts.events import Event, EventEngine, EventPort, Payload
from qts.events import payloads as p
from qts.pipeline.cache_loader import AccountCacheWriter
from qts.pipeline.cycle import Cycle
from qts.pipeline.risk_snapshot import AccountVersion
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.strategy_config import PipelineConfig
from qts.strategies import Cancel, Instruction, Replace, Signal

log = telemetry.logger("pipeline")
_STEPS = telemetry.histogram(
    "qts_cycle_step_seconds", "duration of Extract and of Transform", ("step",)
)
_SIGNALS = telemetry.counter(
    "qts_signals_total", "signals by how far they came", ("strategy", "stage")
)

START_REPEAT_S = 10.0
RETRY_INTERVAL_S = 0.5


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


class CycleEventHandler:
    """Registers its handlers when constructed."""

    def __init__(self, engine: EventEngine, scheduler: CycleScheduler) -> None:
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        engine.on("ETEDA_CYCLE_START", self._on_start)
        engine.on("EXTRACT_COMPLETE", self._on_extracted)
        engine.on("TRANSFORM_COMPLETE", self._on_transformed)
        engine.on("SIGNAL_GENERATED", self._on_generated)
        engine.on("STRATEGY_SIGNAL", self._on_sized)
        engine.on("ORDER_DECISION", self._on_decided)

    def _on_start(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._scheduler.start_cycle, event.payload.strategy_type)

    def _on_extracted(self, event: Event) -> None:
        _STEPS.labels("extract").observe(event.payload.duration_ms / 1000)

    def _on_transformed(self, event: Event) -> None:
        _STEPS.labels("transform").observe(event.payload.duration_ms / 1000)

    def _on_generated(self, event: Event) -> None:
        _SIGNALS.labels(event.payload.strategy_type, "generated").inc()

    def _on_sized(self, event: Event) -> None:
        _SIGNALS.labels(event.payload.strategy_type, "sized").inc()

    def _on_decided(self, event: Event) -> None:
        _SIGNALS.labels(event.payload.strategy_type, "decided").inc()


class AccountEvaluator:
    """Writes the account to the cache after each change, and at half the TTL of a position."""

    def __init__(
        self, engine: EventPort, writer: AccountCacheWriter, version: AccountVersion
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        engine.on("PORTFOLIO_EVALUATE", self._on_evaluate)
        engine.on("RISK_EVALUATE", self._on_evaluate)
        version.add_listener(self._changed)

    async def run(self) -> None:
        """Write until cancelled."""
        self._due.set()  # nothing is in the cache yet
        while True:
            try:
                async with asyncio.timeout(self._writer.refresh_s):
                    await self._due.wait()
            except TimeoutError:
                self._publish("RISK_EVALUATE", "new prices")
                await self._due.wait()
            self._due.clear()
            try:
                await self._writer.write()
            except OperationError as error:
                log.warning("account not written to the cache", error=str(error))
                await asyncio.sleep(RETRY_INTERVAL_S)
                self._due.set()

    def _changed(self) -> None:
        self._publish("PORTFOLIO_EVALUATE", "order, fill or freeze")

    def _publish(self, name: str, reason: str) -> None:
        """Publish; a full lane drops it, and the cached account is not used until the next one.

        Changes that the final reconciliation finds come after the stop of the lanes.
        """
        # The lane merges events of one subject: accounts must differ.
        payload = p.EvaluatePayload(subject=self._writer.account, reason=reason)
        with contextlib.suppress(EventRefusedError):
            self._engine.try_publish(self._engine.new_event(name, payload, "pipeline"))

    def _on_evaluate(self, _event: Event) -> None:
        self._loop.call_soon_threadsafe(self._due.set)
