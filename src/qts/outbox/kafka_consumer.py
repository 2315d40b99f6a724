"""Consumer on Kafka.

    poll ─▶ partition ─▶ queue of the aggregate ─▶ handler ─▶ offset tracker ─▶ commit

One task makes every call to the client. A partition belongs to one consumer of the group, which
therefore has all events of an aggregate: it handles them one by one, and a failed one delays only
those behind it. The attempt is committed with the offsets before it starts; handlers that start
together share a commit.

Events that a lost consumer had started are attempted one at a time: one of them may have crashed
it, and must not use up the attempts of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qts import telemetry
from qts.outbox.handling import DeliveryRunner, is_set_within
from qts.outbox.kafka_partition import OffsetTracker, PartitionConsumer

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition
    from confluent_kafka.aio import AIOConsumer

IDLE_POLL_S = 0.1
BUSY_POLL_S = 0.005  # between polls while handlers run
REPLY_TIMEOUT_S = 5.0
RETRY_INTERVAL_S = 0.5

log = telemetry.logger("outbox")


class KafkaConsumers:
    """Consumers of several groups on one stream, as one: a group per account, and one for none."""

    def __init__(self, consumers: Sequence[KafkaConsumer]) -> None:
        self._consumers = consumers

    def stop(self) -> None:
        for consumer in self._consumers:
            consumer.stop()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for consumer in self._consumers:
                group.create_task(consumer.run())


class KafkaConsumer:
    """Consumer of one stream; several may run at once, in any process. Runs once.

    It handles the events of its account, or of none (""), and skips all others.
    """

    def __init__(
        self, settings: dict[str, Any], topic: str, runner: DeliveryRunner, account: str
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._runner = runner
        self._account = account
        self._config = runner.config
        self._slots = asyncio.Semaphore(runner.config.concurrency)
        self._suspects = asyncio.Lock()
        self._partitions: dict[int, PartitionConsumer] = {}
        self._paused: set[int] = set()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._stopping = False
        self._client: AIOConsumer

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        from confluent_kafka import KafkaException

        log.info("consumer started", stream=self._runner.stream, server="kafka")
        async with asyncio.TaskGroup() as group:
            pause_follower = group.create_task(self._runner.follow_pause())
            while not self._stopping:
                try:
                    await self._session()
                except KafkaException as error:
                    log.warning("consuming failed; retrying", error=str(error))
                    await self._runner.clock.sleep(RETRY_INTERVAL_S)
            pause_follower.cancel()
        log.info("consumer stopped", stream=self._runner.stream, server="kafka")

    async def _session(self) -> None:
        """Consume as a member of the group until stopped or failed."""
        from confluent_kafka.aio import AIOConsumer

        self._client = AIOConsumer(dict(self._settings), max_workers=3)
        self._failure = None
        try:
            await self._client.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            await self._run_session()
        except BaseException:
            self._drop(list(self._partitions))  # commits nothing more
            raise
        finally:
            await self._client.close()  # releases the partitions

    async def _run_session(self) -> None:
        while True:
            await asyncio.sleep(0)  # new events may start and share the next commit
            self._changed.clear()
            await self._commit([each for each in self._partitions.values() if each.changed])
            if self._stopping and not any(each.running for each in self._partitions.values()):
                return
            await self._apply_backpressure()
            messages = await self._poll()
            for message in messages:
                self._route(message)
            if self._failure is not None:
                raise self._failure

    async def _poll(self) -> list[Message]:
        busy = any(partition.tasks for partition in self._partitions.values())
        messages = await self._client.consume(self._config.batch, 0)
        if not messages:
            if not busy:
                first = await self._client.poll(IDLE_POLL_S)
                return [first] if first else []
            await is_set_within(self._changed, BUSY_POLL_S)
        return list(messages)

    def _route(self, message: Message) -> None:
        from confluent_kafka import KafkaException

        if error := message.error():
            if error.fatal():
                raise KafkaException(error)
            log.warning("Kafka reported an error", error=error.str())
            return
        partition = self._partitions.get(message.partition() or 0)
        if partition is not None and not self._stopping:
            partition.submit(message)

    async def _apply_backpressure(self) -> None:
        """Pause partitions that are full, and all of them while a batch is in flight."""
        trackers = {number: each.offsets for number, each in self._partitions.items()}
        is_full = sum(each.in_flight for each in trackers.values()) >= self._config.batch
        closed = is_full or self._stopping or not self._runner.unpaused.is_set()
        paused = {number for number, each in trackers.items() if closed or each.is_full}
        if to_pause := paused - self._paused:
            await self._client.pause([self._topic_partition(number) for number in to_pause])
        if to_resume := (self._paused - paused) & self._partitions.keys():
            await self._client.resume([self._topic_partition(number) for number in to_resume])
        self._paused = paused

    async def _commit(self, partitions: list[PartitionConsumer]) -> None:
        from confluent_kafka import KafkaException

        if not partitions:
            return
        waiting = [partition.begin_commit() for partition in partitions]
        offsets = [
            self._topic_partition(each.number, each.offsets.first_open, each.offsets.metadata())
            for each in partitions
        ]
        try:
            results = await self._client.commit(offsets=offsets, asynchronous=False)
            for result in results or []:
                if result.error is not None:
                    raise KafkaException(result.error)
        except KafkaException as error:
            log.warning("commit failed; retrying", error=str(error))
            for partition, futures in zip(partitions, waiting, strict=True):
                partition.commit_failed(futures)
            await self._runner.clock.sleep(BUSY_POLL_S)
        else:
            for futures in waiting:
                for future in futures:
                    if not future.done():
                        future.set_result(None)

    async def _on_assign(self, _client: object, partitions: list[TopicPartition]) -> None:
        from confluent_kafka import KafkaException

        try:
            committed = await self._client.committed(partitions, timeout=REPLY_TIMEOUT_S)
        except KafkaException as error:
            self._failure = error  # ends the session; the next one reads them again
            return
        locks = (self._slots, self._suspects)
        for each in committed:
            offsets = OffsetTracker(each.offset if each.offset >= 0 else None, each.metadata or "")
            self._partitions[each.partition] = PartitionConsumer(
                each.partition, offsets, self._runner, locks, self._on_change, self._account
            )

    async def _on_revoke(self, _client: object, partitions: list[TopicPartition]) -> None:
        """Let handlers finish, then commit; the next consumer starts there."""
        numbers = [each.partition for each in partitions]
        revoked = [self._partitions[number] for number in numbers if number in self._partitions]
        if revoked:
            timeout_s = self._config.lock_ttl_s
            await asyncio.gather(*(partition.finish(timeout_s) for partition in revoked))
            await self._commit(revoked)
            self._drop(numbers)

    async def _on_lost(self, _client: object, partitions: list[TopicPartition]) -> None:
        self._drop([each.partition for each in partitions])

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._paused.discard(number)
            if partition := self._partitions.pop(number, None):
                partition.cancel()

    def _topic_partition(
        self, number: int, offset: int = -1001, metadata: str = ""
    ) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, number, offset, metadata)

    def _on_change(self, error: BaseException | None = None) -> None:
        """Wake the loop: a partition has something to commit, or failed."""
        if isinstance(error, Exception):
            self._failure = error
        self._changed.set()
