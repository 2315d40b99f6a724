"""Consumer on NATS: each loop takes one event, handles and acknowledges it.

    ordered    one loop per partition; the server delivers one event of a partition at a time
    unordered  as many loops as handlers may run, on one JetStream consumer

A heartbeat extends the lock of events in flight every third of `lock_ttl_s`. A failed event is
returned with the delay until its retry, and blocks its partition until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from qts import telemetry
from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.handling import HandlerResult
from qts.outbox.nats_connection import REPLY_TIMEOUT_S, nats_errors

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

T = TypeVar("T")

RETRY_INTERVAL_S = 0.2
MAX_LOOPS = 256  # per JetStream consumer, which allows 512 waiting requests
MAX_ACK_PENDING = 20_000  # of an unordered stream: in flight or waiting for a retry

log = telemetry.logger("outbox")


class _InFlightMessage:
    """Message that is being handled."""

    __slots__ = ("locked_until_ns", "lost", "message", "task")

    def __init__(self, message: Msg, locked_until_ns: int) -> None:
        self.message = message
        self.locked_until_ns = locked_until_ns  # then the server may redeliver it
        self.task: asyncio.Task[HandlerResult] | None = None
        self.lost = False


class NatsConsumer:
    """Consumer of one stream; several may run at once, in any process. Runs once."""

    def __init__(
        self, client: Client, name: str, filters: Mapping[str, str], runner: DeliveryRunner
    ) -> None:
        self._client = client
        self._jetstream = client.jetstream(timeout=REPLY_TIMEOUT_S)
        self._name = name
        self._filters = filters
        self._runner = runner
        self._config = runner.config
        self._clock = runner.clock
        self._ttl_ns = round(runner.config.lock_ttl_s * 1e9)
        self._stopping = False
        self._waiting: set[asyncio.Task[Any]] = set()  # cancelled by stop()
        self._slots = asyncio.Semaphore(runner.config.concurrency)
        self._in_flight: set[_InFlightMessage] = set()

    def stop(self) -> None:
        self._stopping = True
        for task in self._waiting:
            task.cancel()

    async def run(self) -> None:
        loops_per_consumer = 1 if self._config.ordered else min(self._config.concurrency, MAX_LOOPS)
        log.info("consumer started", stream=self._runner.stream, server="nats")
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._runner.follow_pause()),
                group.create_task(self._run_heartbeat()),
            ]
            loops = [
                group.create_task(self._serve(durable))
                for durable in self._filters
                for _ in range(loops_per_consumer)
            ]
            await asyncio.wait(loops)
            for helper in helpers:
                helper.cancel()
        log.info("consumer stopped", stream=self._runner.stream, server="nats")

    async def _serve(self, durable: str) -> None:
        while not self._stopping:
            try:
                await self._consume(durable)
            except nats_errors() as error:
                log.warning("consuming failed; retrying", error=repr(error))
                await self._unless_stopped(self._clock.sleep(RETRY_INTERVAL_S))

    async def _consume(self, durable: str) -> None:
        await self._create_consumer(durable)
        inbox = await self._jetstream.pull_subscribe_bind(consumer=durable, stream=self._name)
        try:
            while await self._wait_unpaused():
                message = await self._unless_stopped(self._next(inbox))
                if message:
                    await self._handle(message)
        finally:
            # Return messages received after the last fetch; the server redelivers any others.
            with suppress(*nats_errors()):
                for _ in range(inbox.pending_msgs):
                    await (await inbox.fetch(1, timeout=0.01))[0].nak()
            with suppress(*nats_errors()):
                await inbox.unsubscribe()

    async def _create_consumer(self, durable: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        await self._jetstream.add_consumer(
            self._name,
            ConsumerConfig(
                durable_name=durable,
                filter_subject=self._filters[durable],
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._config.lock_ttl_s,
                max_deliver=-1,  # the delivery runner counts, and stores dead letters
                max_ack_pending=1 if self._config.ordered else MAX_ACK_PENDING,
            ),
        )

    async def _next(self, inbox: JetStreamContext.PullSubscription) -> Msg | None:
        try:
            return (await inbox.fetch(1, timeout=max(self._config.poll_max_s, 0.05)))[0]
        except TimeoutError:
            return None

    async def _handle(self, message: Msg) -> None:
        item = _InFlightMessage(message, self._clock.monotonic_ns() + self._ttl_ns)
        self._in_flight.add(item)
        try:
            # Paused or busy since the fetch: keep it, as returning it would count an attempt.
            await self._wait_unpaused()
            async with self._slots:
                if self._stopping:
                    await message.nak()
                    return
                if item.lost or self._clock.monotonic_ns() >= item.locked_until_ns:
                    log.warning("event not started; lock expired", stream=self._runner.stream)
                    return
                result = await self._run(item)
            if result is None or self._clock.monotonic_ns() >= item.locked_until_ns:
                log.warning("result discarded; lock expired", stream=self._runner.stream)
            elif result.kind == "retry":
                await message.nak(self._runner.backoff_s(message.metadata.num_delivered))
            else:
                await message.ack()
        finally:
            self._in_flight.discard(item)

    async def _run(self, item: _InFlightMessage) -> HandlerResult | None:
        message = item.message
        delivery, invalid = self._runner.decode(
            message.headers or {}, message.data, message.metadata.num_delivered
        )
        item.task = asyncio.create_task(self._runner.run(delivery, invalid))
        try:
            return await item.task
        except asyncio.CancelledError:
            if item.lost and item.task.cancelled():
                return None
            item.task.cancel()
            raise

    async def _run_heartbeat(self) -> None:
        """Extend the locks; cancel handlers whose lock has expired."""
        while True:
            now_ns = self._clock.monotonic_ns()
            for item in list(self._in_flight):
                if now_ns >= item.locked_until_ns:
                    item.lost = True
                    if item.task is not None:
                        item.task.cancel()
                elif self._client.is_connected:
                    with suppress(*nats_errors()):
                        await item.message.in_progress()
                        item.locked_until_ns = now_ns + self._ttl_ns
            await self._clock.sleep(self._config.lock_ttl_s / 3)

    async def _wait_unpaused(self) -> bool:
        """Wait while the stream is paused; return False if stopped."""
        if not self._runner.unpaused.is_set():
            await self._unless_stopped(self._runner.unpaused.wait())
        return not self._stopping

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Return the result, or None if stopped first."""
        if self._stopping:
            waiting.close()
            return None
        task = asyncio.create_task(waiting)
        self._waiting.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return None
        finally:
            self._waiting.discard(task)
