"""The strategies role: strategies and bars here, orders in another process, joined over NATS.

Its lock lets one process at a time decide for an account.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple, Self

from qts import telemetry
from qts.app.account import DRAIN_TIMEOUT_S
from qts.app.account_configs import account_configs, account_of, create_strategies
from qts.app.roles import OpenRole, RoleParts
from qts.app.supervision import TaskSupervisor
from qts.app.venue import (
    ChosenVenue,
    has_catalogue,
    instrument_sync,
    recent_bars,
    remote_feed,
    watched_symbols,
)
from qts.config import Config
from qts.database import Database
from qts.domain import AccountKey, Instruments, OperationError, RefusedError
from qts.events import AccountEvents, AsyncPublisher, Catalogue, EventEngine, Priority, log_alert
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
from qts.pipeline.strategy_state import StrategyParamsWatcher, StrategyStates
from qts.pipeline.tick_publisher import TickPublisher
from qts.pipeline.warm_up import WarmUp
from qts.roles import RemoteFeed, RemotePipeline, ReportReceiver

CHECK_INTERVAL_S = 0.5
LOST_AFTER_S = 3.0  # of silence: then the server ends the session of the holder
RETRY_INTERVAL_S = 0.5

_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('strategies of qts account ' || $1, 0))"

log = telemetry.logger("app")


class StrategiesLock:
    """Lock on the strategies of some accounts; an async context manager on one event loop."""

    def __init__(self, database: Database, keys: Sequence[AccountKey]) -> None:
        self._database = database
        self._keys = keys
        self._connection: Any = None

    def is_held(self) -> bool:
        """Return whether no other process can have it, as far as is known."""
        return self._connection is not None

    async def __aenter__(self) -> Self:
        await self._take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    async def run(self) -> None:
        """Keep the lock until cancelled; raise OperationError when another process has it."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                async with asyncio.timeout(LOST_AFTER_S / 2):
                    await self._connection.fetchval("SELECT 1")
            except Exception as error:  # noqa: BLE001 - whatever it is, the lock may be gone
                log.warning("strategies lock lost; taking it again", error=repr(error))
                await self._take_again()

    async def _take_again(self) -> None:
        self._drop()
        since_s = monotonic()
        while not self.is_held():
            await asyncio.sleep(RETRY_INTERVAL_S)
            try:
                await self._take()
            except RefusedError as error:
                # The server may not have noticed yet that our connection is gone.
                if monotonic() > since_s + 2 * LOST_AFTER_S:
                    raise OperationError(str(error)) from None
            except OperationError as error:
                log.warning("strategies lock not taken; retrying", error=str(error))

    async def _take(self) -> None:
        self._connection = await self._database.connect(
            self._lock,
            application_name=f"strategies of {socket.gethostname()[:40]}, process {os.getpid()}",
            idle_session_timeout=str(round(LOST_AFTER_S * 1000)),
        )

    async def _lock(self, connection: Any) -> None:
        for key in self._keys:
            if not await connection.fetchval(_TRY_LOCK, str(key)):
                raise RefusedError(
                    f"strategies of account {key} run in another process; stop that one first:"
                    " two would decide everything twice"
                )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


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
