"""Everything that trades, joined: feed, events, cache, strategies, gate, desk, bus, broker.

The journal of a run, where one is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from qts.app.summary import TradingSummary, summarise_trading
from qts.app.supervision import TaskSupervisor
from qts.app.venue import RunContext, connect_venue
from qts.brokers import Broker
from qts.cache import Cache, CacheStore
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.dashboard.publisher import StatusPublisher
from qts.database import Database
from qts.domain import Clock, Secret
from qts.events import Catalogue, EventEngine, Priority
from qts.events.dead_letter_store import PostgresDeadLetterStore
from qts.feed import Feed
from qts.notify import NotificationService, RecentAlerts
from qts.orders import DatabaseSafetyControls, Reconciler
from qts.orders.engine import ExecutionEngine
from qts.orders.metrics import TradingGauges
from qts.outbox import Consumer, EventBus, OutboxMaintenance, open_bus
from qts.pipeline import (
    DecisionJournal,
    EtedaPipeline,
    IntentTracker,
    IsolatedRunner,
    JournaledPortfolio,
    JournalHeader,
    OrderSubmitter,
    Portfolio,
    StrategyRunner,
)
from qts.pipeline.cache_loader import DatabaseCacheLoader
from qts.pipeline.engine import StrategyEngine
from qts.pipeline.freezes import POSITION_FREEZE, PositionFreezer
from qts.pipeline.maintenance import recover_fail_safe, sync_stops, watch_venue_stream
from qts.pipeline.order_updates import OrderUpdatePublisher
from qts.pipeline.risk_snapshot import RiskSnapshotReader, RiskSources
from qts.pipeline.strategy_params import StrategyParamsWatcher
from qts.pipeline.tick_publisher import TickPublisher
from qts.risk import EMERGENCY_ORDER, FailSafe, KillSwitch, MicroRiskLoop, SafetyMonitor
from qts.risk.fail_safe_reporter import FailSafeReporter
from qts.strategies import load_strategy


def open_decision_journal(ground: RunContext) -> DecisionJournal | None:
    """One file for each run, named after its beginning."""
    config, _, clock = ground
    pipeline, began = config.pipeline, clock.now()
    if pipeline.journal is None:
        return None
    strategies = {name: pipeline.params_of(load_strategy(name).key) for name in pipeline.strategies}
    header = JournalHeader(began, strategies, config.risk.limits.exact)
    return DecisionJournal(pipeline.journal / f"{began:%Y%m%dT%H%M%S.%f}.journal", header)


DRAIN_S = 5.0


class TradingSystem:
    """Use `opened`. It runs from then on; `stop` ends it in the order in which nothing is lost."""

    def __init__(self, config: Config, database: Database, clock: Clock) -> None:
        self.config = config
        self.database = database
        self.clock = clock
        self.began = clock.now()
        self.watch = SafetyMonitor(database, clock)
        self.fail_safe = FailSafe(database)
        self.kill_switch = KillSwitch(database)
        self.notices = RecentAlerts()
        self.ground = RunContext(config, database, clock)
        self.journal = open_decision_journal(self.ground)
        self.world = JournaledPortfolio(clock, self.journal) if self.journal else Portfolio(clock)
        self._alarm = FailSafeReporter(self.fail_safe, self.notices.add, clock)
        self._crew = TaskSupervisor()
        self._consumers: list[Consumer] = []
        self._feeding: list[asyncio.Task[None]] = []
        self.stopping = False

    # --- made in this order ---------------------------------------------------------------------

    engine: EventEngine
    bus: EventBus
    cache: Cache
    changes: OrderUpdatePublisher
    ticks: TickPublisher
    feed: Feed
    broker: Broker
    notifications: NotificationService
    ordering: ExecutionEngine
    deciding: StrategyEngine

    @contextlib.asynccontextmanager
    async def open(self, cache_url: Secret, home: Path) -> AsyncIterator[TradingSystem]:
        async with contextlib.AsyncExitStack() as stack:
            if self.journal is not None:
                stack.enter_context(self.journal)
            store = await self._open_stores(stack, cache_url)
            venue = await stack.enter_async_context(connect_venue(self.ground, home, self.ticks))
            self.feed, self.broker = venue
            self.notifications = await stack.enter_async_context(
                NotificationService.open(self.database, self.config.notify, self.clock)
            )
            self._join()
            self._live = StatusPublisher(self, store, self.notices)
            self._parameters = StrategyParamsWatcher(self.database, self.runners, self.cache)
            try:
                await self._start()
                yield self
            finally:
                await self.stop()

    async def _open_stores(self, stack: contextlib.AsyncExitStack, cache_url: Secret) -> CacheStore:
        config, database, clock = self.ground
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        catalogue.register(POSITION_FREEZE)
        self.engine = EventEngine(config.events, catalogue, clock, self._alarm.hooks())
        self.bus = await stack.enter_async_context(open_bus(database, config.outbox))
        store = await stack.enter_async_context(RedisStore.open(cache_url, config.cache))
        broker = config.brokers.broker
        truth = DatabaseCacheLoader(database, broker, self.world, config.risk.limits.exact, clock)
        self.cache = await stack.enter_async_context(
            Cache.open(store, truth, config.cache, clock=clock)
        )
        self.ticks = TickPublisher(self.engine, self.world, self.cache, clock)
        return store

    def _join(self) -> None:
        outcomes = IntentTracker()
        self.changes = OrderUpdatePublisher(
            self.engine, self.world, outcomes, self.cache, self.clock
        )
        self.changes.trip = self._alarm.trip
        safety = DatabaseSafetyControls(self.fail_safe, self.kill_switch)
        self.ordering = ExecutionEngine(
            self.ground, self.bus, self.broker, self.changes, safety, self.notifications
        )
        self._freezes = PositionFreezer(self.ground, self.bus, self.broker.name, self.notices)
        sources = RiskSources(
            database=self.database,
            broker=self.broker.name,
            cache=self.cache,
            world=self.world,
            watch=self.watch,
            freezing=self._freezes.pending,
            may_trade=self.reconciler.is_reconciled,
            is_open=self._is_open,
        )
        facts = RiskSnapshotReader(sources, self.clock)
        self.deciding = StrategyEngine(
            self.ground, self.engine, self.world, facts, self._alarm, self.watch
        )
        self.deciding.join(
            self.ordering.desk, outcomes, self.changes, self._freezes, self.fail_safe
        )
        if self.journal is not None:
            self.deciding.keep(self.journal)

    # --- what others look at --------------------------------------------------------------------

    @property
    def description(self) -> str:
        """What is traded, for the owner."""
        names = ", ".join(map(str, self.runners.values())) or "no strategy"
        return f"{names} on {self.broker.name}; {self.feed.plan.sentence}"

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done when a part of the run ended by an error."""
        return self._crew.failed

    @property
    def runners(self) -> dict[str, StrategyRunner]:
        return self.deciding.runners

    @property
    def trader(self) -> OrderSubmitter:
        return self.deciding.trader

    @property
    def pipeline(self) -> EtedaPipeline:
        return self.deciding.pipeline

    @property
    def micro(self) -> MicroRiskLoop:
        return self.deciding.micro

    @property
    def reconciler(self) -> Reconciler:
        return self.ordering.reconciler

    async def summary(self) -> TradingSummary:
        """After the stop: what happened, and whether the broker's books say the same."""
        return await summarise_trading(self)

    # --- running --------------------------------------------------------------------------------

    async def _start(self) -> None:
        run = self._crew.start
        if self.config.brokers.mode == "paper":
            await self.kill_switch.enable_unset(tuple(self.runners), "first start on paper")
        await self.watch.refresh()
        await self._parameters.load()
        self.engine.start()
        run("live", self._live.run())
        run("parameters", self._parameters.run())
        letters = PostgresDeadLetterStore(self.database, self.engine.catalogue)
        run("dead letters", self.engine.persist_dead_letters(letters))
        run("switches", self.watch.run())
        run("upkeep", OutboxMaintenance(self.database, self.config.outbox).run())
        run("figures", TradingGauges(self.database, self.clock).run())
        if self.notifications.notifiers:
            run("messages", self.notifications.run())
        run("notices", self.reconciler.follow_reports())
        if await self.ordering.reconcile_at_start():
            await self.deciding.holding.load(self.ground, self.broker)
        run("reconciler", self.reconciler.run())
        self._consumers = self.ordering.consumers()
        for consumer in self._consumers:
            run("consumer", consumer.run())
        run("calm", recover_fail_safe(self))
        run("stops", sync_stops(self))
        run("line", watch_venue_stream(self))
        self.deciding.start_stops()
        for runner in self.runners.values():
            if isinstance(runner, IsolatedRunner):
                run(f"process of {runner.key}", runner.run())
            run(f"cycles of {runner.key}", self._decide(runner))
        self._feeding = [run("feed", self.feed.run())]

    async def stop(self) -> None:
        """Ticks first, then decisions, then orders, then the books. A second stop does nothing."""
        if self.stopping:
            return
        self.stopping = True
        await self._crew.end(self._feeding)
        self.pipeline.suspend("stopping", "app")
        await asyncio.to_thread(self.engine.wait_drained, DRAIN_S, Priority.P1, Priority.P2)
        await self.deciding.close()
        await self.ordering.wait_settled(self.began)
        for consumer in self._consumers:
            consumer.stop()
        await self.changes.close()
        await self._freezes.close()
        await asyncio.to_thread(self.engine.stop)
        await self._crew.end()

    async def _decide(self, runner: StrategyRunner) -> None:
        """Not before it is known what is held: money that is not known would be no money."""
        await self.deciding.holding.known.wait()
        await self.pipeline.run(runner)

    def _is_open(self) -> bool:
        return self.config.feed.always_open or self.feed.poller.state().open
