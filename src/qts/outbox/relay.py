"""Relay from the outbox to NATS or Kafka: a consumer whose handler sends.

    row ─▶ claimed, an aggregate in order ─▶ sent and confirmed ─▶ archived
              ▲ lock expired: sent again

Transactions publish as on PostgreSQL, and only committed events are sent. An event is archived once
the server has confirmed it: a relay that crashes in between sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, SystemClock, UnreachableError
from qts.outbox.bus import Delivery
from qts.outbox.config import StreamConfig
from qts.outbox.errors import RetryableError
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
    """Moves the events of all streams until stopped; several may run, in any process."""

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
