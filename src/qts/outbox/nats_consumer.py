"""The consumer on NATS: loops that take one event, have it handled, answer, and take the next.

    ordered    a loop per partition, and the server lets one event of a partition out at a time
    else       as many loops as handlers may run, on one consumer of the server

An event in hand is kept by a sign of life every third of `lock_ttl_s`. One that failed is given
back with the pause until its next attempt, and holds up its partition until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from qts import telemetry
from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.handling import HandlerResult
from qts.outbox.nats_connection import ANSWER_S, trouble

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

T = TypeVar("T")

RETRY_S = 0.2
MOST_LOOPS = 256  # on one consumer of the server, which knows 512 that wait
MOST_OUT = 20_000  # events of a stream without order in hand or in a pause, all consumers together

log = telemetry.logger("outbox")


class _Held:
    """An event in hand."""

    __slots__ = ("lost", "message", "until_ns", "work")

    def __init__(self, message: Msg, until_ns: int) -> None:
        self.message = message
        self.until_ns = until_ns  # from then on the server may give it to others
        self.work: asyncio.Task[HandlerResult] | None = None
        self.lost = False


class NatsConsumer:
    """Handles one stream; several may do so at once, here and elsewhere. Runs once."""

    def __init__(
        self, client: Client, name: str, filters: Mapping[str, str], station: DeliveryRunner
    ) -> None:
        self._client = client
        self._jetstream = client.jetstream(timeout=ANSWER_S)
        self._name = name
        self._filters = filters
        self._station = station
        self._config = station.config
        self._clock = station.clock
        self._ttl_ns = round(station.config.lock_ttl_s * 1e9)
        self._stopping = False
        self._waits: set[asyncio.Task[Any]] = set()  # for something that may not come
        self._slots = asyncio.Semaphore(station.config.concurrency)
        self._held: set[_Held] = set()

    def stop(self) -> None:
        self._stopping = True
        for task in self._waits:
            task.cancel()

    async def run(self) -> None:
        many = 1 if self._config.ordered else min(self._config.concurrency, MOST_LOOPS)
        log.info("consumer starts", stream=self._station.stream, server="nats")
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._station.watch()),
                group.create_task(self._keep_held()),
            ]
            loops = [
                group.create_task(self._serve(durable))
                for durable in self._filters
                for _ in range(many)
            ]
            await asyncio.wait(loops)
            for helper in helpers:
                helper.cancel()
        log.info("consumer stopped", stream=self._station.stream, server="nats")

    async def _serve(self, durable: str) -> None:
        while not self._stopping:
            try:
                await self._take_from(durable)
            except trouble() as error:
                log.warning("cannot take events, trying again", error=repr(error))
                await self._unless_stopped(self._clock.sleep(RETRY_S))

    async def _take_from(self, durable: str) -> None:
        await self._make_consumer(durable)
        inbox = await self._jetstream.pull_subscribe_bind(consumer=durable, stream=self._name)
        try:
            while await self._until_open():
                message = await self._unless_stopped(self._next(inbox))
                if message:
                    await self._handle(message)
        finally:
            # What reached us after the last look; elsewhere the time limit of the server ends it.
            with suppress(*trouble()):
                for _ in range(inbox.pending_msgs):
                    await (await inbox.fetch(1, timeout=0.01))[0].nak()
            with suppress(*trouble()):
                await inbox.unsubscribe()

    async def _make_consumer(self, durable: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        await self._jetstream.add_consumer(
            self._name,
            ConsumerConfig(
                durable_name=durable,
                filter_subject=self._filters[durable],
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._config.lock_ttl_s,
                max_deliver=-1,  # we count, and keep what is given up
                max_ack_pending=1 if self._config.ordered else MOST_OUT,
            ),
        )

    async def _next(self, inbox: JetStreamContext.PullSubscription) -> Msg | None:
        try:
            return (await inbox.fetch(1, timeout=max(self._config.poll_max_s, 0.05)))[0]
        except TimeoutError:
            return None

    async def _handle(self, message: Msg) -> None:
        held = _Held(message, self._clock.monotonic_ns() + self._ttl_ns)
        self._held.add(held)
        try:
            # Paused or busy since we asked for it: it is kept, not given back and counted.
            await self._until_open()
            async with self._slots:
                if self._stopping:
                    await message.nak()
                    return
                outcome = await self._work(held)
            if outcome is None or self._clock.monotonic_ns() >= held.until_ns:
                log.warning("an event was lost to others while it was handled", durable=self._name)
            elif outcome.result == "retry":
                await message.nak(self._station.pause_s(message.metadata.num_delivered))
            else:
                await message.ack()
        finally:
            self._held.discard(held)

    async def _work(self, held: _Held) -> HandlerResult | None:
        message = held.message
        delivery, broken = self._station.decode(
            message.headers or {}, message.data, message.metadata.num_delivered
        )
        held.work = asyncio.create_task(self._station.run(delivery, broken))
        try:
            return await held.work
        except asyncio.CancelledError:
            if held.lost and held.work.cancelled():
                return None
            held.work.cancel()
            raise

    async def _keep_held(self) -> None:
        """Tell the server that we are at it; stop what it may have given to others meanwhile."""
        while True:
            now_ns = self._clock.monotonic_ns()
            for held in list(self._held):
                if now_ns >= held.until_ns:
                    held.lost = True
                    if held.work is not None:
                        held.work.cancel()
                elif self._client.is_connected:
                    with suppress(*trouble()):
                        await held.message.in_progress()
                        held.until_ns = now_ns + self._ttl_ns
            await self._clock.sleep(self._config.lock_ttl_s / 3)

    async def _until_open(self) -> bool:
        """Wait while the stream is paused; False when we are stopped."""
        if not self._station.open.is_set():
            await self._unless_stopped(self._station.open.wait())
        return not self._stopping

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Its result, or None when we are stopped first."""
        if self._stopping:
            waiting.close()
            return None
        task = asyncio.create_task(waiting)
        self._waits.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if us is not None and us.cancelling():
                raise
            return None
        finally:
            self._waits.discard(task)
