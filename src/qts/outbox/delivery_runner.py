"""Handling of one delivery from NATS or Kafka.

unpaused ─▶ attempt, with a timeout ─▶ done · retry after a backoff · dead letter stored
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock
from qts.outbox import codec, handling
from qts.outbox.bus import Delivery, EventDispatcher
from qts.outbox.completer import TRANSIENT_ERRORS
from qts.outbox.config import StreamConfig
from qts.outbox.handling import (
    HandlerResult,
    count_results,
    log_result,
    run_handler,
    timeout_result,
)

CANCEL_TIMEOUT_S = 1.0  # from the cancellation of a handler until it is abandoned
BACKOFF_S = (0.05, 5.0)

log = telemetry.logger("outbox")


class DeliveryRunner:
    """Runs the handler of a delivery and stores its dead letter."""

    def __init__(
        self,
        database: Database,
        stream: str,
        config: StreamConfig,
        dispatcher: EventDispatcher,
        clock: Clock,
    ) -> None:
        self.stream = stream
        self.config = config
        self.clock = clock
        self.unpaused = asyncio.Event()  # set while the stream is not paused
        self._database = database
        self._dispatcher = dispatcher
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing

    async def follow_pause(self) -> None:
        """Poll whether the stream is paused, until cancelled."""
        while True:
            try:
                paused = await self._database.fetchval(
                    "SELECT true FROM outbox_paused WHERE stream = $1", self.stream
                )
            except TRANSIENT_ERRORS as error:
                log.warning("reading pause state failed; retrying", error=str(error))
            else:
                self.unpaused.clear() if paused else self.unpaused.set()
            await self.clock.sleep(self.config.poll_max_s)

    def decode(
        self, headers: Mapping[str, str], body: bytes, attempt: int
    ) -> tuple[Delivery, HandlerResult | None]:
        return codec.decode_delivery(self.stream, self.config, headers, body, attempt)

    async def run(self, delivery: Delivery, known: HandlerResult | None = None) -> HandlerResult:
        """Run one attempt unless the result is known; a dead letter is stored on return."""
        if known is None and delivery.attempt > delivery.max_attempts:
            known = HandlerResult(
                "dead", "WORKER_LOST", "consumer was lost during the last attempt"
            )
            delivery.attempt = delivery.max_attempts
        result = known or await self._run_handler(delivery)
        if result.kind == "retry" and delivery.attempt >= delivery.max_attempts:
            result = msgspec.structs.replace(result, kind="dead")
        if result.kind == "dead":
            await self._store_dead_letter(delivery, result)
        count_results(self.stream, result.kind)
        return result

    def backoff_s(self, attempt: int) -> float:
        return handling.backoff_s(self.config, attempt, self._random)

    async def _run_handler(self, delivery: Delivery) -> HandlerResult:
        timeout_ns = round(self.config.handler_timeout_s * 1e9)
        delivery.deadline_ns = self.clock.monotonic_ns() + timeout_ns
        running = asyncio.create_task(run_handler(self._dispatcher, delivery))
        try:
            while (left_ns := delivery.deadline_ns - self.clock.monotonic_ns()) > 0:
                await asyncio.wait({running}, timeout=left_ns / 1e9)
                if running.done():
                    break
        finally:
            if not running.done():
                await _cancel(running, delivery)
        if running.done() and not running.cancelled():
            return running.result()
        result = timeout_result(delivery)
        log_result(delivery, result)
        return result

    async def _store_dead_letter(self, delivery: Delivery, result: HandlerResult) -> None:
        """Retry until stored: only then is the message acknowledged."""
        delay_s, max_s = BACKOFF_S
        while True:
            try:
                await handling.store_dead_letter(self._database, delivery, result)
            except TRANSIENT_ERRORS as error:
                log.warning("storing dead letter failed; retrying", error=str(error))
                await self.clock.sleep(delay_s)
                delay_s = min(delay_s * 2, max_s)
            else:
                return


async def _cancel(running: asyncio.Task[HandlerResult], delivery: Delivery) -> None:
    running.cancel()
    await asyncio.wait({running}, timeout=CANCEL_TIMEOUT_S)
    if not running.done():
        log.error("handler ignored cancellation; abandoned", **delivery.ids())
