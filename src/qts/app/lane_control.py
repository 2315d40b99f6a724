"""Manual degradation of a running QTS, by a command on the bus (`qts ops degrade`)."""

from __future__ import annotations

import asyncio
from datetime import datetime

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey
from qts.events import DegradationLevel, EventEngine
from qts.outbox import (
    TRADE_COMMAND,
    Delivery,
    Dispatcher,
    OutboxConfig,
    OutboxEvent,
    PostgresBus,
)

log = telemetry.logger("app")


class SetDegradation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Set the degradation level; None returns to the level that the load requires."""

    level: int | None
    requested_at: datetime


class LaneControl:
    """Applies commands that were requested since `began`: a level does not outlive its run."""

    def __init__(self, engine: EventEngine, began: datetime) -> None:
        self._engine = engine
        self._began = began

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(TRADE_COMMAND, SetDegradation)(self.set_level)

    async def set_level(self, command: SetDegradation, _delivery: Delivery) -> None:
        if command.requested_at < self._began:
            log.info("degradation command ignored; an earlier run", level=command.level)
            return
        level = None if command.level is None else DegradationLevel(command.level)
        log.warning("degradation level set manually", level=level.name if level is not None else "")
        await asyncio.to_thread(self._engine.degrade, level)


async def request_level(
    database: Database, key: AccountKey, level: DegradationLevel | None, now: datetime
) -> None:
    """Request a level from the running QTS of the account."""
    command = SetDegradation(level=None if level is None else int(level), requested_at=now)
    event = OutboxEvent.of(TRADE_COMMAND, command, ("Lanes", "all"), account=key)
    async with (
        PostgresBus.open(database, OutboxConfig().streams) as bus,
        database.transaction() as tx,
    ):
        await bus.publish(tx, event)
