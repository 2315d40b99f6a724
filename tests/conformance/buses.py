"""Buses under test, each opened by one function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from qts.database import Connection, Database, DatabaseConfig
from qts.domain import Secret
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EVENT,
    EventBus,
    KafkaBus,
    KafkaBusConfig,
    NatsBus,
    NatsBusConfig,
    OutboxEvent,
    PostgresBus,
    StreamConfig,
)

ORDERED, UNORDERED = TRADE_COMMAND, TRADE_EVENT
SETTINGS: dict[str, Any] = {
    "lock_ttl_s": 3.0,  # a busy machine may stall for a second
    "handler_timeout_s": 0.8,
    "backoff_base_s": 0.02,
    "backoff_max_s": 0.05,
    "poll_max_s": 0.2,
    "max_attempts": 3,
    "concurrency": 4,
    "batch": 8,
}
STREAMS = {
    ORDERED: StreamConfig(ordered=True, **SETTINGS),
    UNORDERED: StreamConfig(**SETTINGS),
}


class Adapter(msgspec.Struct):
    """Bus with the transaction that it publishes in."""

    bus: EventBus
    transaction: Callable[[], AbstractAsyncContextManager[Connection]]
    by_partition: bool = False  # consumers share a stream by its partitions, not by its events

    async def publish(self, *events: OutboxEvent) -> None:
        async with self.transaction() as tx:
            await self.bus.publish_many(tx, events)


@asynccontextmanager
async def postgres(url: Secret) -> AsyncIterator[Adapter]:
    async with _database(url) as database, PostgresBus.open(database, STREAMS) as bus:
        yield Adapter(bus, database.transaction)


@asynccontextmanager
async def nats(url: Secret, config: NatsBusConfig) -> AsyncIterator[Adapter]:
    async with (
        _database(url) as database,
        NatsBus.open(database, STREAMS, config) as bus,
        bus.relaying(),
    ):
        yield Adapter(bus, database.transaction)


@asynccontextmanager
async def kafka(url: Secret, config: KafkaBusConfig) -> AsyncIterator[Adapter]:
    async with (
        _database(url) as database,
        KafkaBus.open(database, STREAMS, config) as bus,
        bus.relaying(),
    ):
        yield Adapter(bus, database.transaction, by_partition=True)


def _database(url: Secret) -> AbstractAsyncContextManager[Database]:
    return Database.open(url, DatabaseConfig(pool_min=1, pool_max=10))


# The fixtures that provide servers, and the function that opens a bus on them.
ADAPTERS: dict[str, tuple[list[str], Callable[..., AbstractAsyncContextManager[Adapter]]]] = {
    "postgres": (["database_url"], postgres),
    "kafka": (["database_url", "kafka"], kafka),
    "nats": (["database_url", "nats"], nats),
}
