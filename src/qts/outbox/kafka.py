"""The bus on Kafka: topics are called as the streams, the key of a message is its aggregate.

One aggregate is in one partition and so in order. Its producer is idempotent: what librdkafka
sends again by itself is stored once. A relay that died sends again what it could not complete.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from qts.database import Database
from qts.domain import OperationError, RefusedError, UnreachableError
from qts.outbox import codec
from qts.outbox.bus import Delivery
from qts.outbox.config import KafkaBusConfig, StreamConfig
from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.errors import PermanentError
from qts.outbox.kafka_consumer import KafkaConsumer
from qts.outbox.relayed_bus import RelayedBus

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

ANSWER_S = 5.0
DELIVER_MS = 30_000  # after that the relay decides anew


class KafkaBus(RelayedBus):
    """One producer for all that this process sends; each consumer has a connection of its own."""

    def __init__(
        self, database: Database, streams: Mapping[str, StreamConfig], config: KafkaBusConfig
    ) -> None:
        super().__init__(database, streams)
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._place = f"Kafka at {config.bootstrap}"
        self._closing = threading.Event()
        self._producer = self._new_producer()
        # The asyncio producer of the library sends no headers, and waits a second for a batch.
        self._polling = threading.Thread(target=self._poll, name="qts-kafka", daemon=True)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, streams: Mapping[str, StreamConfig], config: KafkaBusConfig
    ) -> AsyncIterator[Self]:
        _check(config)
        bus = cls(database, streams, config)
        bus._polling.start()
        try:
            await asyncio.to_thread(bus._look)
            yield bus
        finally:
            await bus.close()

    async def close(self) -> None:
        await self._close_outbox()
        await asyncio.to_thread(self._producer.flush, ANSWER_S)
        self._closing.set()
        await asyncio.to_thread(self._polling.join)

    async def send(self, delivery: Delivery) -> None:
        answer: asyncio.Future[KafkaError | None] = self._loop.create_future()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self._loop.call_soon_threadsafe(_resolve, answer, error)

        try:
            self._producer.produce(
                self._topic(delivery.stream),
                key=codec.partition_key(delivery),
                value=codec.encode_body(delivery),
                headers=[
                    (name, text.encode()) for name, text in codec.encode_headers(delivery).items()
                ],
                on_delivery=delivered,
            )
        except BufferError:
            raise UnreachableError(f"{self._place} takes no more for now") from None
        if error := await answer:
            self._fail(error)

    def consumer_of(self, station: DeliveryRunner) -> KafkaConsumer:
        settings = {
            **connection_of(self._config),
            "group.id": f"{self._config.group}.{self._topic(station.stream)}",
            "group.protocol": self._config.group_protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        return KafkaConsumer(settings, self._topic(station.stream), station)

    def _topic(self, stream: str) -> str:
        return self._config.topic_prefix + stream

    def _fail(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Codes

        if error.code() == Codes.MSG_SIZE_TOO_LARGE:
            raise PermanentError(f"larger than {self._place} takes", code="TOO_LARGE")
        if error.fatal():  # this producer is of no use any more
            self._producer = self._new_producer()
        raise UnreachableError(f"{self._place} did not confirm: {error.str()}")

    def _new_producer(self) -> Producer:
        from confluent_kafka import Producer

        return Producer(
            {
                **connection_of(self._config),
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # as the Java clients do
                "linger.ms": 1,
                "message.timeout.ms": DELIVER_MS,
            }
        )

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.1)

    def _look(self) -> None:
        """Whether a broker answers; where brokers make topics by themselves, this asks for ours."""
        from confluent_kafka import KafkaException

        try:
            for stream in self.streams:
                self._producer.list_topics(self._topic(stream), timeout=ANSWER_S)
        except KafkaException as error:
            raise UnreachableError(
                f"{self._place} does not answer: {error.args[0].str()}"
            ) from None


def connection_of(config: KafkaBusConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": config.bootstrap,
        "security.protocol": config.security_protocol,
        "logger": logging.getLogger("qts.outbox.kafka"),
        "log_level": 3,
    }
    if config.security_protocol.startswith("sasl") and config.sasl_password is not None:
        settings["sasl.mechanism"] = config.sasl_mechanism
        settings["sasl.username"] = config.sasl_username
        settings["sasl.password"] = config.sasl_password.reveal()
    if config.ssl_ca is not None:
        settings["ssl.ca.location"] = config.ssl_ca
    return settings


def _check(config: KafkaBusConfig) -> None:
    try:
        import confluent_kafka  # noqa: F401 - optional: asked for here, with an answer that helps
    except ImportError:
        raise OperationError('the client of Kafka is missing; pip install "qts[kafka]"') from None
    if not config.bootstrap:
        raise RefusedError('outbox.kafka.bootstrap: must look like "host:9092"')
    login = config.sasl_username is not None and config.sasl_password is not None
    if config.security_protocol.startswith("sasl") and not login:
        raise RefusedError(
            f'outbox.kafka.security_protocol = "{config.security_protocol}": '
            "needs outbox.kafka.sasl_username and outbox.kafka.sasl_password"
        )


def _resolve(answer: asyncio.Future[KafkaError | None], error: KafkaError | None) -> None:
    if not answer.done():
        answer.set_result(error)
