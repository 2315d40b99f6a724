"""The consumer on Kafka.

    poll ─▶ lane of its partition ─▶ line of its aggregate ─▶ handler ─▶ ledger ─▶ commit

One task makes every call to the client, which serves one at a time anyway. A partition belongs to
one consumer of the group, so its lane knows all of an aggregate's events: they are handled one by
one, and one that failed holds up only those behind it. Before an attempt begins, the ledger that
counts it is committed; handlers that begin together share a commit.

Events that were begun by a lost consumer are tried one at a time: one of them may be what killed
it, and must not use up the attempts of the others with its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from qts import telemetry
from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.kafka_offsets import OffsetTracker
from qts.outbox.kafka_partition import PartitionConsumer

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition
    from confluent_kafka.aio import AIOConsumer

IDLE_POLL_S = 0.1
BUSY_S = 0.005  # between looks for more, while handlers run
ANSWER_S = 5.0
RETRY_S = 0.5

log = telemetry.logger("outbox")


class KafkaConsumer:
    """Handles one stream; several may do so at once, here and elsewhere. Runs once."""

    def __init__(self, settings: dict[str, Any], topic: str, station: DeliveryRunner) -> None:
        self._settings = settings
        self._topic = topic
        self._station = station
        self._config = station.config
        self._slots = asyncio.Semaphore(station.config.concurrency)
        self._suspects = asyncio.Lock()
        self._lanes: dict[int, PartitionConsumer] = {}
        self._paused: set[int] = set()
        self._changed = asyncio.Event()
        self._broken: Exception | None = None
        self._stopping = False
        self._client: AIOConsumer

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        from confluent_kafka import KafkaException

        log.info("consumer starts", stream=self._station.stream, server="kafka")
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._station.watch())
            while not self._stopping:
                try:
                    await self._session()
                except KafkaException as error:
                    log.warning("cannot take events, trying again", error=str(error))
                    await self._station.clock.sleep(RETRY_S)
            watching.cancel()
        log.info("consumer stopped", stream=self._station.stream, server="kafka")

    async def _session(self) -> None:
        """As a member of the group, until stopped or broken."""
        from confluent_kafka.aio import AIOConsumer

        self._client = AIOConsumer(dict(self._settings), max_workers=3)
        self._broken = None
        try:
            await self._client.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            await self._drive()
        except BaseException:
            self._drop(list(self._lanes))  # nothing more is committed
            raise
        finally:
            await self._client.close()  # gives the partitions back

    async def _drive(self) -> None:
        while True:
            await asyncio.sleep(0)  # what came last may begin, and share the next commit
            self._changed.clear()
            await self._commit([lane for lane in self._lanes.values() if lane.changed])
            if self._stopping and not any(lane.running for lane in self._lanes.values()):
                return
            await self._hold_back()
            messages = await self._poll()
            for message in messages:
                self._accept(message)
            if self._broken is not None:
                raise self._broken

    async def _poll(self) -> list[Message]:
        busy = any(lane.tasks for lane in self._lanes.values())
        messages = await self._client.consume(self._config.batch, 0)
        if not messages:
            if not busy:
                first = await self._client.poll(IDLE_POLL_S)
                return [first] if first else []
            try:
                async with asyncio.timeout(BUSY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return list(messages)

    def _accept(self, message: Message) -> None:
        from confluent_kafka import KafkaException

        if error := message.error():
            if error.fatal():
                raise KafkaException(error)
            log.warning("Kafka tells of trouble", error=error.str())
            return
        lane = self._lanes.get(message.partition() or 0)
        if lane is not None and not self._stopping:
            lane.accept(message)

    async def _hold_back(self) -> None:
        """Back-pressure: nothing more from a partition that is full, nor beyond a batch in hand."""
        held = sum(lane.ledger.in_hand for lane in self._lanes.values())
        shut = self._stopping or not self._station.open.is_set() or held >= self._config.batch
        want = {number for number, lane in self._lanes.items() if shut or lane.ledger.is_full}
        if more := want - self._paused:
            await self._client.pause([self._partition(number) for number in more])
        if less := (self._paused - want) & self._lanes.keys():
            await self._client.resume([self._partition(number) for number in less])
        self._paused = want

    async def _commit(self, lanes: list[PartitionConsumer]) -> None:
        from confluent_kafka import KafkaException

        if not lanes:
            return
        waiting = [lane.noting() for lane in lanes]
        offsets = [
            self._partition(lane.number, lane.ledger.floor, lane.ledger.note()) for lane in lanes
        ]
        try:
            told = await self._client.commit(offsets=offsets, asynchronous=False)
            for one in told or []:
                if one.error is not None:
                    raise KafkaException(one.error)
        except KafkaException as error:
            log.warning("cannot commit, trying again", error=str(error))
            for lane, futures in zip(lanes, waiting, strict=True):
                lane.not_noted(futures)
            await self._station.clock.sleep(BUSY_S)
        else:
            for futures in waiting:
                for future in futures:
                    if not future.done():
                        future.set_result(None)

    async def _on_assign(self, _client: object, partitions: list[TopicPartition]) -> None:
        from confluent_kafka import KafkaException

        try:
            known = await self._client.committed(partitions, timeout=ANSWER_S)
        except KafkaException as error:
            self._broken = error  # ends the session; a new one asks again
            return
        for one in known:
            ledger = OffsetTracker(one.offset if one.offset >= 0 else None, one.metadata or "")
            self._lanes[one.partition] = PartitionConsumer(
                one.partition, ledger, self._station, (self._slots, self._suspects), self._note
            )

    async def _on_revoke(self, _client: object, partitions: list[TopicPartition]) -> None:
        """Let handlers end, then say how far we came; others begin there."""
        gone = [one.partition for one in partitions]
        lanes = [self._lanes[number] for number in gone if number in self._lanes]
        if lanes:
            await asyncio.gather(*(lane.end(self._config.lock_ttl_s) for lane in lanes))
            await self._commit(lanes)
            self._drop(gone)

    async def _on_lost(self, _client: object, partitions: list[TopicPartition]) -> None:
        self._drop([one.partition for one in partitions])

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._paused.discard(number)
            if lane := self._lanes.pop(number, None):
                lane.cancel()

    def _partition(self, number: int, offset: int = -1001, note: str = "") -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, number, offset, note)

    def _note(self, error: BaseException | None = None) -> None:
        """A lane has something to commit, or failed."""
        if isinstance(error, Exception):
            self._broken = error
        self._changed.set()
