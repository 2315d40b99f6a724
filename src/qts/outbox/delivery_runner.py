"""One stream's work where another server brings the events: the same whichever one it is.

paused? ─▶ attempt, held to its time ─▶ done · retry after a pause · dead letter kept
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock
from qts.outbox import codec, dead_letters
from qts.outbox.bus import Delivery, EventDispatcher
from qts.outbox.completer import TROUBLE
from qts.outbox.config import StreamConfig
from qts.outbox.handling import (
    HandlerResult,
    backoff_s,
    count_results,
    log_result,
    run_handler,
    timeout_result,
)

GRACE_S = 1.0  # from the cancellation of a handler until it is given up
RETRY_S = (0.05, 5.0)

log = telemetry.logger("outbox")


class DeliveryRunner:
    """What a consumer does with an event between taking it and answering for it."""

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
        self.open = asyncio.Event()  # while the stream is not paused
        self._database = database
        self._dispatcher = dispatcher
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing

    async def watch(self) -> None:
        """Look whether the stream is paused, until cancelled; nothing runs before the first."""
        while True:
            try:
                paused = await self._database.fetchval(
                    "SELECT true FROM outbox_paused WHERE stream = $1", self.stream
                )
            except TROUBLE as error:
                log.warning("cannot see whether the stream is paused", error=str(error))
            else:
                self.open.clear() if paused else self.open.set()
            await self.clock.sleep(self.config.poll_max_s)

    def decode(
        self, headers: Mapping[str, str], body: bytes, attempt_number: int
    ) -> tuple[Delivery, HandlerResult | None]:
        return codec.read(self.stream, self.config, headers, body, attempt_number)

    async def run(self, delivery: Delivery, known: HandlerResult | None = None) -> HandlerResult:
        """Try it once, unless its outcome is known; a dead letter is kept when this returns."""
        if known is None and delivery.attempt > delivery.max_attempts:
            known = HandlerResult(
                "dead", "WORKER_LOST", "its consumer was lost with the last attempt"
            )
            delivery.attempt = delivery.max_attempts
        outcome = known or await self._attempt(delivery)
        if outcome.result == "retry" and delivery.attempt >= delivery.max_attempts:
            outcome = msgspec.structs.replace(outcome, result="dead")
        if outcome.result == "dead":
            await self._bury(delivery, outcome)
        count_results(self.stream, outcome.result)
        return outcome

    def pause_s(self, attempt_number: int) -> float:
        return backoff_s(self.config, attempt_number, self._chance)

    async def _attempt(self, delivery: Delivery) -> HandlerResult:
        limit_ns = round(self.config.handler_timeout_s * 1e9)
        delivery.deadline_ns = self.clock.monotonic_ns() + limit_ns
        running = asyncio.create_task(run_handler(self._dispatcher, delivery))
        try:
            while (left_ns := delivery.deadline_ns - self.clock.monotonic_ns()) > 0:
                await asyncio.wait({running}, timeout=left_ns / 1e9)
                if running.done():
                    break
        finally:
            if not running.done():
                await _end(running, delivery)
        if running.done() and not running.cancelled():
            return running.result()
        outcome = timeout_result(delivery)
        log_result(delivery, outcome)
        return outcome

    async def _bury(self, delivery: Delivery, outcome: HandlerResult) -> None:
        """Until it is written: an event is not answered for before that."""
        delay_s, longest_s = RETRY_S
        while True:
            try:
                await dead_letters.store_dead_letter(self._database, delivery, outcome)
            except TROUBLE as error:
                log.warning("cannot keep a dead letter, trying again", error=str(error))
                await self.clock.sleep(delay_s)
                delay_s = min(delay_s * 2, longest_s)
            else:
                return


async def _end(running: asyncio.Task[HandlerResult], delivery: Delivery) -> None:
    running.cancel()
    await asyncio.wait({running}, timeout=GRACE_S)
    if not running.done():
        log.error(
            "a handler does not end",
            eventType=delivery.envelope.type,
            eventId=str(delivery.event_id),
        )
