"""The buses under test, each behind the same few words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from qts.database import Connection, Database, DatabaseConfig
from qts.domain import Secret
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, Event, EventBus, PostgresBus, StreamConfig

ORDERED, LOOSE = TRADE_COMMAND, TRADE_EVENT
PATIENCE: dict[str, Any] = {
    "lock_ttl_s": 1.0,
    "handler_timeout_s": 0.8,
    "backoff_base_s": 0.02,
    "backoff_max_s": 0.05,
    "poll_max_s": 0.2,
    "max_attempts": 3,
    "concurrency": 4,
    "batch": 8,
}
STREAMS = {
    ORDERED: StreamConfig(ordered=True, **PATIENCE),
    LOOSE: StreamConfig(**PATIENCE),
}


class Adapter(msgspec.Struct):
    """A bus, and how to get the transaction that it publishes with."""

    bus: EventBus
    transaction: Callable[[], AbstractAsyncContextManager[Connection]]

    async def publish(self, *events: Event) -> None:
        async with self.transaction() as tx:
            await self.bus.publish_many(tx, events)


@asynccontextmanager
async def postgres(url: Secret) -> AsyncIterator[Adapter]:
    async with (
        Database.open(url, DatabaseConfig(pool_min=1, pool_max=10)) as database,
        PostgresBus.open(database, STREAMS) as bus,
    ):
        yield Adapter(bus, database.transaction)


# The fixture that gives a server, and what opens a bus on it.
ADAPTERS: dict[str, tuple[str, Callable[[Any], AbstractAsyncContextManager[Adapter]]]] = {
    "postgres": ("database_url", postgres),
}
