"""Bus on NATS JetStream.

    stream everbit.trade.command  ─▶  everbit_trade_command
    its subjects                      everbit.trade.command.<partition>.<aggregate type>.<id>
    of an account                     everbit.trade.command.<account>.<partition>.<type>.<id>

A stream keeps an event until it is handled. An ordered stream spreads its aggregates over
partitions, and the server delivers one event of a partition at a time; an unordered one has one
consumer for all. `Nats-Msg-Id` deduplicates events sent twice within `duplicate_window_s`.

A consumer takes one event in each of its loops, handles and acknowledges it:

    ordered    one loop per partition; the server delivers one event of a partition at a time
    unordered  as many loops as handlers may run, on one JetStream consumer

A heartbeat extends the lock of events in flight every third of `lock_ttl_s`. A failed event is
returned with the delay until its retry, and blocks its partition until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote
from zlib import crc32

from qts import telemetry
from qts.database import Database
from qts.domain import RefusedError, UnreachableError
from qts.outbox.bus import Delivery, PermanentError
from qts.outbox.config import NatsBusConfig, StreamConfig
from qts.outbox.handling import (
    DeliveryRunner,
    HandlerResult,
    encode_body,
    encode_headers,
    partition_key,
)
from qts.outbox.nats_connection import (
    REPLY_TIMEOUT_S,
    close_nats,
    connect_nats,
    nats_address,
    nats_errors,
)
from qts.outbox.relayed_bus import RelayedBus

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

_NAME_IN_USE = 10058
_MAX_TOKEN = 100  # a longer name is cut in the subject; the headers have it whole

RETRY_INTERVAL_S = 0.2
MAX_LOOPS = 256  # per JetStream consumer, which allows 512 waiting requests
MAX_ACK_PENDING = 20_000  # of an unordered stream: in flight or waiting for a retry

T = TypeVar("T")

log = telemetry.logger("outbox")


class NatsBus(RelayedBus):
    """Bus with one connection per process."""

    def __init__(
        self,
        database: Database,
        streams: Mapping[str, StreamConfig],
        config: NatsBusConfig,
        client: Client,
    ) -> None:
        super().__init__(database, streams)
        self._config = config
        self._client = client
        self._jetstream = client.jetstream(timeout=REPLY_TIMEOUT_S)
        self._address = nats_address(config)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, streams: Mapping[str, StreamConfig], config: NatsBusConfig
    ) -> AsyncIterator[Self]:
        client = await connect_nats(config)
        bus = cls(database, streams, config, client)
        try:
            await bus.create_streams()
            yield bus
        finally:
            await bus.close()

    async def close(self) -> None:
        await self._close_outbox()
        with suppress(*nats_errors(), TypeError):  # TypeError: see close_nats
            await self._client.flush(timeout=int(REPLY_TIMEOUT_S))
        await close_nats(self._client)

    async def create_streams(self) -> None:
        """Create the streams that the server does not have."""
        for stream in self.streams:
            await self._create_stream(stream)

    async def send(self, delivery: Delivery) -> None:
        from nats.errors import MaxPayloadError
        from nats.js.errors import NoStreamResponseError

        try:
            await self._jetstream.publish(
                self._subject(delivery),
                encode_body(delivery),
                timeout=REPLY_TIMEOUT_S,
                headers=encode_headers(delivery),
            )
        except MaxPayloadError:
            raise PermanentError(f"larger than {self._address} takes", code="TOO_LARGE") from None
        except NoStreamResponseError:  # lost with the server's disk, or without a leader
            await self._create_stream(delivery.stream)
            raise UnreachableError(f"{self._address} has no stream for {delivery.stream}") from None
        except nats_errors() as error:
            raise UnreachableError(f"{self._address} did not confirm: {error!r}") from None

    def create_consumer(self, runner: DeliveryRunner, account: str) -> NatsConsumer:
        filters = self._filters(runner, "", runner.stream)
        if account:
            token = _token(account)
            name = token.replace("%3A", "-")
            filters |= self._filters(runner, f"{name}-", f"{runner.stream}.{token}")
        return NatsConsumer(self._client, stream_name(runner.stream), filters, runner)

    def _filters(self, runner: DeliveryRunner, name: str, subject: str) -> dict[str, str]:
        """Return the subjects by durable consumer; a work queue allows no overlap of them."""
        if not runner.config.ordered:
            return {f"{name}all": f"{subject}.*.*.*"}
        return {f"{name}partition-{n}": f"{subject}.{n}.>" for n in range(self._config.partitions)}

    async def _create_stream(self, stream: str) -> None:
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType
        from nats.js.api import StreamConfig as Settings
        from nats.js.errors import APIError

        partitions = str(self._config.partitions)
        settings = Settings(
            name=stream_name(stream),
            subjects=[f"{stream}.>"],
            retention=RetentionPolicy.WORK_QUEUE,  # acknowledged events are removed, nothing else
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,  # a full disk blocks the relay and drops nothing
            num_replicas=self._config.replicas,
            duplicate_window=self._config.duplicate_window_s,
            metadata={"qts-partitions": partitions},
        )
        try:
            await self._jetstream.add_stream(settings)
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                raise UnreachableError(
                    f"{self._address}: stream {stream}: {error.description}"
                ) from None
            await self._check_partitions(stream, partitions)
        except nats_errors() as error:
            raise UnreachableError(
                f"{self._address} makes no stream for {stream}: {error!r}"
            ) from None

    async def _check_partitions(self, stream: str, partitions: str) -> None:
        """Refuse an existing stream with another number of partitions."""
        try:
            found = (await self._jetstream.stream_info(stream_name(stream))).config
        except nats_errors() as error:
            raise UnreachableError(f"{self._address} does not show {stream}: {error!r}") from None
        actual = (found.metadata or {}).get("qts-partitions", "none")
        if actual != partitions:
            raise RefusedError(
                f"outbox.nats.partitions = {partitions}: stream {stream_name(stream)} "
                f"at {self._address} has {actual}; keep that, or drain and delete the stream first"
            )

    def _subject(self, delivery: Delivery) -> str:
        partition = crc32(partition_key(delivery)) % self._config.partitions
        names = (delivery.aggregate_type, delivery.aggregate_id)
        path = f"{partition}.{'.'.join(map(_token, names))}"
        owner = f"{_token(delivery.account)}." if delivery.account else ""
        return f"{delivery.stream}.{owner}{path}"


def stream_name(stream: str) -> str:
    return stream.replace(".", "_")


def _token(name: str) -> str:
    """Escape the characters with a meaning in subjects: dots, wildcards, spaces."""
    return quote(name, safe="").replace(".", "%2E")[:_MAX_TOKEN]


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
