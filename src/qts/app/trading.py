"""The trading part of a run: lanes, bus, strategies and bars, and one account or several."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from qts.app.account import DRAIN_TIMEOUT_S, TradingAccount
from qts.app.account_configs import AccountSettings, RunParts, check_capital, journal_header
from qts.app.pair import Standby
from qts.app.roles import ExecutionRole
from qts.app.status import build_status, telegram_bot
from qts.app.summary import TradingSummary, summarise_trading
from qts.app.supervision import LaneControl, RunWorkers, TaskSupervisor
from qts.app.venue import has_catalogue, watched_symbols
from qts.backtest import BacktestJobHandler
from qts.cache import CacheStore
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.database import Database
from qts.domain import Clock, Secret
from qts.events import (
    AsyncPublisher,
    Catalogue,
    EventEngine,
    LaneAlert,
    Priority,
    log_alert,
)
from qts.events import payloads as p
from qts.events.dead_letters import PostgresDeadLetterStore
from qts.notify import AlertStore, AlertWriter, NotificationService, RecentAlerts
from qts.orders.engine import TradingGauges
from qts.outbox import EventBus, OutboxMaintenance, open_bus
from qts.pipeline import (
    EtedaPipeline,
    IsolatedRunner,
    RunnerHooks,
    StrategyRunner,
)
from qts.pipeline.bar_publisher import BarPublisher, BarsOfStrategy
from qts.pipeline.engine import (
    StrategyEngine,
    build_runners,
    build_store,
    check_lanes,
    open_decision_journal,
    report_disabled,
)
from qts.pipeline.exits import POSITION_FREEZE
from qts.pipeline.isolated_runner import ProcessPauser
from qts.pipeline.scheduler import CycleScheduler
from qts.pipeline.strategy_state import StrategyParamsWatcher, StrategyStates
from qts.risk import EMERGENCY_ORDER
from qts.roles import RoleConnection
from qts.strategies import Strategy


class TradingSystem:
    """Everything that trades. `open` builds and starts it; `stop` ends it without losing orders.

    A standby is built by `prepare`, follows the market from `stand_by` on, and starts once it has
    the leases.
    """

    def __init__(
        self,
        config: Config,
        database: Database,
        clock: Clock,
        accounts: Sequence[AccountSettings],
        strategies: Mapping[str, Strategy[Any]],
        roles: RoleConnection | None = None,
    ) -> None:
        check_lanes(config.events)
        self.config = config
        self.database = database
        self.clock = clock
        self.began = clock.now()
        self.alerts = RecentAlerts()
        self.instances = config.strategy_instances()
        self.strategies = strategies
        keys, journal_mb = [each.lease.key for each in accounts], config.retention.journal_mb
        header = journal_header(config, self.instances, self.began, keys)
        self.journal = open_decision_journal(config.pipeline.journal, header, journal_mb)
        self.store = build_store(clock, self.journal, len(accounts))
        parts = RunParts(
            database,
            clock,
            self.began,
            self.alerts,
            self.instances,
            self.strategies,
            header.limits,
            self.journal,
            self.store,
            itertools.count(1).__next__,
            roles,
        )
        self.accounts = [
            TradingAccount(each, parts, number) for number, each in enumerate(accounts)
        ]
        self._remote = None if roles is None else ExecutionRole(roles, self)
        self._tasks = TaskSupervisor()
        self._feed_tasks: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []  # signals of another process
        self._standby: Standby | None = None
        self._is_started = self.stopping = False

    # --- built by `open`, in this order ---------------------------------------------------------

    engine: EventEngine
    bus: EventBus
    bars: BarPublisher
    notifications: NotificationService
    publisher: AsyncPublisher
    scheduler: CycleScheduler
    runners: Mapping[str, StrategyRunner]
    strategy_engine: StrategyEngine

    @contextlib.asynccontextmanager
    async def open(self, cache_url: Secret) -> AsyncIterator[TradingSystem]:
        """Build everything and start it."""
        async with self.prepare(cache_url):
            await self.start()
            yield self

    @contextlib.asynccontextmanager
    async def prepare(self, cache_url: Secret) -> AsyncIterator[TradingSystem]:
        """Build everything; `start` starts it, `stop` is called at the end."""
        async with contextlib.AsyncExitStack() as stack:
            if self.journal is not None:
                stack.enter_context(self.journal)
            store = await self._open_stores(stack, cache_url)
            await self._connect(stack)
            for account in self.accounts:
                account.build(self.bus, lambda decided: self._status.metrics.on_order(decided))
            self._build_strategies()
            lanes = LaneControl(self.engine, self.began)
            pauser = ProcessPauser(self.runners)
            jobs: BacktestJobHandler | None = BacktestJobHandler(self.database, self.bus)
            for each in self.accounts:
                parts = each.execution, each.manual_orders, self.notifications, lanes
                around = [] if self._remote is None else [self._remote.around(each)]
                workers = RunWorkers(jobs, self.bus, each.key, parts, *around)
                each.register(self.runners, workers, pauser)
                jobs = None  # one worker computes backtests
            folder = (self.config.home or self.accounts[0].keys) / "reports"
            self._status, self._reports = build_status(self, stack, store, cache_url, folder)
            cache = self.accounts[0].cache
            self._params = StrategyParamsWatcher(self.database, self.runners, cache)
            try:
                yield self
            finally:
                await self.stop()

    async def _open_stores(self, stack: contextlib.AsyncExitStack, cache_url: Secret) -> CacheStore:
        config, database, clock = self.config, self.database, self.clock
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        catalogue.register(POSITION_FREEZE)
        self.engine = EventEngine(config.events, catalogue, clock, self._on_lane_alert)
        self.bus = await stack.enter_async_context(open_bus(database, config.outbox))
        store = await stack.enter_async_context(RedisStore.open(cache_url, config.cache))
        for account in self.accounts:
            await account.open(stack, self.engine, store)
        return store

    def _on_lane_alert(self, alert: LaneAlert) -> None:
        """Log and show an alert of the lanes; a code concerns every account."""
        log_alert(alert)
        for account in self.accounts if alert.code else self.accounts[:1]:
            account.reporter.on_lane_alert(alert)

    async def _connect(self, stack: contextlib.AsyncExitStack) -> None:
        config, clock = self.config, self.clock
        watched = watched_symbols(self.accounts)
        symbols = [symbol for each in watched.values() for symbol in each]
        check_capital(self.instances, self.strategies, self.accounts)
        strategies = list(self.strategies.values()) if self._remote is None else []
        stored = has_catalogue(strategies)
        deliver = self._deliver_bars
        self.bars = BarPublisher(strategies, symbols, deliver, clock, has_history=stored)
        for account in self.accounts:
            symbols_of = None if account.alone else watched[account.venue]
            await account.connect(stack, self.bars, symbols_of)
        self.notifications = await stack.enter_async_context(
            NotificationService.open(
                self.database, config.notify, clock, alerts=self.alerts, engine=self.engine
            )
        )

    def _build_strategies(self) -> None:
        config, clock = self.config, self.clock
        record = self.journal.append if self.journal else None
        self.publisher = AsyncPublisher(self.engine, "pipeline")
        pipelines = [each.pipeline for each in self.accounts]
        self.scheduler = CycleScheduler(
            pipelines, self._pipeline_of, config.pipeline, self.publisher.emit, clock
        )
        view, on_signals = self.store.view, self.scheduler.on_signals
        loop = asyncio.get_running_loop()
        lease = self.accounts[0].lease
        epoch = lambda: lease.epoch  # noqa: E731
        self._states = StrategyStates(self.database, lease.key, record, epoch)
        keep = self._states.keep
        hooks = RunnerHooks(view, self._wake_strategy, on_signals, loop, record, keep)
        isolated = config.pipeline.isolated_strategies
        runners: Iterable[StrategyRunner]
        if self._remote is None:
            runners = build_runners(self.instances, self.strategies, isolated, hooks)
        else:
            runners = self._remote.build_runners(hooks)
        self.runners = {runner.key: runner for runner in runners}
        self.strategy_engine = StrategyEngine(self.engine, self.scheduler, self.runners)

    # --- what others read -----------------------------------------------------------------------

    @property
    def description(self) -> str:
        """What is traded, for the operator."""
        names = ", ".join(map(str, self.runners.values())) or "no strategy"
        return f"{names} on {'; '.join(each.description for each in self.accounts)}"

    @property
    def lockdown(self) -> str:
        """Code, reason and start of a LOCKDOWN; empty in any other state."""
        return "; ".join(found for each in self.accounts if (found := each.lockdown))

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done when a task of the run failed."""
        return self._tasks.failed

    async def summary(self, *, reconcile: bool = True) -> TradingSummary:
        """Summarise the run after its stop, reconciled with the brokers while it has the leases."""
        return await summarise_trading(self, reconcile=reconcile)

    # --- running --------------------------------------------------------------------------------

    def stand_by(self) -> None:
        """Follow the market and the ledger without the leases; nothing is published or sent."""
        self._standby = standby = Standby(self)
        self.engine.start()  # its lanes are empty
        self._start_feeds(standby.has_leases)
        self._start_warm_up(shared=False)  # requests of a shared key are the active run's
        for account in self.accounts:
            if not account.feed.shares_key:
                account.follow_reports(self._tasks)
        self._tasks.start("positions of the ledger", standby.follow_positions())

    async def start(self) -> None:
        """Start all of it; the leases are held."""
        self._is_started = True
        if self._standby is not None:
            await self._standby.take_over()
        else:
            self.engine.start()
        run = self._tasks.start
        for account in self.accounts:
            if account.config.brokers.mode == "paper":
                await account.kill_switch.enable_unset(tuple(self.runners), "first start on paper")
            await account.monitor.refresh()
        if self._remote is None:
            await self._params.load()
            await self._states.load(self.runners)
        run("status", self._status.run())
        for report in self._reports:
            run("daily report", report.run())
        letters = PostgresDeadLetterStore(self.database, self.engine.catalogue)
        run("dead letters", self.engine.persist_dead_letters(letters))
        run("outbox maintenance", OutboxMaintenance(self.database, self.config.outbox).run())
        run("notifications", self.notifications.run())
        keys = [each.key for each in self.accounts]
        run("alerts", AlertWriter(AlertStore(self.database, keys), self.alerts, self.clock).run())
        telegram = self.config.notify.telegram
        if telegram.token and telegram.command_users:
            run("telegram commands", telegram_bot(self, telegram.token, self._status.collect).run())
        run("trading gauges", TradingGauges(self.database, keys, self.clock).run())
        await asyncio.gather(*(each.start(self._tasks) for each in self.accounts))
        if self._remote is None:
            self._start_strategies()
        else:
            self._receiving = self._remote.start(self._tasks)
        if self._standby is None:
            self._start_feeds(None)
            self._start_warm_up(shared=False)
        else:
            self._standby.start_strategies()
            self._standby = None
        self._start_warm_up(shared=True)

    def _start_strategies(self) -> None:
        run = self._tasks.start
        run("strategy parameters", self._params.run())
        run("strategy states", self._states.run())
        for runner in self.runners.values():
            if isinstance(runner, IsolatedRunner):
                run(f"process of {runner.key}", runner.run())
            run(f"cycles of {runner.key}", self._run_cycles(runner))
            reporting = report_disabled(runner, self.database, self.bus, self.accounts[0].key)
            run(f"state of {runner.key}", reporting)
            run(f"timer of {runner.key}", runner.run_timer(self.clock))

    def _start_feeds(self, has_leases: asyncio.Event | None) -> None:
        for account in self.accounts:
            self._feed_tasks += account.start_feed(self._tasks, has_leases)
        self._feed_tasks.append(self._tasks.start("bars", self.bars.run()))

    def _start_warm_up(self, *, shared: bool) -> None:
        """Start it for the accounts whose feed shares a key with other runs, or for the others."""
        found = [each.warm_up for each in self.accounts if each.feed.shares_key is shared]
        self._feed_tasks += [self._tasks.start("warm-up", each.run()) for each in found]

    def _deliver_bars(self, key: str, bars: BarsOfStrategy, is_new: bool) -> None:
        if self._standby is not None:
            self._standby.hold_bars(key, bars)
        else:
            self.runners[key].add_bars(bars, is_new=is_new)

    async def stop(self) -> None:
        """Stop ticks, then decisions, then orders, then the ledger. A second call does nothing."""
        if self.stopping:
            return
        self._stop_accounts()
        await self._tasks.end([*self._feed_tasks, *self._receiving])
        if self._is_started:
            await self._stop_decisions()
            await self._settle()
        await self._stop_tasks()

    async def hand_over(self) -> None:
        """Stop decisions and orders while the stops go on, then the stops, and release the leases.

        The stops of the standby watch from then on.
        """
        self._stop_accounts()
        self.strategy_engine.is_paused = True
        for account in self.accounts:
            account.stop_workers()  # the standby takes the commands that wait
        await self._tasks.end(self._receiving)  # and the signals
        await self._stop_decisions()
        await asyncio.gather(*(each.hand_over() for each in self.accounts))
        await self._tasks.end(self._feed_tasks)
        await self._settle()
        await self._stop_tasks()

    def _stop_accounts(self) -> None:
        self.stopping = True
        for account in self.accounts:
            account.stopping = True
            if not account.lease.is_held:  # another run may: its commands are not ours
                account.stop_workers()

    async def _stop_decisions(self) -> None:
        for account in self.accounts:
            account.pipeline.stop()
        drained = self.engine.wait_drained
        await asyncio.to_thread(drained, DRAIN_TIMEOUT_S, Priority.P1, Priority.P2)
        # on_stop sees every order: those of the last cycles are sent, and shown in the views.
        await asyncio.gather(*(each.pipeline.close() for each in self.accounts))
        await asyncio.to_thread(drained, DRAIN_TIMEOUT_S, Priority.P0)
        await asyncio.gather(*(each.close(DRAIN_TIMEOUT_S) for each in self.runners.values()))
        await self._states.close()
        await self.publisher.close(DRAIN_TIMEOUT_S)

    async def _settle(self) -> None:
        await asyncio.gather(*(each.settle() for each in self.accounts))
        if self._remote is not None:
            await self._remote.close(DRAIN_TIMEOUT_S)

    async def _stop_tasks(self) -> None:
        await asyncio.to_thread(self.engine.stop)
        await self._tasks.end()
        await asyncio.gather(*(each.reporter.close() for each in self.accounts))

    async def _run_cycles(self, runner: StrategyRunner) -> None:
        """Run cycles once positions are known: sizes depend on cash and positions."""
        loaded = [asyncio.create_task(each.positions.loaded.wait()) for each in self.accounts]
        await asyncio.wait(loaded, return_when=asyncio.FIRST_COMPLETED)
        await self.scheduler.run(runner)

    def _pipeline_of(self, symbol: str) -> EtedaPipeline:
        """Return the pipeline of the symbol's account; that of the first refuses unknown ones."""
        found = (each.pipeline for each in self.accounts if each.trades(symbol))
        return next(found, self.accounts[0].pipeline)

    def _wake_strategy(self, key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        self.engine.try_publish(self.engine.new_event("STRATEGY_EVALUATE", payload, "app"))
