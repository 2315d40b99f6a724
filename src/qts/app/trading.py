"""The trading part of a run: feed, lanes, cache, strategies, gate, orders, bus and broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from qts.app.summary import TradingSummary, summarise_trading
from qts.app.supervision import TaskSupervisor
from qts.app.venue import connect_venue, open_paper_broker
from qts.brokers import AccountLock, Broker
from qts.cache import Cache, CacheStore
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.dashboard.publisher import StatusPublisher, StatusSources
from qts.database import Database
from qts.domain import Clock, Secret
from qts.events import Catalogue, EventEngine, Payload, Priority
from qts.events import payloads as p
from qts.events.dead_letter_store import PostgresDeadLetterStore
from qts.feed import Feed
from qts.notify import NotificationService, RecentAlerts
from qts.orders import DatabaseSafetyControls, ExecutionContext, Ledger, Reconciler, SubmitResult
from qts.orders.engine import ExecutionEngine
from qts.orders.metrics import TradingGauges
from qts.outbox import Consumer, EventBus, OutboxMaintenance, open_bus
from qts.pipeline import (
    DecisionPolicy,
    EtedaPipeline,
    IntentTracker,
    IsolatedRunner,
    JournaledPortfolio,
    OrderSubmitter,
    PipelineHooks,
    Portfolio,
    RunnerHooks,
    StrategyRunner,
    maintenance,
)
from qts.pipeline.cache_loader import DatabaseCacheLoader
from qts.pipeline.engine import (
    StrategyEngine,
    build_runners,
    check_lanes,
    load_strategies,
    open_decision_journal,
)
from qts.pipeline.exits import StopExitHandler
from qts.pipeline.freezes import POSITION_FREEZE, PositionFreezer
from qts.pipeline.isolated_runner import ProcessPauser
from qts.pipeline.order_updates import OrderUpdatePublisher
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion, RiskSnapshotReader, RiskSources
from qts.pipeline.strategy_params import StrategyParamsWatcher
from qts.pipeline.tick_publisher import TickPublisher
from qts.pipeline.watch_list import WatchList
from qts.risk import (
    EMERGENCY_ORDER,
    FailSafe,
    KillSwitch,
    MicroRiskLoop,
    OrderProposal,
    PreTradeGate,
    SafetyMonitor,
    SafetyState,
)
from qts.risk.fail_safe_reporter import FailSafeReporter
from qts.venues import ClockSkew

DRAIN_TIMEOUT_S = 5.0


class TradingSystem:
    """Everything that trades. `open` builds and starts it; `stop` ends it without losing orders."""

    def __init__(self, config: Config, database: Database, clock: Clock, lock: AccountLock) -> None:
        check_lanes(config.events)
        self.account = key = lock.key
        self.config = config = replace(config, cache=config.cache.of_account(key.account))
        self.database = database
        self._lock, self.clock = lock, clock
        self.began = clock.now()
        self.monitor = SafetyMonitor(database, key, clock)
        self.fail_safe = FailSafe(database, key)
        self.kill_switch = KillSwitch(database, key)
        self.alerts = RecentAlerts()
        self.strategies = load_strategies(config.pipeline)
        self.journal = open_decision_journal(
            config.pipeline, config.risk.exact_limits, config.retention.journal_mb, self.began
        )
        self.portfolio = (
            JournaledPortfolio(clock, self.journal) if self.journal else Portfolio(clock)
        )
        self._reporter = FailSafeReporter(self.fail_safe, self.alerts.add, clock)
        self._tasks = TaskSupervisor()
        self._consumers: list[Consumer] = []
        self._feed_tasks: list[asyncio.Task[None]] = []
        self.stopping = False

    # --- built by `open`, in this order ---------------------------------------------------------

    engine: EventEngine
    bus: EventBus
    cache: Cache
    ticks: TickPublisher
    feed: Feed
    broker: Broker
    skew: ClockSkew
    notifications: NotificationService
    micro_risk: MicroRiskLoop
    positions: PositionSync
    order_updates: OrderUpdatePublisher
    execution: ExecutionEngine
    submitter: OrderSubmitter
    pipeline: EtedaPipeline
    runners: Mapping[str, StrategyRunner]

    @contextlib.asynccontextmanager
    async def open(self, cache_url: Secret, home: Path) -> AsyncIterator[TradingSystem]:
        async with contextlib.AsyncExitStack() as stack:
            if self.journal is not None:
                stack.enter_context(self.journal)
            store = await self._open_stores(stack, cache_url)
            await self._connect(stack, home)
            tracker, version = IntentTracker(), AccountVersion()
            self._build_execution(tracker, version)
            self._build_strategies(tracker, version)
            self._status = StatusPublisher(self._status_sources(), store, self.config.cache.prefix)
            self._params = StrategyParamsWatcher(self.database, self.runners, self.cache)
            try:
                await self._start()
                yield self
            finally:
                await self.stop()

    async def _open_stores(self, stack: contextlib.AsyncExitStack, cache_url: Secret) -> CacheStore:
        config, database, clock = self.config, self.database, self.clock
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        catalogue.register(POSITION_FREEZE)
        self.engine = EventEngine(config.events, catalogue, clock, self._reporter.hooks())
        self.bus = await stack.enter_async_context(open_bus(database, config.outbox))
        store = await stack.enter_async_context(RedisStore.open(cache_url, config.cache))
        loader = DatabaseCacheLoader(
            database, self.account, self.portfolio, config.risk.exact_limits, clock
        )
        self.cache = await stack.enter_async_context(
            Cache.open(store, loader, config.cache, clock=clock)
        )
        return store

    async def _connect(self, stack: contextlib.AsyncExitStack, home: Path) -> None:
        config, database, clock = self.config, self.database, self.clock
        paper = await stack.enter_async_context(open_paper_broker(config, database, clock))
        on_tick = paper.on_tick if paper else None
        self.ticks = TickPublisher(self.engine, self.portfolio, self.cache, clock, on_tick)
        self.feed, self.broker, self.skew = await stack.enter_async_context(
            connect_venue(config, database, clock, home, self.ticks, paper)
        )
        self.notifications = await stack.enter_async_context(
            NotificationService.open(database, config.notify, clock, account=self.account)
        )

    def _build_execution(self, tracker: IntentTracker, version: AccountVersion) -> None:
        config, database, clock = self.config, self.database, self.clock
        self._watch_list = WatchList(self.portfolio, self.feed, clock)
        stops, trip, age = config.risk.stops, self._reporter.trip, self.feed.price_age_s
        self.micro_risk = MicroRiskLoop(stops, self._publish_risk, trip, clock, price_age_s=age)
        kinds = {each.key: each.kind for each in self.strategies.values()}
        self.positions = PositionSync(self.portfolio, self.micro_risk, kinds)
        self.order_updates = OrderUpdatePublisher(
            self.engine, self.positions, tracker, self.cache, version, self._reporter.trip
        )
        short, key = config.orders.allow_short, self.account
        context = ExecutionContext(
            database=database,
            bus=self.bus,
            broker=self.broker,
            ledger=Ledger(database, self.bus, key, allow_short=short, on_change=self.order_updates),
            safety=DatabaseSafetyControls(self.fail_safe, self.kill_switch),
            config=config.orders,
            clock=clock,
        )
        self.execution = ExecutionEngine(
            context, self.order_updates, self.positions, self.notifications.register, self._lock
        )
        self._freezer = PositionFreezer(database, self.bus, key, self.alerts, version, clock)

    def _build_strategies(self, tracker: IntentTracker, version: AccountVersion) -> None:
        config, portfolio, clock = self.config, self.portfolio, self.clock
        limits = config.risk.exact_limits
        record = self.journal.append if self.journal else None
        sources = RiskSources(
            database=self.database,
            account=self.account,
            cache=self.cache,
            portfolio=portfolio,
            monitor=self.monitor,
            version=version,
            freezing=self._freezer.pending,
            unwatched=self.positions.unwatched,
            is_reconciled=self.reconciler.is_reconciled,
            is_open=self._is_open,
            is_clock_synced=self.skew.is_synced,
        )

        def on_submitted(proposal: OrderProposal, submitted: SubmitResult) -> None:
            version.advance()
            self._watch_list.submitted(proposal.symbol)
            if not proposal.intent_type.is_exit and submitted.attempt_id is not None:
                self.positions.set_owner(proposal.symbol, proposal.strategy_key)

        self.submitter = OrderSubmitter(
            PreTradeGate(limits),
            self.execution.manager,
            RiskSnapshotReader(sources, clock),
            tracker,
            on_submitted,
            record,
        )
        hooks = PipelineHooks(self._policy, self.order_updates.emit, self.fail_safe.trip, record)
        self.pipeline = EtedaPipeline(
            config.pipeline, portfolio, self.submitter, limits, hooks, clock
        )
        runner_hooks = RunnerHooks(
            portfolio.view,
            self._wake_strategy,
            self.pipeline.on_signals,
            asyncio.get_running_loop(),
            record,
        )
        runners = build_runners(self.strategies, config.pipeline.isolated_strategies, runner_hooks)
        self.runners = {runner.key: runner for runner in runners}
        exits = StopExitHandler(
            self.submitter,
            self.micro_risk,
            portfolio,
            self._freezer,
            ProcessPauser(self.runners),
            clock,
        )
        self._strategy_engine = StrategyEngine(
            self.engine, self.pipeline, self.runners, self.micro_risk, exits, self._freezer
        )

    def _status_sources(self) -> StatusSources:
        return StatusSources(
            mode=self.config.brokers.mode,
            began=self.began,
            clock=self.clock,
            database=self.database,
            account=self.account,
            streams=self.config.outbox.streams,
            engine=self.engine,
            cache=self.cache,
            feed=self.feed,
            ticks=self.ticks,
            portfolio=self.portfolio,
            position_notes=self.positions.notes,
            monitor=self.monitor,
            is_reconciled=self.reconciler.is_reconciled,
            skew=self.skew,
            pipeline=self.pipeline,
            runners=self.runners,
            refusals=self.submitter.refusals,
            alerts=self.alerts,
            description=lambda: self.description,
        )

    # --- what others read -----------------------------------------------------------------------

    @property
    def description(self) -> str:
        """What is traded, for the operator."""
        names = ", ".join(map(str, self.runners.values())) or "no strategy"
        return f"{names} on {self.broker.name}; {self.feed.plan.description}"

    @property
    def lockdown(self) -> str:
        """Code, reason and start of a LOCKDOWN; empty in any other state."""
        now = self.monitor.safety
        if not self.monitor.is_current or now.state is not SafetyState.LOCKDOWN:
            return ""
        return f"{now.code} {now.message}, since {now.since:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done when a task of the run failed."""
        return self._tasks.failed

    @property
    def reconciler(self) -> Reconciler:
        return self.execution.reconciler

    @property
    def exits(self) -> StopExitHandler:
        return self._strategy_engine.exits

    async def summary(self) -> TradingSummary:
        """Summarise the run after its stop, reconciled with the broker."""
        return await summarise_trading(self)

    # --- running --------------------------------------------------------------------------------

    async def _start(self) -> None:
        run = self._tasks.start
        if self.config.brokers.mode == "paper":
            await self.kill_switch.enable_unset(tuple(self.runners), "first start on paper")
        await self.monitor.refresh()
        await self._params.load()
        self.engine.start()
        run("account lock", self._lock.run(self._reporter.trip))
        run("status", self._status.run())
        run("strategy parameters", self._params.run())
        letters = PostgresDeadLetterStore(self.database, self.engine.catalogue)
        run("dead letters", self.engine.persist_dead_letters(letters))
        run("safety monitor", self.monitor.run())
        run("outbox maintenance", OutboxMaintenance(self.database, self.config.outbox).run())
        run("trading gauges", TradingGauges(self.database, self.account, self.clock).run())
        if self.notifications.channels:
            run("notifications", self.notifications.run())
        run("execution reports", self.reconciler.follow_reports())
        if await self.execution.reconcile_at_start():
            await self.positions.load(self.database, self.broker)
        run("reconciler", self.reconciler.run())
        run("time in force", self.execution.time_in_force.run())
        self._consumers = self.execution.consumers()
        for consumer in self._consumers:
            run("consumer", consumer.run())
        self._start_maintenance()
        run("watch list", self._watch_list.run(self.database, self.broker.key))
        self._strategy_engine.start_stops()
        for runner in self.runners.values():
            if isinstance(runner, IsolatedRunner):
                run(f"process of {runner.key}", runner.run())
            run(f"cycles of {runner.key}", self._run_cycles(runner))
        self._feed_tasks = [run("feed", self.feed.run())]

    def _start_maintenance(self) -> None:
        parts = maintenance.MaintainedParts(
            strategies=self._strategy_engine,
            positions=self.positions,
            monitor=self.monitor,
            fail_safe=self.fail_safe,
            database=self.database,
            broker=self.broker,
            clock=self.clock,
            is_reconciled=self.reconciler.is_reconciled,
            reconciles_cleanly=self.reconciler.reconciles_cleanly,
            skew=self.skew,
            is_stopping=lambda: self.stopping,
            emit=self.order_updates.emit,
        )
        venue, run = self.config.feed.venue, self._tasks.start
        is_streaming: Callable[[], bool] = lambda: self.feed.status().streaming  # noqa: E731
        run("fail-safe recovery", maintenance.recover_fail_safe(parts))
        run("venue clock", maintenance.watch_venue_clock(parts))
        run("stops", maintenance.keep_positions(parts, self.began, self.alerts))
        run("venue stream", maintenance.watch_venue_stream(parts, venue, is_streaming, self.alerts))

    async def stop(self) -> None:
        """Stop ticks, then decisions, then orders, then the ledger. A second call does nothing."""
        if self.stopping:
            return
        self.stopping = True
        await self._tasks.end(self._feed_tasks)
        self.pipeline.suspend("stopping", "app")
        await asyncio.to_thread(self.engine.wait_drained, DRAIN_TIMEOUT_S, Priority.P1, Priority.P2)
        await self._strategy_engine.close()
        await self.execution.wait_settled(self.began)
        for consumer in self._consumers:
            consumer.stop()
        await self.order_updates.close()
        await self._freezer.close()
        await asyncio.to_thread(self.engine.stop)
        await self._tasks.end()
        await self._reporter.close()

    async def _run_cycles(self, runner: StrategyRunner) -> None:
        """Run cycles once positions are known: sizes depend on cash and positions."""
        await self.positions.loaded.wait()
        await self.pipeline.run(runner)

    def _publish_risk(self, name: str, payload: Payload) -> None:
        self.engine.publish(self.engine.new_event(name, payload, "risk"))

    def _wake_strategy(self, key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        self.engine.try_publish(self.engine.new_event("STRATEGY_EVALUATE", payload, "app"))

    def _policy(self) -> DecisionPolicy:
        ttl_s = self.config.pipeline.signal_ttl_s
        return DecisionPolicy(safety=self.monitor.safety.state, expires_after_s=ttl_s)

    def _is_open(self) -> bool:
        return self.config.feed.always_open or self.feed.poller.status().open
