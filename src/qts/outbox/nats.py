"""Bus on NATS JetStream.

    stream everbit.trade.command  ─▶  everbit_trade_command
    its subjects                      everbit.trade.command.<partition>.<aggregate type>.<id>
    of an account                     everbit.trade.command.<account>.<partition>.<type>.<id>

A stream keeps an event until it is handled. An ordered stream spreads its aggregates over
partitions, and the server delivers one event of a partition at a time; an unordered one has one
consumer for all. `Nats-Msg-Id` deduplicates events sent twice within `duplicate_window_s`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import quote
from zlib import crc32

from qts.database import Database
from qts.domain import RefusedError, UnreachableError
from qts.outbox import codec
from qts.outbox.bus import Delivery
from qts.outbox.config import NatsBusConfig, StreamConfig
from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.errors import PermanentError
from qts.outbox.nats_connection import (
    REPLY_TIMEOUT_S,
    close_nats,
    connect_nats,
    nats_address,
    nats_errors,
)
from qts.outbox.nats_consumer import NatsConsumer
from qts.outbox.relayed_bus import RelayedBus

if TYPE_CHECKING:
    from nats.aio.client import Client

_NAME_IN_USE = 10058
_MAX_TOKEN = 100  # a longer name is cut in the subject; the headers have it whole


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
                codec.encode_body(delivery),
                timeout=REPLY_TIMEOUT_S,
                headers=codec.encode_headers(delivery),
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
        partition = crc32(codec.partition_key(delivery)) % self._config.partitions
        names = (delivery.aggregate_type, delivery.aggregate_id)
        path = f"{partition}.{'.'.join(map(_token, names))}"
        owner = f"{_token(delivery.account)}." if delivery.account else ""
        return f"{delivery.stream}.{owner}{path}"


def stream_name(stream: str) -> str:
    return stream.replace(".", "_")


def _token(name: str) -> str:
    """Escape the characters with a meaning in subjects: dots, wildcards, spaces."""
    return quote(name, safe="").replace(".", "%2E")[:_MAX_TOKEN]
