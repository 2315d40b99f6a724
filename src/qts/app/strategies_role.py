"""The strategies role: strategies and bars here, orders in another process, joined over NATS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from qts.app.account import DRAIN_TIMEOUT_S
from qts.app.account_configs import account_configs
from qts.app.feed_role import OpenRole, RoleParts
from qts.app.market_history import has_catalogue, recent_bars
from qts.app.run_parts import create_strategies
from qts.app.simulated_venue import account_of
from qts.app.strategies_lock import StrategiesLock
from qts.app.supervision import TaskSupervisor
from qts.app.venue import ChosenVenue, instrument_sync, remote_feed, watched_symbols
from qts.config import Config
from qts.domain import AccountKey, Instruments
from qts.events import (
    AccountEvents,
    AsyncPublisher,
    Catalogue,
    EventEngine,
    Priority,
    log_alert,
)
from qts.events import payloads as p
from qts.outbox import EventBus, open_bus
from qts.pipeline import IsolatedRunner, Portfolio, RunnerHooks, StrategyRunner
from qts.pipeline.bar_publisher import BarPublisher
from qts.pipeline.engine import (
    StrategyEngine,
    build_runners,
    build_store,
    check_lanes,
    report_disabled,
)
from qts.pipeline.scheduler import CycleScheduler
from qts.pipeline.strategy_params import StrategyParamsWatcher
from qts.pipeline.strategy_state import StrategyStates
from qts.pipeline.tick_publisher import TickPublisher
from qts.pipeline.warm_up import WarmUp
from qts.roles import RemoteFeed, RemotePipeline, ReportReceiver


class _Account(NamedTuple):
    """An account whose orders another process sends."""

    venue: str
    alone: bool
    instruments: Instruments
    config: Config
    key: AccountKey
    portfolio: Portfolio
    reports: ReportReceiver
    pipeline: RemotePipeline

    def trades(self, symbol: str) -> bool:
        """Return whether orders of the symbol belong to this account."""
        if self.alone or self.instruments[symbol].venue == self.venue:
            return True
        return symbol in self.portfolio.positions


class StrategiesRole:
    """Strategies of a system; `open` builds and starts it, and ends it without losing signals."""

    def __init__(self, parts: RoleParts) -> None:
        self._parts = parts
        config, clock = parts.config, parts.clock
        check_lanes(config.events)
        self._instances = config.strategy_instances()
        self._strategies = create_strategies(config)
        self._configs = account_configs(config)
        keys = [account_of(each) for each in self._configs]
        self._lock = StrategiesLock(parts.database, keys)
        self._store = build_store(clock, None, len(self._configs))
        self._tasks = TaskSupervisor()
        self._runners: dict[str, StrategyRunner] = {}
        self._engine = EventEngine(config.events, Catalogue(), clock, log_alert)
        self._accounts = [
            self._account(number, each, key)
            for number, (each, key) in enumerate(zip(self._configs, keys, strict=True))
        ]

    def _account(self, number: int, config: Config, key: AccountKey) -> _Account:
        _, _, clock, connection, _ = self._parts
        known, store = Instruments(), self._store
        portfolio = Portfolio(clock, known, store, number)
        replace = lambda state: store.replace(number, state)  # noqa: E731
        reports = ReportReceiver(connection, key, replace, self._runners)
        ttl_s = config.pipeline.signal_ttl_s
        pipeline = RemotePipeline(connection, key, reports, clock, self._lock.is_held, ttl_s)
        alone = len(self._configs) == 1
        venue = config.feed.venue_name
        return _Account(venue, alone, known, config, key, portfolio, reports, pipeline)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[OpenRole]:
        config, database, clock, connection, home = self._parts
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._tasks.end)
            await stack.enter_async_context(self._lock)
            bus = await stack.enter_async_context(open_bus(database, config.outbox))
            for each in self._accounts:
                folder = home if each.alone else home / each.venue
                sync = instrument_sync(each.config, database, clock, folder, each.instruments)
                await sync.start()
                self._tasks.start("instruments", sync.run())
            bars, warm_ups = await self._connect(stack)
            self._build()
            feeds = [self._feed(each, bars) for each in self._accounts]
            receiving = await self._start(bus)
            receiving += [self._tasks.start("feed", each.run()) for each in feeds]
            receiving.append(self._tasks.start("bars", bars.run()))
            receiving += [self._tasks.start("warm-up", each.run()) for each in warm_ups]
            names = ", ".join(map(str, self._runners.values())) or "no strategy"
            try:
                yield OpenRole(f"{names}; orders by {connection.address}", self._tasks)
            finally:
                await self._stop(receiving)

    async def _connect(self, stack: contextlib.AsyncExitStack) -> tuple[BarPublisher, list[WarmUp]]:
        """Return the bars, and what reads their history; a venue is connected for that alone."""
        clock, home = self._parts.clock, self._parts.home
        watched = watched_symbols(self._accounts)
        symbols = [symbol for each in watched.values() for symbol in each]
        strategies = list(self._strategies.values())
        stored = has_catalogue(strategies)

        def deliver(key: str, bars: Iterable[Any], is_new: bool) -> None:
            self._runners[key].add_bars(bars, is_new=is_new)

        bars = BarPublisher(strategies, symbols, deliver, clock, has_history=stored)
        found: list[WarmUp] = []
        for each in self._accounts if bars.warming else ():
            connected = await stack.enter_async_context(
                ChosenVenue.of(each.config).connect(home, clock)
            )
            recent = recent_bars(each.config, connected.history, home, clock)
            found.append(WarmUp(bars, recent, watched[each.venue], clock))
        return bars, found

    def _build(self) -> None:
        config, database, clock, *_ = self._parts
        engine = self._engine
        self._publisher = AsyncPublisher(engine, "pipeline")
        pipelines = [each.pipeline for each in self._accounts]
        self._scheduler = CycleScheduler(
            pipelines, self._pipeline_of, config.pipeline, self._publisher.emit, clock
        )
        self._states = StrategyStates(database, self._accounts[0].key, None)
        hooks = RunnerHooks(
            self._store.view,
            self._wake,
            self._scheduler.on_signals,
            asyncio.get_running_loop(),
            None,
            self._states.keep,
        )
        isolated = config.pipeline.isolated_strategies
        for runner in build_runners(self._instances, self._strategies, isolated, hooks):
            self._runners[runner.key] = runner
        StrategyEngine(engine, self._scheduler, self._runners)
        self._params = StrategyParamsWatcher(database, self._runners, None)

    def _feed(self, account: _Account, bars: BarPublisher) -> RemoteFeed:
        _, _, clock, connection, _ = self._parts
        events = AccountEvents(self._engine, "" if account.alone else account.venue)
        every = account.config.telemetry.trace_every
        ticks = TickPublisher(events, account.portfolio, None, bars, None, every)
        return remote_feed(connection, account.config, ticks.callbacks, clock)

    async def _start(self, bus: EventBus) -> list[asyncio.Task[None]]:
        """Start the tasks; return those that end first."""
        run, database, clock = self._tasks.start, self._parts.database, self._parts.clock
        await self._params.load()
        await self._states.load(self._runners)
        self._engine.start()
        run("strategies lock", self._lock.run())
        run("strategy parameters", self._params.run())
        run("strategy states", self._states.run())
        receiving = []
        for each in self._accounts:
            run("signals", each.pipeline.run())
            receiving.append(run("reports", each.reports.run(self._flush)))
        for runner in self._runners.values():
            if isinstance(runner, IsolatedRunner):
                run(f"process of {runner.key}", runner.run())
            receiving.append(run(f"cycles of {runner.key}", self._scheduler.run(runner)))
            key = self._accounts[0].key
            run(f"state of {runner.key}", report_disabled(runner, database, bus, key))
            run(f"timer of {runner.key}", runner.run_timer(clock))
        return receiving

    async def _flush(self) -> None:
        """Wait until what strategies returned is stored, at every account."""
        await asyncio.gather(*(each.pipeline.flush() for each in self._accounts))

    async def _stop(self, receiving: Iterable[asyncio.Task[None]]) -> None:
        """Stop ticks and reports, then decisions, then signals."""
        await self._tasks.end(receiving)
        for each in self._accounts:
            each.pipeline.stop()
        drained = self._engine.wait_drained
        await asyncio.to_thread(drained, DRAIN_TIMEOUT_S, Priority.P1, Priority.P2)
        await asyncio.gather(*(each.close(DRAIN_TIMEOUT_S) for each in self._runners.values()))
        await self._states.close()
        await asyncio.gather(*(each.pipeline.close(DRAIN_TIMEOUT_S) for each in self._accounts))
        await self._publisher.close(DRAIN_TIMEOUT_S)
        await asyncio.to_thread(self._engine.stop)

    def _pipeline_of(self, symbol: str) -> RemotePipeline:
        found = (each.pipeline for each in self._accounts if each.trades(symbol))
        return next(found, self._accounts[0].pipeline)

    def _wake(self, key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        self._engine.try_publish(self._engine.new_event("STRATEGY_EVALUATE", payload, "app"))
