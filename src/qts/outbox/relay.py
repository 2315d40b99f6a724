"""From committed rows to another server: a consumer of the outbox whose handler sends.

    row ─▶ claimed, one aggregate in order ─▶ sent, and confirmed ─▶ archived
              ▲ lock ran out: sent again

So a transaction publishes as it always does, and nothing is sent that was not committed. An event
is archived only when the server has confirmed it: a relay that dies in between sends it again.
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

# Those of handlers are counted where they run. Here an attempt is used up by nothing but the
# death of a relay.
ATTEMPTS = 1000
AT_ONCE = 100
RETRY_S = (0.05, 2.0)

Send = Callable[[Delivery], Awaitable[None]]
log = telemetry.logger("outbox")


def relay_configs(streams: Mapping[str, StreamConfig]) -> dict[str, StreamConfig]:
    """The streams as rows that are to be sent: patient, and many at once."""
    return {
        name: msgspec.structs.replace(
            config,
            max_attempts=ATTEMPTS,
            concurrency=AT_ONCE,
            batch=max(config.batch, AT_ONCE),
            handler_timeout_s=max(config.handler_timeout_s, 60.0),
        )
        for name, config in streams.items()
    }


class Relay:
    """Moves all streams until stopped; several may do so at once, here and elsewhere."""

    def __init__(
        self,
        database: Database,
        streams: Mapping[str, StreamConfig],
        send: Send,
        clock: Clock | None = None,
    ) -> None:
        self._sender = _Sender(send, clock or SystemClock())
        self._workers = [
            OutboxWorker(database, name, config, self._sender)
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
    """The handler: waits for a server that is away, as long as it takes."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._away = False
        self.stopping = False

    async def dispatch(self, delivery: Delivery) -> None:
        delay_s, longest_s = RETRY_S
        while True:
            began_ns = self._clock.monotonic_ns()
            try:
                await self._send(delivery)
            except UnreachableError as error:
                if self.stopping:
                    raise RetryableError(str(error), code="NOT_SENT") from None
                self._note_away(error)
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, longest_s)
                delivery.extend((self._clock.monotonic_ns() - began_ns) / 1e9)
            else:
                self._away = False
                return

    def _note_away(self, error: UnreachableError) -> None:
        """Once: all that wait fail alike."""
        if not self._away:
            self._away = True
            log.warning("events cannot be sent, trying until they can", error=str(error))
