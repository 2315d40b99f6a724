"""The bus on NATS JetStream.

    stream everbit.trade.command  ─▶  everbit_trade_command
    its subjects                      everbit.trade.command.<partition>.<aggregate type>.<id>

A stream keeps an event until a handler is done with it. Where it is ordered, its aggregates are
spread over partitions, and the server hands out one event of a partition at a time; else one
consumer serves all. `Nats-Msg-Id` makes an event sent twice within `duplicate_window_s` one.
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
from qts.outbox.nats_connection import ANSWER_S, connect, server_addresses, trouble
from qts.outbox.nats_consumer import NatsConsumer
from qts.outbox.relayed_bus import RelayedBus

if TYPE_CHECKING:
    from nats.aio.client import Client

_NAME_TAKEN = 10058
_LONG = 100  # a longer name in a subject is cut: the headers have it whole


class NatsBus(RelayedBus):
    """One connection for all that this process sends and handles."""

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
        self._jetstream = client.jetstream(timeout=ANSWER_S)
        self._place = server_addresses(config)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, streams: Mapping[str, StreamConfig], config: NatsBusConfig
    ) -> AsyncIterator[Self]:
        client = await connect(config)
        bus = cls(database, streams, config, client)
        try:
            await bus.make_streams()
            yield bus
        finally:
            await bus.close()

    async def close(self) -> None:
        await self._close_outbox()
        # A connection that broke says so once more while it is closed.
        with suppress(*trouble()):
            await self._client.flush(timeout=int(ANSWER_S))
        with suppress(*trouble()):
            await self._client.close()

    async def make_streams(self) -> None:
        """The streams on the server, where they are not there already."""
        for stream in self.streams:
            await self._make(stream)

    async def send(self, delivery: Delivery) -> None:
        from nats.errors import MaxPayloadError
        from nats.js.errors import NoStreamResponseError

        try:
            await self._jetstream.publish(
                self._subject(delivery),
                codec.encode_body(delivery),
                timeout=ANSWER_S,
                headers=codec.encode_headers(delivery),
            )
        except MaxPayloadError:
            raise PermanentError(f"larger than {self._place} takes", code="TOO_LARGE") from None
        except NoStreamResponseError:  # lost with its server's disk, or without a leader
            await self._make(delivery.stream)
            raise UnreachableError(f"{self._place} has no stream for {delivery.stream}") from None
        except trouble() as error:
            raise UnreachableError(f"{self._place} did not confirm: {error!r}") from None

    def consumer_of(self, station: DeliveryRunner) -> NatsConsumer:
        ordered = station.config.ordered
        filters = (
            {f"partition-{n}": f"{station.stream}.{n}.>" for n in range(self._config.partitions)}
            if ordered
            else {"all": f"{station.stream}.>"}
        )
        return NatsConsumer(self._client, name_of(station.stream), filters, station)

    async def _make(self, stream: str) -> None:
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType
        from nats.js.api import StreamConfig as Settings
        from nats.js.errors import APIError

        partitions = str(self._config.partitions)
        settings = Settings(
            name=name_of(stream),
            subjects=[f"{stream}.>"],
            retention=RetentionPolicy.WORK_QUEUE,  # what is handled is removed, and nothing else
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,  # a full disk holds the relay up and drops nothing
            num_replicas=self._config.replicas,
            duplicate_window=self._config.duplicate_window_s,
            metadata={"qts-partitions": partitions},
        )
        try:
            await self._jetstream.add_stream(settings)
        except APIError as error:
            if error.err_code != _NAME_TAKEN:
                raise UnreachableError(
                    f"{self._place}: stream {stream}: {error.description}"
                ) from None
            await self._check(stream, partitions)
        except trouble() as error:
            raise UnreachableError(
                f"{self._place} makes no stream for {stream}: {error!r}"
            ) from None

    async def _check(self, stream: str, partitions: str) -> None:
        """A stream that is there may be kept as somebody set it up, but not be split anew."""
        try:
            found = (await self._jetstream.stream_info(name_of(stream))).config
        except trouble() as error:
            raise UnreachableError(f"{self._place} does not show {stream}: {error!r}") from None
        has = (found.metadata or {}).get("qts-partitions", "none")
        if has != partitions:
            raise RefusedError(
                f"outbox.nats.partitions = {partitions}: stream {name_of(stream)} at {self._place} "
                f"has {has}; keep that, or drain and delete the stream first"
            )

    def _subject(self, delivery: Delivery) -> str:
        partition = crc32(codec.partition_key(delivery)) % self._config.partitions
        names = (delivery.aggregate_type, delivery.aggregate_id)
        return f"{delivery.stream}.{partition}.{'.'.join(map(_token, names))}"


def name_of(stream: str) -> str:
    return stream.replace(".", "_")


def _token(name: str) -> str:
    """Free of what means something in a subject: dots, wildcards, spaces."""
    return quote(name, safe="").replace(".", "%2E")[:_LONG]
