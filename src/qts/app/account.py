"""One account of a run: its venue's feed and broker, its portfolio, stops, gate and orders."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from qts.app.account_configs import AccountSettings, RunParts
from qts.app.supervision import RunWorkers, TaskSupervisor
from qts.app.venue import FeedSource, connect_venue, instrument_sync, open_paper_broker, recent_bars
from qts.brokers import Broker
from qts.brokers.paper import PaperBroker
from qts.cache import Cache, CacheStore
from qts.domain import Instruments, OperationError, Tick
from qts.events import AccountEvents, AsyncPublisher, EventEngine, Payload, Priority
from qts.feed import PriceFeed, read_symbols
from qts.orders import DatabaseSafetyControls, ExecutionContext, Ledger, Reconciler, SubmitResult
from qts.orders.engine import ExecutionEngine
from qts.outbox import EventBus
from qts.pipeline import (
    DecisionPolicy,
    EtedaPipeline,
    IntentTracker,
    MarketState,
    OrderSubmitter,
    PipelineHooks,
    Portfolio,
    StrategyRunner,
    own_stops,
)
from qts.pipeline.bar_publisher import BarPublisher
from qts.pipeline.cache_loader import (
    AccountCacheWriter,
    CacheSource,
    DatabaseCacheLoader,
    PreCheckStep,
)
from qts.pipeline.engine import AccountStops, MaintainedParts, maintenance_tasks
from qts.pipeline.exits import PositionFreezer, StopExitHandler
from qts.pipeline.fill_monitor import FillMonitor
from qts.pipeline.isolated_runner import ProcessPauser
from qts.pipeline.manual_orders import ManualOrderHandler
from qts.pipeline.order_changer import OrderCanceller
from qts.pipeline.order_handlers import OrderEventHandler, OrderUpdatePublisher
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import (
    AccountStateReader,
    AccountVersion,
    RiskSnapshotReader,
    RiskSources,
)
from qts.pipeline.scheduler import AccountEvaluator
from qts.pipeline.stop_orders import StopOrders
from qts.pipeline.tick_publisher import TickPublisher, WatchList
from qts.pipeline.warm_up import WarmUp
from qts.risk import (
    FailSafe,
    KillSwitch,
    MicroRiskLoop,
    OrderProposal,
    PreTradeGate,
    SafetyMonitor,
    SafetyState,
)
from qts.risk.fail_safe import FailSafeReporter
from qts.venues import ClockSkew

DRAIN_TIMEOUT_S = 5.0
STREAM_CLOSE_S = 1.0


class TradingAccount:
    """Built in the order of its methods: `open`, `connect`, `build`, `register`, `start`."""

    def __init__(self, settings: AccountSettings, run: RunParts, number: int) -> None:
        config, self.lease, self.keys = settings
        self.key = key = self.lease.key
        self.config = replace(config, cache=config.cache.of_account(key.account))
        self.venue = config.feed.venue_name
        self.alone = len(run.store.state.accounts) == 1
        self._run, self.limits = run, run.limits
        database, clock = run.database, run.clock
        self.monitor = SafetyMonitor(database, key, clock)
        self.fail_safe = FailSafe(database, key, self._epoch)
        self.kill_switch = KillSwitch(database, key, self._epoch)
        self.reporter = FailSafeReporter(self.fail_safe, self._add_alert, clock)
        self.instruments = Instruments()
        self.portfolio = Portfolio(clock, self.instruments, run.store, number)
        self._version = AccountVersion()
        self._tracker = IntentTracker()
        self._stop_orders = StopOrders(database, key, self.portfolio, clock, self._epoch)
        self.stopping = False

    events: AccountEvents
    cache: Cache
    ticks: TickPublisher
    feed: PriceFeed
    broker: Broker
    skew: ClockSkew
    warm_up: WarmUp
    micro_risk: MicroRiskLoop
    market: MarketState
    positions: PositionSync
    publisher: AsyncPublisher
    execution: ExecutionEngine
    precheck: PreCheckStep
    submitter: OrderSubmitter
    manual_orders: ManualOrderHandler
    pipeline: EtedaPipeline
    stops: AccountStops

    # --- building -------------------------------------------------------------------------------

    async def open(self, stack: AsyncExitStack, engine: EventEngine, store: CacheStore) -> None:
        """Open the cache and the paper broker, and load the instruments of the venue."""
        config, (database, clock, *_) = self.config, self._run
        self._engine, self.events = engine, AccountEvents(engine, "" if self.alone else self.venue)
        self._cached = CacheSource(database, self.key, self.portfolio, self.limits, clock)
        loader = DatabaseCacheLoader(self._cached)
        opening = Cache.open(store, loader, config.cache, clock=clock)
        self.cache = await stack.enter_async_context(opening)
        known = self.instruments
        catalogue = self.keys if self.alone else self.keys / self.venue
        self._instrument_sync = instrument_sync(config, database, clock, catalogue, known)
        await self._instrument_sync.start()
        paper = open_paper_broker(config, database, clock, known)
        self._paper: PaperBroker | None = await stack.enter_async_context(paper)
        self.order_database = await stack.enter_async_context(database.reserved())

    async def connect(
        self, stack: AsyncExitStack, bars: BarPublisher, symbols: list[str] | None
    ) -> None:
        """Connect to the venue; `symbols` are those to watch, None: all of feed.symbols."""
        config, (database, clock, *_) = self.config, self._run

        def on_tick(tick: Tick) -> None:
            bars(tick)
            self._stop_orders.on_tick(tick)

        every, into = config.telemetry.trace_every, (self.portfolio, self.cache, on_tick)
        self.ticks = TickPublisher(self.events, *into, self._paper, every)
        source, paper = FeedSource(self.ticks.callbacks, symbols, self._run.roles), self._paper
        self.feed, self.broker, self.skew, history = await stack.enter_async_context(
            connect_venue(config, database, clock, self.keys, self.instruments, source, paper)
        )
        recent = recent_bars(config, history, self.keys, clock)
        watched = read_symbols(config.feed.symbols) if symbols is None else symbols
        self.warm_up = WarmUp(bars, recent, watched, clock)

    def build(self, bus: EventBus, on_order: Callable[[datetime], None]) -> None:
        """Build what trades; `on_order` takes the time of the decision of each order."""
        self._build_execution(bus)
        self._build_pipeline(on_order)

    def _build_execution(self, bus: EventBus) -> None:
        config, (database, clock, *_) = self.config, self._run
        version = self._version
        self._watch_list = WatchList(self.portfolio, self.feed, clock)
        stops, trip, age = config.risk.stops, self.reporter.trip, self.feed.price_age_s
        source = self.events.source("risk")
        self.micro_risk = MicroRiskLoop(stops, self._publish_risk, trip, clock, age, source=source)
        self.market = MarketState(self.events, self.micro_risk, stops, self.portfolio, clock)
        kinds = {each.key: each.kind for each in self._run.strategies.values()}
        own = own_stops(stops, self._run.instances)
        self.positions = PositionSync(
            self.portfolio, self.micro_risk, kinds, clock, own, self._epoch
        )
        self._states = AccountStateReader(self.order_database, self.key, version, clock)
        self._account_cache = AccountCacheWriter(self.cache, self._cached, self._states)
        self._evaluator = AccountEvaluator(self.events, self._account_cache, version)
        self.publisher = AsyncPublisher(self._engine, self.events.source("orders"))
        updates = OrderUpdatePublisher(self.publisher, self.positions, version, trip)
        short, key = config.orders.allow_short, self.key
        context = ExecutionContext(
            database=database,
            bus=bus,
            broker=self.broker,
            ledger=Ledger(database, bus, key, allow_short=short, on_change=updates),
            safety=DatabaseSafetyControls(self.fail_safe, self.kill_switch),
            config=config.orders,
            clock=clock,
            order_database=self.order_database,
        )
        self.execution = ExecutionEngine(context, updates, self.positions, self.lease)
        self._freezer = PositionFreezer(database, bus, key, self._run.alerts, version, clock)

    def _build_pipeline(self, on_order: Callable[[datetime], None]) -> None:
        config, portfolio, clock = self.config, self.portfolio, self._run.clock
        version, limits = self._version, self.limits
        record = self._run.journal.append if self._run.journal else None
        sources = RiskSources(
            states=self._states,
            cache=self.cache,
            portfolio=portfolio,
            monitor=self.monitor,
            freezing=self._freezer.pending,
            unwatched=self.positions.unwatched,
            is_reconciled=self.reconciler.is_reconciled,
            is_open=self.is_open,
            is_clock_synced=self.skew.is_synced,
            base_price=self.feed.base_price,
        )

        fills = FillMonitor(self.events, portfolio, config.risk.fills, self.reporter.trip, clock)

        def on_submitted(proposal: OrderProposal, submitted: SubmitResult) -> None:
            version.advance()
            self._watch_list.submitted(proposal.symbol)
            self.precheck.submitted(proposal.signal_id, submitted.intent_id)
            fills.submitted(proposal, submitted)
            if submitted.attempt_id is not None:
                self._order_events.submitted(proposal, submitted.intent_id)
            if not self._stop_orders.submitted(proposal.signal_id):
                on_order(proposal.decided_at)
            if not proposal.intent_type.is_exit and submitted.attempt_id is not None:
                self.positions.entered(proposal)

        gate = PreTradeGate(limits)
        self.precheck = PreCheckStep(self.cache, sources, gate, self._account_cache, clock, record)
        read, manager = RiskSnapshotReader(sources, clock), self.execution.manager
        self.submitter = OrderSubmitter(gate, manager, read, self._tracker, on_submitted, record)
        self.manual_orders = ManualOrderHandler(
            self._run.database, self.key, self.submitter, manager, self._stop_orders, clock
        )
        emit, trip, ready = self.publisher.emit, self.reporter.trip, self.positions.loaded.is_set
        number = self._run.next_cycle
        cancel = OrderCanceller(self._run.database, self.key, manager.cancel, self._tracker)
        hooks = PipelineHooks(
            self._policy,
            emit,
            trip,
            record,
            self.precheck,
            ready,
            number,
            cancel,
            self._stop_orders,
        )
        self.pipeline = EtedaPipeline(
            config.pipeline, portfolio, self.submitter, limits, hooks, clock
        )

    def register(
        self, runners: Mapping[str, StrategyRunner], workers: RunWorkers, pauser: ProcessPauser
    ) -> None:
        """Register the handlers of fills, orders and stops with the lanes."""
        self._workers, pipeline = workers, self.pipeline
        may_start: Callable[[], bool] = lambda: pipeline.may_start  # noqa: E731
        self._stop_orders.attach(runners, pipeline.on_signals, may_start, self.monitor.is_off)
        followers = self._tracker, self._account_cache, self._version, runners
        self._order_events = OrderEventHandler(self.events, self.positions, *followers)
        clock = self._run.clock
        exits = StopExitHandler(
            self.submitter, self.micro_risk, self.portfolio, self._freezer, pauser, clock
        )
        self.stops = AccountStops(self.events, self.pipeline, self.micro_risk, exits, self._freezer)

    # --- what others read -----------------------------------------------------------------------

    def _epoch(self) -> int:
        return self.lease.epoch

    @property
    def description(self) -> str:
        """Where orders go, and what is watched."""
        where = "" if self.alone else f"{self.venue}: "
        return f"{where}{self.broker.name}; {self.feed.status().plan}"

    @property
    def lockdown(self) -> str:
        """Code, reason and start of a LOCKDOWN; empty in any other state."""
        now = self.monitor.safety
        if not self.monitor.is_current or now.state is not SafetyState.LOCKDOWN:
            return ""
        where = "" if self.alone else f"{self.venue}: "
        return f"{where}{now.code} {now.message}, since {now.since:%Y-%m-%d %H:%M:%S} UTC"

    def trades(self, symbol: str) -> bool:
        """Return whether orders of the symbol belong to this account."""
        if self.alone or self.instruments[symbol].venue == self.venue:
            return True
        return symbol in self.portfolio.positions

    @property
    def reconciler(self) -> Reconciler:
        return self.execution.reconciler

    # --- running --------------------------------------------------------------------------------

    async def start(self, tasks: TaskSupervisor) -> None:
        """Reconcile, then start the tasks of the account; ticks come with `start_feed`."""
        run, database = tasks.start, self._run.database
        run("account lease", self.lease.run(self.reporter.trip, self.reconciler.request))
        run("instruments", self._instrument_sync.run())
        run("safety monitor", self.monitor.run())
        if not self.reconciler.is_following:
            self.follow_reports(tasks)
        if await self.execution.reconcile_at_start():
            await self.positions.load(database, self.broker)
        await self._stop_orders.load()
        run("stop orders", self._stop_orders.run())
        run("reconciler", self.reconciler.run())
        run("account in the cache", self._evaluator.run())
        run("time in force", self.execution.time_in_force.run())
        self._workers.start(tasks)
        self._start_maintenance(tasks)
        self.stops.start()

    def follow_reports(self, tasks: TaskSupervisor) -> None:
        tasks.start("execution reports", self.reconciler.follow_reports())

    def start_feed(
        self, tasks: TaskSupervisor, active: asyncio.Event | None = None
    ) -> list[asyncio.Task[None]]:
        """Start the feed and what it watches; `active` is set once a standby has the lease."""
        watching = self._watch_list.run(self._run.database, self.key)
        feed = tasks.start("feed", self.feed.run(active))
        self._end_feed = functools.partial(tasks.end, [feed])
        return [feed, tasks.start("watch list", watching)]

    def _start_maintenance(self, tasks: TaskSupervisor) -> None:
        database, clock, began, alerts, *_ = self._run
        parts = MaintainedParts(
            stops=self.stops,
            positions=self.positions,
            monitor=self.monitor,
            fail_safe=self.fail_safe,
            database=database,
            broker=self.broker,
            clock=clock,
            is_reconciled=self.reconciler.is_reconciled,
            reconciles_cleanly=self.reconciler.reconciles_cleanly,
            skew=self.skew,
            is_stopping=lambda: self.stopping,
            emit=self.publisher.emit,
        )
        stream = self.venue, lambda: self.feed.status().streaming
        for name, task in maintenance_tasks(parts, began, alerts, stream).items():
            tasks.start(name, task)

    def stop_workers(self) -> None:
        """Claim no more commands."""
        self._workers.stop()

    async def hand_over(self) -> None:
        """End orders in flight, then the stops and their exits, and release the lease at once."""
        await self._stop_orders.close()
        await self.execution.wait_settled(self._run.began)
        with contextlib.suppress(OperationError):  # the last write is at most half a second old
            await self.positions.save_stops(self._run.database, self.broker)
        self.ticks.is_paused = True  # from here on, nobody watches until the standby does
        if self.feed.shares_key:  # the next run cannot open the stream while this one has it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STREAM_CLOSE_S):
                    await self._end_feed()
        await asyncio.to_thread(self._engine.wait_drained, DRAIN_TIMEOUT_S, Priority.P0)
        await self.stops.close()
        await self.execution.close()
        await self.lease.release()

    async def settle(self) -> None:
        """Wait for cycles, exits and orders in flight, then for what they changed."""
        await self.stops.close()
        await self._stop_orders.close()
        await self.execution.wait_settled(self._run.began)
        self._workers.stop()
        await self.publisher.close(DRAIN_TIMEOUT_S)
        await self._order_events.close()
        await self._freezer.close()

    def _add_alert(
        self, at: float, severity: Literal["info", "warning", "critical"], text: str, code: str
    ) -> None:
        """Add an alert, with the venue where the run has several."""
        self._run.alerts.add(at, severity, text if self.alone else f"{self.venue}: {text}", code)

    def _publish_risk(self, name: str, payload: Payload) -> None:
        self.events.publish(self.events.new_event(name, payload, "risk"))

    def _policy(self) -> DecisionPolicy:
        ttl_s = self.config.pipeline.signal_ttl_s
        return DecisionPolicy(safety=self.monitor.safety.state, expires_after_s=ttl_s)

    def is_open(self) -> bool:
        return self.config.feed.always_open or self.feed.is_open
