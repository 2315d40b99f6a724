"""Strategies, pipeline, stops and exits of a run, registered with the event lanes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from qts.domain import RefusedError
from qts.events import Event, EventEngine, EventsConfig
from qts.pipeline.config import PipelineConfig
from qts.pipeline.decision_journal import SUFFIX, DecisionJournal, JournalHeader
from qts.pipeline.exits import StopExitHandler
from qts.pipeline.freezes import POSITION_FREEZE, PositionFreezer
from qts.pipeline.isolated_runner import IsolatedRunner
from qts.pipeline.portfolio import tick_from_event
from qts.pipeline.runner import RunnerHooks, StrategyRunner
from qts.pipeline.scheduler import EtedaPipeline
from qts.risk import MicroRiskLoop, RiskLimits
from qts.strategies import Strategy, load_strategy


def load_strategies(config: PipelineConfig) -> dict[str, Strategy[Any]]:
    """Instantiate the strategies of the settings, by `module:Class`."""
    kinds = {name: load_strategy(name) for name in config.strategies}
    return {name: kind.from_params(config.params_of(kind.key)) for name, kind in kinds.items()}


def open_decision_journal(
    config: PipelineConfig, limits: RiskLimits, max_mb: int, began: datetime
) -> DecisionJournal | None:
    """Create the journal of a run, named after its start, where the settings ask for one."""
    if config.journal is None:
        return None
    params = {name: config.params_of(load_strategy(name).key) for name in config.strategies}
    path = config.journal / f"{began:%Y%m%dT%H%M%S.%f}{SUFFIX}"
    return DecisionJournal(path, JournalHeader(began, params, limits), max_mb * 10**6)


def build_runners(
    strategies: Mapping[str, Strategy[Any]], isolated: Iterable[str], hooks: RunnerHooks
) -> Iterator[StrategyRunner]:
    """Yield a runner for each strategy (by `module:Class`): in its lane, or in a process.

    Raise RefusedError for a key in `isolated` that no strategy has; "*" means all of them.
    """
    left = set(isolated)
    for name, strategy in strategies.items():
        if left & {strategy.key, "*"}:
            yield IsolatedRunner(name, strategy, hooks)
        else:
            yield StrategyRunner(strategy, hooks)
        left.discard(strategy.key)
    if unknown := left - {"*"}:
        raise RefusedError(
            f"pipeline.isolated_strategies: {min(unknown)!r} is not the key of a strategy in "
            "pipeline.strategies"
        )


def check_lanes(config: EventsConfig) -> None:
    """Refuse lanes in processes: handlers of P1 and P2 share memory with the run."""
    if "process" in (config.p1.isolation, config.p2.isolation):
        raise RefusedError(
            'events.p1.isolation and events.p2.isolation must be "thread" where QTS trades; '
            "pipeline.isolated_strategies runs strategies in separate processes"
        )


class StrategyEngine:
    """Registers its handlers when constructed; `start_stops` before the first tick."""

    def __init__(
        self,
        engine: EventEngine,
        pipeline: EtedaPipeline,
        runners: Mapping[str, StrategyRunner],
        micro_risk: MicroRiskLoop,
        exits: StopExitHandler,
        freezer: PositionFreezer,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self.pipeline = pipeline
        self.runners = runners
        self.micro_risk = micro_risk
        self.exits = exits
        engine.attach_watcher("PRICE_TICK", micro_risk.stops, "price")
        engine.on("PRICE_TICK", self._on_tick)
        engine.on("STRATEGY_EVALUATE", self._on_evaluate)
        engine.on("EMERGENCY_ORDER", exits)
        engine.on("TRAILING_STOP_HIT", exits)
        engine.on("ETEDA_SUSPEND", self._on_suspend)
        engine.on(POSITION_FREEZE.name, freezer)

    def start_stops(self) -> None:
        """Run the micro risk loop on a dedicated thread: no strategy delays it."""
        threading.Thread(
            target=self.micro_risk.run, args=(self._stopped,), name="qts-micro-risk", daemon=True
        ).start()

    async def close(self) -> None:
        """Wait for cycles, then for the exits that the stops started meanwhile."""
        await self.pipeline.close()
        await self.exits.close()
        self._stopped.set()

    def _on_tick(self, event: Event) -> None:
        tick = tick_from_event(event)
        for runner in self.runners.values():
            runner.tick(tick)

    def _on_evaluate(self, event: Event) -> None:
        runner = self.runners.get(event.payload.strategy_type)
        if runner is not None:
            runner.run_pending()

    def _on_suspend(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(
            self.pipeline.suspend, event.payload.reason, event.payload.code or "event"
        )
