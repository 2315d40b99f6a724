"""Parts of a run that are registered with the event lanes, and the periodic tasks beside them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from qts import telemetry
from qts.brokers import Broker
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, RefusedError, StrategyDisabled
from qts.events import Event, EventEngine, EventPort, EventsConfig, Payload
from qts.events import payloads as p
from qts.notify import RecentAlerts
from qts.orders import LEDGER_CHANNEL, BaselineHolding, list_baseline
from qts.outbox import SYSTEM_EVENT, EventBus, OutboxEvent
from qts.pipeline.decision_journal import SUFFIX, DecisionJournal, JournalHeader
from qts.pipeline.eteda import EtedaPipeline
from qts.pipeline.exits import POSITION_FREEZE, PositionFreezer, StopExitHandler
from qts.pipeline.isolated_runner import IsolatedRunner
from qts.pipeline.journaled_run import JournaledStore
from qts.pipeline.portfolio import PortfolioStore
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.runner_hooks import RunnerHooks
from qts.pipeline.scheduler import CycleEventHandler, CycleScheduler
from qts.pipeline.strategy_config import StrategyConfig
from qts.risk import FailSafe, MicroRiskLoop, SafetyMonitor, SafetyState, is_transient
from qts.strategies import Strategy
from qts.venues import ClockSkew

log = telemetry.logger("pipeline")

PUBLISH_RETRY_S = 1.0

RECOVERY_INTERVAL_S = 5.0
SYNC_INTERVAL_S = 0.1
SAVE_INTERVAL_S = 0.5  # of stop states that changed
RELOAD_INTERVAL_S = 1.0  # of positions, where a notification was lost
STREAM_CHECK_INTERVAL_S = 0.1  # a stream that was cut is down for at least half a second
CLOCK_CHECK_INTERVAL_S = 1.0
STREAM_DOWN = "stream disconnected; prices are polled meanwhile"


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


class MaintainedParts(NamedTuple):
    """What the tasks watch and repair."""

    stops: AccountStops
    positions: PositionSync
    monitor: SafetyMonitor
    fail_safe: FailSafe
    database: Database
    broker: Broker
    clock: Clock
    is_reconciled: Callable[[], bool]
    reconciles_cleanly: Callable[[], Awaitable[bool]]
    skew: ClockSkew
    is_stopping: Callable[[], bool]
    emit: Callable[[str, Payload], None]


def maintenance_tasks(
    parts: MaintainedParts,
    began: datetime,
    alerts: RecentAlerts,
    stream: tuple[str, Callable[[], bool]],
) -> dict[str, Coroutine[Any, Any, None]]:
    """Return what watches and repairs an account, by name; `stream`: its venue, and if it is up."""
    return {
        "fail-safe recovery": recover_fail_safe(parts),
        "venue clock": watch_venue_clock(parts),
        "stops": keep_positions(parts, began, alerts),
        "venue stream": watch_venue_stream(parts, *stream, alerts),
    }


async def sync_stops(parts: MaintainedParts) -> None:
    """Push positions to the stops until cancelled; publish BROKER_DISCONNECT on a gap."""
    was_reconciled, was_locked = True, False
    while True:
        await parts.clock.sleep(SYNC_INTERVAL_S)
        was_locked = resume_after_release(parts, was_locked)
        reconciled = parts.is_reconciled()
        if reconciled and not parts.positions.loaded.is_set():  # the broker was down at the start
            with contextlib.suppress(OperationError):  # tried again at the next turn
                await parts.positions.load(parts.database, parts.broker)
        parts.positions.push_to_stops()
        if was_reconciled and not reconciled:
            reason = "execution reports were lost; reconciling"
            parts.emit(
                "BROKER_DISCONNECT", p.BrokerDisconnect(broker=parts.broker.name, reason=reason)
            )
        was_reconciled = reconciled


async def report_baseline(parts: MaintainedParts, began: datetime, alerts: RecentAlerts) -> None:
    """Alert of holdings that this start has found for the first time."""
    with contextlib.suppress(OperationError):  # they are in the log and in the list too
        rows = await list_baseline(parts.database, parts.broker.key)
        _alert_of_baseline([row for row in rows if row.seen_at >= began], began, alerts)


def _alert_of_baseline(found: list[BaselineHolding], began: datetime, alerts: RecentAlerts) -> None:
    if found:
        names = ", ".join(f"{each.quantity.normalize():f} {each.symbol}" for each in found)
        text = f"held before QTS, and left alone: {names}"
        alerts.add(began.timestamp(), "info", text, "GR041")


async def save_stops(parts: MaintainedParts) -> None:
    """Write stop states behind their changes until cancelled, and then once more."""
    failed = False
    try:
        while True:
            await parts.clock.sleep(SAVE_INTERVAL_S)
            try:
                await parts.positions.save_stops(parts.database, parts.broker)
            except OperationError as error:  # the latest is written when it is back
                if not failed:
                    log.warning("stop state not stored; retrying", error=str(error))
                failed = True
            else:
                failed = False
    finally:
        with contextlib.suppress(OperationError):  # the last write is at most a second old
            await parts.positions.save_stops(parts.database, parts.broker)


async def follow_ledger(parts: MaintainedParts) -> None:
    """Reload positions that another process changed, within a second, until cancelled."""
    changed = asyncio.Event()

    async def listen() -> None:
        async with parts.database.listen(LEDGER_CHANNEL) as listener:
            async for _ in listener:
                changed.set()

    async def reload() -> None:
        while True:
            changed.clear()
            with contextlib.suppress(OperationError):  # read again at the next turn
                await parts.positions.reload(parts.database, parts.broker)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_INTERVAL_S):
                    await changed.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())
        tasks.create_task(reload())


async def keep_positions(parts: MaintainedParts, began: datetime, alerts: RecentAlerts) -> None:
    """Sync the stops, follow the ledger and save the stops' state until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sync_stops(parts))
        await parts.positions.loaded.wait()
        await report_baseline(parts, began, alerts)
        tasks.create_task(follow_ledger(parts))
        tasks.create_task(save_stops(parts))


