"""Strategies, pipeline, stops and exits of a run, registered with the event lanes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qts import telemetry
from qts.database import Database
from qts.domain import (
    AccountKey,
    Clock,
    OperationError,
    RefusedError,
    StrategyDisabled,
)
from qts.events import Event, EventEngine, EventPort, EventsConfig
from qts.outbox import SYSTEM_EVENT, EventBus, OutboxEvent
from qts.pipeline.cycle_events import CycleEventHandler
from qts.pipeline.decision_journal import SUFFIX, DecisionJournal, JournalHeader
from qts.pipeline.eteda import EtedaPipeline
from qts.pipeline.exits import StopExitHandler
from qts.pipeline.freezes import POSITION_FREEZE, PositionFreezer
from qts.pipeline.isolated_runner import IsolatedRunner
from qts.pipeline.journaled_portfolio import JournaledStore
from qts.pipeline.portfolio import PortfolioStore
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.runner_hooks import RunnerHooks
from qts.pipeline.scheduler import CycleScheduler
from qts.pipeline.strategy_config import StrategyConfig
from qts.risk import MicroRiskLoop
from qts.strategies import Strategy

log = telemetry.logger("pipeline")

PUBLISH_RETRY_S = 1.0


def open_decision_journal(
    folder: Path | None, header: JournalHeader, max_mb: int
) -> DecisionJournal | None:
    """Create the journal of a run, named after its start, where the settings ask for one."""
    if folder is None:
        return None
    path = folder / f"{header.began:%Y%m%dT%H%M%S.%f}{SUFFIX}"
    return DecisionJournal(path, header, max_mb * 10**6)


def build_store(clock: Clock, journal: DecisionJournal | None, accounts: int) -> PortfolioStore:
    """Return what the portfolios of a run share, journaled where it has a journal."""
    if journal is None:
        return PortfolioStore(clock, accounts)
    return JournaledStore(clock, journal, accounts)


def build_runners(
    instances: Iterable[StrategyConfig],
    strategies: Mapping[str, Strategy[Any]],
    isolated: Container[str],
    hooks: RunnerHooks,
) -> Iterator[StrategyRunner]:
    """Yield a runner for each instance: in its lane, or in a process; "*" isolates all of them."""
    for each in instances:
        strategy = strategies[each.name]
        if each.name in isolated or "*" in isolated:
            yield IsolatedRunner(each.source, strategy, hooks)
        else:
            yield StrategyRunner(strategy, hooks)


def check_lanes(config: EventsConfig) -> None:
    """Refuse lanes in processes: handlers of P1 and P2 share memory with the run."""
    if "process" in (config.p1.isolation, config.p2.isolation):
        raise RefusedError(
            'events.p1.isolation and events.p2.isolation must be "thread" where QTS trades; '
            "pipeline.isolated_strategies runs strategies in separate processes"
        )


async def report_disabled(
    runner: StrategyRunner, database: Database, bus: EventBus, account: AccountKey
) -> None:
    """Publish StrategyDisabled when the runner stops calling its strategy."""
    await runner.disabled.wait()
    payload = StrategyDisabled(strategy_key=runner.key, reason=runner.stopped)
    aggregate, key = ("Strategy", runner.key), runner.key
    event = OutboxEvent.of(SYSTEM_EVENT, payload, aggregate, account=account, strategy_key=key)
    while True:
        try:
            async with database.transaction() as tx:
                await bus.publish(tx, event)
        except OperationError as error:
            log.warning("strategy disabled; not published, retrying", error=str(error))
            await asyncio.sleep(PUBLISH_RETRY_S)
        else:
            return


class StrategyEngine:
    """Strategies of a run in their lanes; registers its handlers when constructed.

    While it is paused, no strategy gets ticks.
    """

    def __init__(
        self,
        engine: EventEngine,
        scheduler: CycleScheduler,
        runners: Mapping[str, StrategyRunner],
    ) -> None:
        self._runners = runners
        self.is_paused = False
        engine.on("PRICE_TICK", self._on_tick)
        engine.on("STRATEGY_EVALUATE", self._on_evaluate)
        CycleEventHandler(engine, scheduler)

    def _on_tick(self, event: Event) -> None:
        if self.is_paused:
            return
        for runner in self._runners.values():
            runner.tick(event.payload)

    def _on_evaluate(self, event: Event) -> None:
        runner = self._runners.get(event.payload.strategy_type)
        if runner is not None:
            runner.run_pending()


class AccountStops:
    """Stops and exits of an account in their lanes; registers its handlers when constructed.

    `start` before the first tick.
    """

    def __init__(
        self,
        engine: EventPort,
        pipeline: EtedaPipeline,
        micro_risk: MicroRiskLoop,
        exits: StopExitHandler,
        freezer: PositionFreezer,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self.pipeline = pipeline
        self.micro_risk = micro_risk
        self.exits = exits
        engine.attach_watcher("PRICE_TICK", micro_risk.stops, "price")
        engine.on("EMERGENCY_ORDER", exits)
        engine.on("TRAILING_STOP_HIT", exits)
        engine.on("ETEDA_SUSPEND", self._on_suspend)
        engine.on(POSITION_FREEZE.name, freezer)

    def start(self) -> None:
        """Run the micro risk loop on a dedicated thread: no strategy delays it."""
        threading.Thread(
            target=self.micro_risk.run, args=(self._stopped,), name="qts-micro-risk", daemon=True
        ).start()

    async def close(self) -> None:
        """Wait for cycles, then for the exits that the stops started meanwhile."""
        await self.pipeline.close()
        await self.exits.close()
        self._stopped.set()

    def _on_suspend(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(
            self.pipeline.suspend, event.payload.reason, event.payload.code or "event"
        )
