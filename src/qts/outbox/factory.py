"""Construction of the bus that the settings name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from qts.database import Database
from qts.domain import RefusedError
from qts.outbox.bus import EventBus
from qts.outbox.config import OutboxConfig
from qts.outbox.kafka import KafkaBus
from qts.outbox.nats import NatsBus
from qts.outbox.postgres import PostgresBus
from qts.outbox.relayed_bus import RelayedBus


@asynccontextmanager
async def open_bus(database: Database, config: OutboxConfig) -> AsyncIterator[EventBus]:
    """Open the bus, with its relay unless that runs in another process."""
    if config.bus == "postgres":
        async with PostgresBus.open(database, config.streams) as rows:
            yield rows
        return
    async with open_relayed_bus(database, config) as bus:
        if not config.run_relay:
            yield bus
            return
        async with bus.relaying():
            yield bus


def open_relayed_bus(
    database: Database, config: OutboxConfig
) -> AbstractAsyncContextManager[RelayedBus]:
    """Open the bus on NATS or Kafka without a relay."""
    if config.bus == "nats":
        return NatsBus.open(database, config.streams, config.nats)
    if config.bus == "kafka":
        return KafkaBus.open(database, config.streams, config.kafka)
    raise RefusedError('outbox.bus = "postgres" has no relay; expected "nats" or "kafka"')
