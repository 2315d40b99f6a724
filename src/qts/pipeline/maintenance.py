"""What is looked after between ticks: the stops' holdings, the line to the venue, the fail-safe."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from qts import telemetry
from qts.domain import OperationError
from qts.events import payloads as p
from qts.risk import SafetyState

if TYPE_CHECKING:
    from qts.app import TradingSystem

log = telemetry.logger("app")

CALM_EVERY_S = 5.0
SYNC_S = 0.1
LINE_S = 0.1  # a stream that was cut stays away for half a second at least
CUT = "stream is cut; prices are polled until it is back"
OPEN = "stream is open"


async def sync_stops(trading: TradingSystem) -> None:
    """What is held, for the stops; and a word when the broker is not to be reached."""
    knew, was_locked = True, False
    while True:
        await trading.clock.sleep(SYNC_S)
        was_locked = resume_after_release(trading, was_locked)
        knows = trading.reconciler.is_reconciled()
        if knows:
            await _know_positions(trading)
        trading.deciding.holding.push_to_stops()
        if knew and not knows:
            lost = "news were lost, and its books are not compared yet"
            trading.changes.emit(
                "BROKER_DISCONNECT", p.BrokerDisconnect(broker=trading.broker.name, reason=lost)
            )
        knew = knows


def resume_after_release(trading: TradingSystem, was_locked: bool) -> bool:
    """Whether it is locked. A person who ends a lockdown ends what it had stopped, too."""
    watch = trading.watch
    if not watch.is_current:  # a database that is away looks like a lockdown, and ends like none
        return was_locked
    is_locked = watch.safety.state is SafetyState.LOCKDOWN
    if was_locked and not is_locked and not trading.stopping:
        trading.micro.reset()
        trading.pipeline.resume("the release of the lockdown")
    return is_locked


async def _know_positions(trading: TradingSystem) -> None:
    """What was held before, where the broker did not answer at the start."""
    holding = trading.deciding.holding
    if not holding.known.is_set():
        with contextlib.suppress(OperationError):  # asked again at once
            await holding.load(trading.ground, trading.broker)


async def recover_fail_safe(trading: TradingSystem) -> None:
    """Codes that are over end by themselves, where the rules let them."""
    while True:
        await trading.clock.sleep(CALM_EVERY_S)
        with contextlib.suppress(OperationError):
            await trading.fail_safe.clear_warning()
            if trading.reconciler.is_reconciled():
                await trading.fail_safe.clear_transient_fail(
                    "the books agree and the broker answers"
                )


async def watch_venue_stream(trading: TradingSystem) -> None:
    """An event of lane P0 when the venue's stream is cut, and a word for the owner at each end."""
    venue, was_up = trading.config.feed.venue, False
    while True:
        is_up = trading.feed.state().streaming
        if was_up and not is_up and not trading.stopping:  # a stop ends the feed first
            log.warning("the venue's stream is cut", venue=venue)
            trading.changes.emit("BROKER_DISCONNECT", p.BrokerDisconnect(broker=venue, reason=CUT))
        elif is_up and not was_up:
            now = trading.clock.now().timestamp()
            trading.notices.add(now, "info", f"{venue} {OPEN}", "BROKER_CONNECT")
        was_up = is_up
        await trading.clock.sleep(LINE_S)
