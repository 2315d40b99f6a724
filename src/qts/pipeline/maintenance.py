"""Periodic tasks of a run: positions, stops, venue stream, recovery of the fail-safe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from qts import telemetry
from qts.brokers import Broker
from qts.database import Database
from qts.domain import Clock, OperationError
from qts.events import Payload
from qts.events import payloads as p
from qts.notify import RecentAlerts
from qts.orders import LEDGER_CHANNEL, BaselineHolding, list_baseline
from qts.pipeline.engine import AccountStops
from qts.pipeline.position_sync import PositionSync
from qts.risk import FailSafe, SafetyMonitor, SafetyState, is_transient
from qts.venues import ClockSkew

log = telemetry.logger("pipeline")

RECOVERY_INTERVAL_S = 5.0
SYNC_INTERVAL_S = 0.1
SAVE_INTERVAL_S = 0.5  # of stop states that changed
RELOAD_INTERVAL_S = 1.0  # of positions, where a notification was lost
STREAM_CHECK_INTERVAL_S = 0.1  # a stream that was cut is down for at least half a second
CLOCK_CHECK_INTERVAL_S = 1.0
STREAM_DOWN = "stream disconnected; prices are polled meanwhile"


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
