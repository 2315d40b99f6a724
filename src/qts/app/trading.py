"""Everything that trades, joined: feed, events, cache, strategies, gate, desk, bus, broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from qts import telemetry
from qts.app.changes import Changes
from qts.app.exits import Exits
from qts.app.facts import FactsNow
from qts.app.figures import Figures
from qts.app.live import LivePublisher, Notices
from qts.app.params import Parameters
from qts.app.summary import Lane, Traded, counted
from qts.app.ticks import Ticks
from qts.app.truth import DatabaseTruth
from qts.brokers import Broker
from qts.brokers.kis import KisBroker
from qts.brokers.paper import PaperBroker
from qts.cache import Cache
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.database import Database
from qts.domain import Clock, Failed, Market, Refused, Secret, market_of
from qts.events import Catalogue, Engine, Event, Hooks, Priority
from qts.events import payloads as p
from qts.events.postgres import PostgresDeadLetters
from qts.feed import Feed, read_symbols
from qts.notify import Notifications
from qts.orders import (
    Desk,
    Executor,
    Floor,
    Ledger,
    Reconciler,
    Submitted,
    Switchboard,
    books_agree,
    positions,
)
from qts.outbox import (
    BACKTEST_COMMAND,
    TRADE_COMMAND,
    TRADE_EVENT,
    Dispatcher,
    EventBus,
    Upkeep,
    open_bus,
)
from qts.pipeline import (
    Kind,
    Leave,
    Outcomes,
    Pipeline,
    Position,
    Runner,
    Strategy,
    Trader,
    World,
    load_strategy,
    tick_of,
)
from qts.risk import (
    EMERGENCY_ORDER,
    FailSafe,
    Gate,
    KillSwitch,
    MicroRisk,
    Proposal,
    StopHolding,
    Watch,
)
from qts.venues import KisClient, open_kis

log = telemetry.logger("app")

SETTLE_S = 10.0
DRAIN_S = 5.0
FIRST_LOOK_S = 30.0
CALM_EVERY_S = 5.0
SYNC_S = 0.1
LOTS = {Market.KRX: 1.0, Market.UPBIT: 1e-8}  # the least that can be sold
_OWNERS = (
    "SELECT DISTINCT ON (i.symbol) i.symbol, i.strategy_key FROM order_intent i"
    " JOIN position p ON p.broker = i.broker AND p.symbol = i.symbol AND p.quantity <> 0"
    " WHERE i.broker = $1 AND i.intent_type = 'ENTRY' ORDER BY i.symbol, i.created_at DESC"
)


class Trading:
    """Use `open`. It runs from then on; `close` stops it in the order in which nothing is lost."""

    def __init__(self, config: Config, database: Database, clock: Clock) -> None:
        self.config = config
        self.database = database
        self.clock = clock
        self.began = clock.now()
        self.world = World(clock)
        self.outcomes = Outcomes()
        self.watch = Watch(database, clock)
        self.fail_safe = FailSafe(database)
        self.kill_switch = KillSwitch(database)
        self.runners: dict[str, Runner] = {}
        self.notices = Notices()
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._telling: set[asyncio.Task[Any]] = set()
        self._stop_micro = threading.Event()
        self._stopping = False
        self.failed: asyncio.Future[None] = self._loop.create_future()

    # --- made in this order ---------------------------------------------------------------------

    engine: Engine
    bus: EventBus
    cache: Cache
    broker: Broker
    feed: Feed
    floor: Floor
    reconciler: Reconciler
    pipeline: Pipeline
    micro: MicroRisk
    ticks: Ticks
    changes: Changes
    exits: Exits
    notifications: Notifications

    @contextlib.asynccontextmanager
    async def opened(self, cache_url: Secret, home: Path) -> AsyncIterator[Trading]:
        async with contextlib.AsyncExitStack() as stack:
            await self._make(stack, cache_url, home)
            try:
                await self._start()
                yield self
            finally:
                await self.stop()

    @property
    def sentence(self) -> str:
        """What is traded, for the owner."""
        names = ", ".join(self.runners) or "no strategy"
        return f"{names} on {self.broker.name}; {self.feed.plan.sentence}"

    async def _make(self, stack: contextlib.AsyncExitStack, cache_url: Secret, home: Path) -> None:
        config, database, clock = self.config, self.database, self.clock
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        self.engine = Engine(config.events, catalogue, clock, self._hooks())
        self.bus = await stack.enter_async_context(open_bus(database, config.outbox))
        store = await stack.enter_async_context(RedisStore.open(cache_url, config.cache))
        broker = config.brokers.broker
        truth = DatabaseTruth(database, broker, self.world, config.risk.limits.exact, clock)
        self.cache = await stack.enter_async_context(
            Cache.open(store, truth, config.cache, clock=clock)
        )
        self.changes = Changes(self.engine, self.world, self.outcomes, self.cache, clock)
        self.changes.trip = self.trip
        self.ticks = Ticks(self.engine, self.world, self.cache, clock)
        read_symbols(config.feed.symbols)  # the commonest mistake, told before the key is taken
        client = await stack.enter_async_context(open_kis(config.venues.kis, home, clock))
        self.feed = stack.enter_context(Feed.on(client, config.feed, home, clock, [self.ticks]))
        self.broker = await self._open_broker(stack, client)
        self.notifications = await stack.enter_async_context(
            Notifications.open(database, config.notify, clock)
        )
        self._make_orders()
        self._make_pipeline()
        self._live = LivePublisher(self, store, self.notices)
        self._parameters = Parameters(database, self.runners, self.cache)

    async def _open_broker(self, stack: contextlib.AsyncExitStack, client: KisClient) -> Broker:
        brokers = self.config.brokers
        if brokers.broker == "kis":
            return KisBroker(client, self.database, brokers, self.clock, self.feed.stream)
        if brokers.broker == "paper":
            paper = await stack.enter_async_context(
                PaperBroker.open(self.database, brokers.paper, brokers.costs, self.clock)
            )
            self.ticks.paper = paper.on_tick
            return paper
        raise Refused(
            f"brokers.broker is {brokers.broker!r}, and the feed of this run watches KIS; "
            'expected "paper" or "kis"'
        )

    def _make_orders(self) -> None:
        config = self.config
        safety = Switchboard(self.fail_safe, self.kill_switch)
        ledger = Ledger(
            self.database,
            self.bus,
            self.broker.name,
            allow_short=config.orders.allow_short,
            on_change=self.changes,
        )
        self.floor = Floor(
            self.database, self.bus, self.broker, ledger, safety, config.orders, self.clock
        )
        self.reconciler = Reconciler(self.floor)
        self._dispatcher = Dispatcher()
        Executor(self.floor, self.reconciler.may_trade, self.reconciler.look).register(
            self._dispatcher
        )
        self.notifications.register(self._dispatcher)
        self.desk = Desk(
            self.database, self.bus, self.broker.name, safety, self.changes, self.clock
        )

    def _make_pipeline(self) -> None:
        config, clock = self.config, self.clock
        facts = FactsNow(
            self.database,
            self.broker.name,
            self.cache,
            self.world,
            self.watch,
            clock,
            may_trade=self.reconciler.may_trade,
            is_open=self._is_open,
        )
        self.changes.changed = self._changed = facts.changed
        self.trader = trader = Trader(
            Gate(config.risk.limits.exact),
            self.desk,
            facts,
            self.outcomes,
            self._submitted,
        )
        self.pipeline = Pipeline(
            config.pipeline, self.world, trader, config.risk.limits.exact, self._leave, clock
        )
        self.pipeline.emit = self.changes.emit
        self.pipeline.trip = self.fail_safe.trip
        self.micro = MicroRisk(config.risk.stops, self._emit, self.trip, clock)
        self.changes.hold = self._hold
        self.exits = Exits(trader, self.micro, clock)
        for strategy in self._strategies():
            self.runners[strategy.key] = Runner(
                strategy, self.world.view, self._wake, self.pipeline.heard, self._loop
            )
        self._register()

    def _strategies(self) -> Iterable[Strategy[Any]]:
        pipeline = self.config.pipeline
        for name in pipeline.strategies:
            kind = load_strategy(name)
            yield kind.make(pipeline.params_of(kind.key))

    def _register(self) -> None:
        engine = self.engine

        def on_tick(event: Event) -> None:
            tick = tick_of(event)
            for runner in self.runners.values():
                runner.tick(tick)

        def on_evaluate(event: Event) -> None:
            runner = self.runners.get(event.payload.strategy_type)
            if runner is not None:
                runner.work()

        def on_suspend(event: Event) -> None:
            self._loop.call_soon_threadsafe(
                self.pipeline.suspend, event.payload.reason, event.payload.code or "event"
            )

        engine.watch("PRICE_TICK", self.micro.stops, "price")
        engine.on("PRICE_TICK", on_tick)
        engine.on("STRATEGY_EVALUATE", on_evaluate)
        engine.on("EMERGENCY_ORDER", self.exits)
        engine.on("TRAILING_STOP_HIT", self.exits)
        engine.on("ETEDA_SUSPEND", on_suspend)

    # --- running --------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self.config.brokers.mode == "paper":
            await self.kill_switch.begin(tuple(self.runners), "first start on paper")
        await self.watch.look()
        await self._parameters.load()
        self.engine.start()
        self._run("live", self._live.run())
        self._run("parameters", self._parameters.run())
        letters = PostgresDeadLetters(self.database, self.engine.catalogue)
        self._run("dead letters", self.engine.keep_dead_letters(letters))
        self._run("switches", self.watch.run())
        self._run("upkeep", Upkeep(self.database, self.config.outbox).run())
        self._run("figures", Figures(self.database, self.clock).run())
        if self.notifications.notifiers:
            self._run("messages", self.notifications.run())
        self._run("notices", self.reconciler.follow())
        await self._first_look()
        self._run("reconciler", self.reconciler.run())
        self._consumers = [
            self.bus.consumer(stream, self._dispatcher)
            for stream in (TRADE_COMMAND, TRADE_EVENT, BACKTEST_COMMAND)
        ]
        for consumer in self._consumers:
            self._run("consumer", consumer.run())
        self._run("calm", self._keep_calm())
        self._run("stops", self._keep_stops())
        self._micro_thread = threading.Thread(
            target=self.micro.run, args=(self._stop_micro,), name="qts-micro-risk", daemon=True
        )
        self._micro_thread.start()
        for runner in self.runners.values():
            self._run(f"cycles of {runner.key}", self.pipeline.run(runner))
        self._feeding = self._run("feed", self.feed.run())

    async def _first_look(self) -> None:
        """Nothing trades before our books have been compared with the broker's."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                report = await self.reconciler.once()
        except (Failed, TimeoutError) as error:
            log.error("the first comparison with the broker failed; only cancels", error=str(error))
            return
        if report.differences:
            await self.fail_safe.trip("FS070", f"{len(report.differences)} positions differ")
        await self._load_world()

    async def _load_world(self) -> None:
        account = await self.broker.account()
        held = await positions(self.database)
        self.world.begin(
            account.cash,
            [
                Position(row.symbol, row.quantity, row.average_price)
                for row in held
                if row.broker == self.broker.name
            ],
        )
        self.world.owners.update(
            {row[0]: row[1] for row in await self.database.fetch(_OWNERS, self.broker.name)}
        )
        self._hold()

    async def stop(self) -> None:
        """Ticks first, then decisions, then orders, then the books. A second stop does nothing."""
        if self._stopping:
            return
        self._stopping = True
        await _end([self._feeding] if hasattr(self, "_feeding") else [])
        self.pipeline.suspend("stopping", "app")
        await asyncio.to_thread(self.engine.drained, DRAIN_S, Priority.P1, Priority.P2)
        await self.pipeline.close()
        await self.exits.close()
        self._stop_micro.set()
        await self._settled()
        for consumer in getattr(self, "_consumers", ()):
            consumer.stop()
        self._stopped = await asyncio.to_thread(self.engine.stop)
        await self.changes.close()
        await _end(self._tasks)

    async def _settled(self) -> None:
        """Until no order is under way any more, or the patience ends."""
        query = (
            "SELECT count(*) FROM order_attempt WHERE status IN ('PREPARED', 'SENT')"
            " AND created_at >= $1"
        )
        end = self._loop.time() + SETTLE_S
        with contextlib.suppress(Failed):
            while self._loop.time() < end:
                if not await self.database.fetchval(query, self.began):
                    return
                await self.clock.sleep(0.05)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """No part ends before the stop: an error of one ends the run."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            log.error("a part ended by an error", part=task.get_name(), error=repr(error))
            self.failed.set_exception(error)

    # --- joints ---------------------------------------------------------------------------------

    def trip(self, code: str, text: str) -> None:
        """Raise a code; from any thread."""
        self._loop.call_soon_threadsafe(self._trip_soon, code, text)

    def _trip_soon(self, code: str, text: str) -> None:
        task = asyncio.create_task(self._tripped(code, text))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tripped(self, code: str, text: str) -> None:
        try:
            await self.fail_safe.trip(code, text)
        except Failed as error:
            log.error("a code could not be written down", code=code, error=str(error))

    def _submitted(self, proposal: Proposal, _submitted: Submitted) -> None:
        self._changed()
        if not proposal.intent_type.is_exit:
            self.world.owners[proposal.symbol] = proposal.strategy_key

    def _hooks(self) -> Hooks:
        def told(alert: Any) -> None:
            self.trip(alert.code, alert.text)

        def noted(alert: Any) -> None:
            at = self.clock.now().timestamp()
            self.notices.note(at, alert.severity, alert.text, alert.code)

        return Hooks(alert=noted, fail_safe=told, guardrail=told)

    def _emit(self, name: str, payload: Any) -> None:
        self.engine.publish(self.engine.event(name, payload, "risk"))

    def _wake(self, key: str) -> None:
        self.engine.try_publish(
            self.engine.event("STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=key), "app")
        )

    def _leave(self) -> Leave:
        return Leave(
            safety=self.watch.safety.state,
            expires_after_s=self.config.pipeline.signal_life_s,
        )

    def _is_open(self) -> bool:
        feed = self.config.feed
        return feed.always_open or self.feed.poller.state().open

    def _hold(self) -> None:
        self.micro.hold(
            [
                StopHolding(
                    symbol=each.symbol,
                    quantity=float(each.quantity),
                    average=float(each.average_price),
                    lot=LOTS[market_of(each.symbol)],
                    kind=self._kind_of(each.symbol),
                )
                for each in self.world.positions.values()
            ],
            float(self.world.equity),
        )

    def _kind_of(self, symbol: str) -> Kind:
        """Of the strategy that holds it; what nobody here holds is the portfolio's."""
        runner = self.runners.get(self.world.owners.get(symbol, ""))
        return runner.strategy.kind if runner else "PORTFOLIO"

    async def _keep_stops(self) -> None:
        """What is held, for the stops; and a word when the broker is not to be reached."""
        knew = True
        while True:
            await self.clock.sleep(SYNC_S)
            self._hold()
            knows = self.reconciler.may_trade()
            if knew and not knows:
                lost = "news were lost, and its books are not compared yet"
                self.changes.emit(
                    "BROKER_DISCONNECT", p.BrokerDisconnect(broker=self.broker.name, reason=lost)
                )
            knew = knows

    async def _keep_calm(self) -> None:
        while True:
            await self.clock.sleep(CALM_EVERY_S)
            with contextlib.suppress(Failed):
                await self.fail_safe.calm()
                if self.reconciler.may_trade():
                    await self.fail_safe.recheck("the books agree and the broker answers")

    # --- the end --------------------------------------------------------------------------------

    async def summary(self) -> Traded:
        """After the stop: what happened, and whether the broker's books say the same."""
        agree = await self._agreement()
        counts = await counted(self.database, self.began)
        status = self.engine.status()
        cache = self.cache.status()
        positions_now = self.world.positions
        earned = await self.database.fetchval(
            "SELECT COALESCE(sum(realised_pnl - fee), 0) FROM fill WHERE received_at >= $1",
            self.began,
        )
        return Traded(
            mode=self.config.brokers.mode,
            broker=self.broker.name,
            ticks=self.ticks.count,
            lanes={
                name: Lane(
                    lane.published,
                    lane.handled,
                    lane.dropped + lane.collapsed + lane.sampled,
                    round(lane.total.p50, 3),
                    round(lane.total.p99, 3),
                    round(lane.total.max, 3),
                )
                for name, lane in status.lanes.items()
            },
            positions=len(positions_now),
            pnl={
                "realised": Decimal(earned).quantize(Decimal("0.01")),
                "unrealised": self.world.unrealised.quantize(Decimal("0.01")),
                "equity": self.world.equity.quantize(Decimal("0.01")),
            },
            cache={name: kind.hit_rate for name, kind in cache.kinds.items()},
            refusals=dict(self.trader.refusals),
            safety=(await self.fail_safe.now()).state,
            books_agree=agree[0],
            differences=agree[1],
            **counts,
        )

    async def _agreement(self) -> tuple[bool, tuple[str, ...]]:
        try:
            await self.reconciler.once()
            found = await books_agree(self.floor, self.began - timedelta(minutes=1))
        except Failed as error:
            return False, (f"the books could not be compared: {error}",)
        return bool(found), found.differences


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    waiting = [task for task in tasks if not task.done()]
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
