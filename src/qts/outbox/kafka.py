"""Bus on Kafka: a topic has the name of its stream, a message the key of its aggregate.

An aggregate is in one partition and therefore in order. The producer is idempotent: messages that
librdkafka resends are stored once. A relay that crashed resends what it could not complete.

After a fatal error a producer takes no message any more. The bus replaces it once and fails what it
had in flight, so that the relay sends those events again: each at least once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self

from qts import telemetry
from qts.database import Database
from qts.domain import OperationError, RefusedError, UnreachableError
from qts.outbox.bus import Consumer, Delivery, PermanentError
from qts.outbox.config import KafkaBusConfig, StreamConfig
from qts.outbox.handling import DeliveryRunner, encode_body, encode_headers, partition_key
from qts.outbox.kafka_consumer import KafkaConsumer, KafkaConsumers
from qts.outbox.relayed_bus import RelayedBus

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

REPLY_TIMEOUT_S = 5.0
DELIVERY_TIMEOUT_MS = 30_000  # then the relay retries

log = telemetry.logger("outbox")


class KafkaBus(RelayedBus):
    """Bus with one producer per process and one connection per consumer."""

    def __init__(
        self, database: Database, streams: Mapping[str, StreamConfig], config: KafkaBusConfig
    ) -> None:
        super().__init__(database, streams)
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._address = f"Kafka at {config.bootstrap}"
        self._closed = threading.Event()
        self._producer = self._new_producer()
        self._replies: set[asyncio.Future[KafkaError | None]] = set()  # of messages in flight
        # The library's asyncio producer sends no headers and waits a second for a batch.
        self._poll_thread = threading.Thread(target=self._poll, name="qts-kafka", daemon=True)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, streams: Mapping[str, StreamConfig], config: KafkaBusConfig
    ) -> AsyncIterator[Self]:
        _check_config(config)
        bus = cls(database, streams, config)
        bus._poll_thread.start()
        try:
            await asyncio.to_thread(bus._check_brokers)
            yield bus
        finally:
            await bus.close()

    async def close(self) -> None:
        await self._close_outbox()
        await asyncio.to_thread(self._producer.flush, REPLY_TIMEOUT_S)
        self._closed.set()
        await asyncio.to_thread(self._poll_thread.join)

    async def send(self, delivery: Delivery) -> None:
        from confluent_kafka import KafkaException

        producer = self._producer
        reply: asyncio.Future[KafkaError | None] = self._loop.create_future()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self._loop.call_soon_threadsafe(_resolve, reply, error)

        try:
            producer.produce(
                self._topic(delivery.stream),
                key=partition_key(delivery),
                value=encode_body(delivery),
                headers=[(name, text.encode()) for name, text in encode_headers(delivery).items()],
                on_delivery=delivered,
            )
        except BufferError:
            raise UnreachableError(f"{self._address} has a full send queue") from None
        except KafkaException as error:
            self._raise(error.args[0], producer)
        self._replies.add(reply)
        try:
            failure = await reply
        finally:
            self._replies.discard(reply)
        if failure is not None:
            self._raise(failure, producer)

    def create_consumer(self, runner: DeliveryRunner, account: str) -> Consumer:
        accounts = dict.fromkeys(("", account))
        return KafkaConsumers([self._group_consumer(runner, each) for each in accounts])

    def _group_consumer(self, runner: DeliveryRunner, account: str) -> KafkaConsumer:
        """Return the consumer of an account's group: it skips the events of others."""
        group = f"{self._config.group}.{self._topic(runner.stream)}"
        settings = {
            **connection_settings(self._config),
            "group.id": f"{group}.{account}" if account else group,
            "group.protocol": self._config.group_protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        return KafkaConsumer(settings, self._topic(runner.stream), runner, account)

    def _topic(self, stream: str) -> str:
        return self._config.topic_prefix + stream

    def _raise(self, error: KafkaError, producer: Producer) -> NoReturn:
        from confluent_kafka import KafkaError as Codes

        if error.code() == Codes.MSG_SIZE_TOO_LARGE:
            raise PermanentError(f"message exceeds the limit of {self._address}", code="TOO_LARGE")
        if error.fatal() or error.code() == Codes._FATAL:
            self._replace(producer)
        raise UnreachableError(f"{self._address} did not confirm: {error.str()}")

    def _replace(self, producer: Producer) -> None:
        """Replace a producer after a fatal error, unless that was done."""
        from confluent_kafka import KafkaError

        if producer is not self._producer:
            return
        log.error("Kafka producer failed; replaced", server=self._address)
        self._producer = self._new_producer()
        producer.purge()
        # Its own reports may be lost with the error.
        for reply in list(self._replies):
            _resolve(reply, KafkaError(KafkaError._PURGE_INFLIGHT))

    def _new_producer(self) -> Producer:
        from confluent_kafka import Producer

        return Producer(
            {
                **connection_settings(self._config),
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # as the Java clients do
                "linger.ms": 1,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )

    def _poll(self) -> None:
        from confluent_kafka import KafkaException

        while not self._closed.is_set():
            producer = self._producer
            try:
                producer.poll(0.1)
            except (KafkaException, SystemError):
                # A fatal error; SystemError if a delivery report came with it.
                self._loop.call_soon_threadsafe(self._replace, producer)

    def _check_brokers(self) -> None:
        """Check that a broker answers; brokers that create topics automatically create ours."""
        from confluent_kafka import KafkaException

        try:
            for stream in self.streams:
                self._producer.list_topics(self._topic(stream), timeout=REPLY_TIMEOUT_S)
        except KafkaException as error:
            raise UnreachableError(
                f"{self._address} does not answer: {error.args[0].str()}"
            ) from None


def connection_settings(config: KafkaBusConfig) -> dict[str, Any]:
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


def _check_config(config: KafkaBusConfig) -> None:
    try:
        import confluent_kafka  # noqa: F401 - optional dependency, checked here
    except ImportError:
        raise OperationError('Kafka client is not installed; pip install "qts[kafka]"') from None
    if not config.bootstrap:
        raise RefusedError('outbox.kafka.bootstrap is empty; expected "host:9092"')
    login = config.sasl_username is not None and config.sasl_password is not None
    if config.security_protocol.startswith("sasl") and not login:
        raise RefusedError(
            f'outbox.kafka.security_protocol = "{config.security_protocol}": '
            "needs outbox.kafka.sasl_username and outbox.kafka.sasl_password"
        )


def _resolve(reply: asyncio.Future[KafkaError | None], error: KafkaError | None) -> None:
    if not reply.done():
        reply.set_result(error)
