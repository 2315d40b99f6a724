"""Consumer of a durable subject: a message is acknowledged after what it says took effect.

delivered ─▶ handling ──True──▶ acknowledged, removed
               │  └──False, error, kill -9──▶ delivered again after ACK_WAIT_S
               └─ every third of it: in progress
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from qts import telemetry
from qts.domain import QtsError
from qts.outbox import nats_errors
from qts.roles.connection import RETRY_INTERVAL_S, DurableStream, RoleConnection, raise_if_cancelled

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

ACK_WAIT_S = 5.0
FETCH_TIMEOUT_S = 1.0
MAX_IN_FLIGHT = 1000
CLOSE_TIMEOUT_S = 5.0

# Takes a message in the order of the stream until its first wait; returns whether it took effect.
HandleMessage = Callable[[bytes], Awaitable[bool]]

log = telemetry.logger("roles")


class DurableReceiver:
    """Consumer of one subject, of which there is one at a time; `run` until cancelled."""

    def __init__(
        self, connection: RoleConnection, stream: DurableStream, subject: str, handle: HandleMessage
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._handle = handle
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._consume()
                except nats_errors() as error:
                    if due := telemetry.log_every(10.0, self._subject):
                        log.warning("consuming failed; retrying", error=repr(error), **due)
                    await asyncio.sleep(RETRY_INTERVAL_S)
        finally:
            await self._close()

    async def _consume(self) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        jetstream, durable = self._connection.jetstream, self._subject.replace(".", "_")
        await jetstream.add_consumer(
            self._stream.name,
            ConsumerConfig(
                durable_name=durable,
                filter_subject=self._subject,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_WAIT_S,
                max_deliver=-1,
                max_ack_pending=MAX_IN_FLIGHT,
            ),
        )
        inbox = await jetstream.pull_subscribe_bind(consumer=durable, stream=self._stream.name)
        try:
            while True:
                raise_if_cancelled()
                message = await _next(inbox)
                if message is None:
                    continue
                task = asyncio.create_task(self._run(message))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
        finally:
            with suppress(*nats_errors()):
                await inbox.unsubscribe()

    async def _run(self, message: Msg) -> None:
        """Handle a message and acknowledge it."""
        handling = asyncio.ensure_future(self._handle(message.data))
        try:
            while not (await asyncio.wait({handling}, timeout=ACK_WAIT_S / 3))[0]:
                with suppress(*nats_errors()):
                    await message.in_progress()
                raise_if_cancelled()
        except asyncio.CancelledError:
            handling.cancel()
            with suppress(*nats_errors()):
                await message.nak()  # the next consumer has it at once
            raise
        try:
            has_effect = handling.result()
        except QtsError as error:
            log.warning("message not handled; it comes again", error=str(error))
            return
        if has_effect:
            with suppress(*nats_errors()):  # then it comes again, as a duplicate
                await message.ack()

    async def _close(self) -> None:
        """Wait for what is in flight, then return the rest to the stream."""
        if self._in_flight:
            _, left = await asyncio.wait(self._in_flight, timeout=CLOSE_TIMEOUT_S)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)


async def _next(inbox: JetStreamContext.PullSubscription) -> Msg | None:
    """Return the next message; None if there is none for a while."""
    # In a task: the client takes a cancellation for the end of its wait.
    fetching = asyncio.ensure_future(inbox.fetch(1, timeout=FETCH_TIMEOUT_S))
    try:
        await asyncio.wait({fetching})
        return fetching.result()[0]
    except TimeoutError:
        return None
    finally:
        fetching.cancel()
