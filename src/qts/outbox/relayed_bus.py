"""Bus whose events are published in PostgreSQL and consumed from NATS or Kafka.

    publish ─▶ outbox ─▶ relay ─▶ NATS or Kafka ─▶ consumer ─▶ handler
                 ▲                                   │ no retries left
                 └─── operator ◀── dead letters ◀────┘

Publishing, pausing and dead letters stay in PostgreSQL, so that they work the same on every bus
and `qts ops outbox` serves them all.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, RefusedError, SystemClock, UnreachableError
from qts.outbox.bus import (
    Consumer,
    Delivery,
    EventBus,
    EventDispatcher,
    OutboxDeadLetter,
    OutboxEvent,
    OutboxRow,
    RetryableError,
)
from qts.outbox.config import OutboxConfig, StreamConfig, stream_config
from qts.outbox.handling import DeliveryRunner
from qts.outbox.postgres import PostgresBus
from qts.outbox.worker import OutboxWorker

# The attempts of handlers are counted by their consumer. Here only the crash of a relay uses one.
MAX_ATTEMPTS = 1000
CONCURRENCY = 100
BACKOFF_S = (0.05, 2.0)

Send = Callable[[Delivery], Awaitable[None]]
log = telemetry.logger("outbox")


def relay_configs(streams: Mapping[str, StreamConfig]) -> dict[str, StreamConfig]:
    """Return the stream settings of a relay: many attempts, many events at once."""
    return {
        name: msgspec.structs.replace(
            config,
            max_attempts=MAX_ATTEMPTS,
            concurrency=CONCURRENCY,
            batch=max(config.batch, CONCURRENCY),
            handler_timeout_s=max(config.handler_timeout_s, 60.0),
        )
        for name, config in streams.items()
    }


class Relay:
    """Moves the events of all streams until stopped; several may run, in any process.

        row ─▶ claimed, an aggregate in order ─▶ sent and confirmed ─▶ archived
                  ▲ lock expired: sent again

    Transactions publish as on PostgreSQL, and only committed events are sent. An event is archived
    once the server has confirmed it: a relay that crashes in between sends it again.
    """

    def __init__(
        self,
        database: Database,
        streams: Mapping[str, StreamConfig],
        send: Send,
        clock: Clock | None = None,
    ) -> None:
        self._sender = _Sender(send, clock or SystemClock())
        self._workers = [
            OutboxWorker(database, name, config, self._sender, accounts=None)
            for name, config in relay_configs(streams).items()
        ]

    def stop(self) -> None:
        self._sender.stopping = True
        for worker in self._workers:
            worker.stop()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(worker.run())


class _Sender:
    """Dispatcher that sends; it retries without end while the server is unreachable."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._unreachable = False
        self.stopping = False

    async def dispatch(self, delivery: Delivery) -> None:
        delay_s, max_s = BACKOFF_S
        while True:
            began_ns = self._clock.monotonic_ns()
            try:
                await self._send(delivery)
            except UnreachableError as error:
                if self.stopping:
                    raise RetryableError(str(error), code="NOT_SENT") from None
                self._log_unreachable(error)
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, max_s)
                delivery.extend((self._clock.monotonic_ns() - began_ns) / 1e9)
            else:
                self._unreachable = False
                return

    def _log_unreachable(self, error: UnreachableError) -> None:
        if not self._unreachable:
            self._unreachable = True
            log.warning("relay cannot send; retrying", error=str(error))


class RelayedBus(ABC):
    """EventBus for one event loop; a subclass adds the server."""

    def __init__(
        self, database: Database, streams: Mapping[str, StreamConfig], clock: Clock | None = None
    ) -> None:
        self.streams = streams
        self._database = database
        self._clock = clock or SystemClock()
        self._outbox = PostgresBus(database, relay_configs(streams), self._clock)

    @abstractmethod
    async def send(self, delivery: Delivery) -> None:
        """Send one event; return once the server has stored it, else raise UnreachableError."""

    @abstractmethod
    def create_consumer(self, runner: DeliveryRunner, account: str) -> Consumer:
        """Create the consumer that feeds this runner with events of the account, and of none."""

    @abstractmethod
    async def close(self) -> None: ...

    async def publish(self, tx: Connection, event: OutboxEvent) -> bool:
        return await self._outbox.publish(tx, event)

    async def publish_many(self, tx: Connection, events: Sequence[OutboxEvent]) -> set[UUID]:
        return await self._outbox.publish_many(tx, events)

    def row_of(self, event: OutboxEvent) -> OutboxRow:
        return self._outbox.row_of(event)

    def consumer(self, stream: str, dispatcher: EventDispatcher, account: str = "") -> Consumer:
        config = stream_config(self.streams, stream)
        return self.create_consumer(
            DeliveryRunner(self._database, stream, config, dispatcher, self._clock), account
        )

    def relay(self) -> Relay:
        return Relay(self._database, self.streams, self.send, self._clock)

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        """Run a relay during the block; events left over wait in PostgreSQL."""
        relay = self.relay()
        running = asyncio.create_task(relay.run())
        running.add_done_callback(_log_failure)
        try:
            yield
        finally:
            relay.stop()
            await running

    async def pause(self, stream: str) -> None:
        """Pause the relay at once, and the consumers within the stream's `poll_max_s`."""
        await self._outbox.pause(stream)

    async def resume(self, stream: str) -> None:
        await self._outbox.resume(stream)

    async def dead_letters(self, stream: str, limit: int = 100) -> list[OutboxDeadLetter]:
        return await self._outbox.dead_letters(stream, limit)

    async def requeue(self, event_id: UUID) -> bool:
        return await self._outbox.requeue(event_id)

    async def _close_outbox(self) -> None:
        await self._outbox.close()


def _log_failure(relay: asyncio.Task[None]) -> None:
    if not relay.cancelled() and relay.exception() is not None:
        log.error("relay failed; events wait in PostgreSQL", error=repr(relay.exception()))


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
        from qts.outbox.nats import NatsBus

        return NatsBus.open(database, config.streams, config.nats)
    if config.bus == "kafka":
        from qts.outbox.kafka import KafkaBus

        return KafkaBus.open(database, config.streams, config.kafka)
    raise RefusedError('outbox.bus = "postgres" has no relay; expected "nats" or "kafka"')