def resume_after_release(parts: MaintainedParts, was_locked: bool) -> bool:
    """Resume the pipeline and the stops once the lockdown is released; return whether it is on."""
    if not parts.monitor.is_current:  # an unreachable database looks like a lockdown
        return was_locked
    is_locked = parts.monitor.safety.state is SafetyState.LOCKDOWN
    if was_locked and not is_locked and not parts.is_stopping():
        parts.stops.micro_risk.reset()
        parts.stops.pipeline.resume("release of the lockdown")
    return is_locked


async def recover_fail_safe(parts: MaintainedParts) -> None:
    """Clear codes whose cause is gone, where their rules allow it, until cancelled.

    A FAIL ends only after a reconciliation without differences that began after it.
    """
    while True:
        await parts.clock.sleep(RECOVERY_INTERVAL_S)
        with contextlib.suppress(OperationError):
            seen = await parts.fail_safe.clear_warning()
            if seen.state is not SafetyState.FAIL or not is_transient(seen.code):
                continue
            if await parts.reconciles_cleanly():
                await parts.fail_safe.clear_transient_fail(
                    seen, "reconciled with the broker without differences"
                )


async def watch_venue_clock(parts: MaintainedParts) -> None:
    """Raise FS113 once when the venue's clock and ours are too far apart; log when it is over."""
    was_synced = True
    while True:
        is_synced, seconds = parts.skew.is_synced(), parts.skew.seconds or 0.0
        with contextlib.suppress(OperationError):  # tried again at the next turn
            if was_synced and not is_synced:
                text = f"the venue's is {seconds:+.1f} s ahead of ours; run NTP"
                await parts.fail_safe.trip("FS113", text)
            elif is_synced and not was_synced:
                log.info("clock agrees with the venue's again", skew_s=round(seconds, 1))
            was_synced = is_synced
        await parts.clock.sleep(CLOCK_CHECK_INTERVAL_S)


async def watch_venue_stream(
    parts: MaintainedParts, venue: str, is_streaming: Callable[[], bool], alerts: RecentAlerts
) -> None:
    """Publish BROKER_DISCONNECT when the venue stream is cut; alert when it is back."""
    was_up = False
    while True:
        is_up = is_streaming()
        if was_up and not is_up and not parts.is_stopping():  # a stop ends the feed first
            log.warning("venue stream disconnected; polling", venue=venue)
            parts.emit("BROKER_DISCONNECT", p.BrokerDisconnect(broker=venue, reason=STREAM_DOWN))
        elif is_up and not was_up:
            now = parts.clock.now().timestamp()
            alerts.add(now, "info", f"{venue} stream connected", "BROKER_CONNECT")
        was_up = is_up
        await parts.clock.sleep(STREAM_CHECK_INTERVAL_S)
