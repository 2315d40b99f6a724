"""Connection of a role to NATS: subjects, durable streams, their publishing and consuming.

feed ─▶ strategies, execution      FeedFrame, FeedHeartbeat     core NATS, numbered
strategies, execution ─▶ feed      WatchRequest, NewestRequest  core NATS
strategies ─▶ execution            SignalMessage                JetStream
execution ─▶ strategies            ReportMessage                JetStream

Messages are MessagePack.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit

import msgspec
from msgspec.structs import replace

from qts import telemetry
from qts.domain import AccountKey, QtsError, RefusedError, Secret, UnreachableError
from qts.outbox import NatsBusConfig, close_nats, connect_nats, nats_address, nats_errors, nats_urls

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

LOOPBACK = Secret("nats://127.0.0.1:4222")
REPLY_TIMEOUT_S = 2.0
RETRY_INTERVAL_S = 0.2
START_TIMEOUT_S = 20.0  # of a cluster that elects a leader
MAX_STORED = 1_000_000
EXPORT_INTERVAL_S = 1.0
_NAME_IN_USE = 10058
ACK_WAIT_S = 5.0
FETCH_TIMEOUT_S = 1.0
MAX_IN_FLIGHT = 1000
CLOSE_TIMEOUT_S = 5.0

Role = Literal["all", "feed", "strategies", "execution"]
# Takes a message in the order of the stream until its first wait; returns whether it took effect.
HandleMessage = Callable[[bytes], Awaitable[bool]]

log = telemetry.logger("roles")
encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_FIGURES = telemetry.gauge(
    "qts_role_figures", "what a role sent, received, missed and has pending", ("figure",)
)


class RoleStatus(msgspec.Struct, kw_only=True):
    """Counters of one role since its start; `pending` ones are of now."""

    frames_sent: int = 0
    ticks_sent: int = 0
    frames_received: int = 0
    ticks_received: int = 0
    gaps: int = 0  # breaks in the numbers of frames
    frames_missed: int = 0
    gaps_healed: int = 0
    ticks_healed: int = 0  # newest ticks that replaced missed ones
    gaps_pending: int = 0  # not healed yet
    signals_sent: int = 0
    signals_received: int = 0
    signals_stale: int = 0  # entries that were too old to be sent
    signals_outdated: int = 0  # entries that were decided before an order of their symbol changed
    signals_pending: int = 0  # not confirmed by NATS yet
    reports_sent: int = 0
    reports_received: int = 0
    reports_pending: int = 0
    duplicates: int = 0  # messages that came again and changed nothing
    refused: int = 0  # messages that could not be read
    reconnects: int = 0


class DurableStream(NamedTuple):
    """A JetStream stream and the subject that its messages begin with."""

    name: str
    subject: str

    def of(self, account: AccountKey) -> str:
        """Return the subject of an account."""
        return f"{self.subject}.{account_token(account)}"


SIGNALS = DurableStream("qts_signals", "qts.signals")
REPORTS = DurableStream("qts_reports", "qts.reports")


def account_token(account: AccountKey) -> str:
    """Return the account without the characters that have a meaning in subjects."""
    return quote(str(account), safe="").replace(".", "%2E").replace("%", "=")


def check_nats(config: NatsBusConfig) -> NatsBusConfig:
    """Return the settings with the loopback address unless they have one.

    Refuse another machine without TLS: signals are orders to be, and the password travels along.
    """
    config = config if config.url is not None else replace(config, url=LOOPBACK)
    for url in nats_urls(config):
        parts = urlsplit(url)
        if parts.scheme not in ("nats", "tls") or not parts.hostname:
            raise RefusedError('outbox.nats.url is not valid; expected "nats://host:4222"')
        if not _is_loopback(parts.hostname) and parts.scheme != "tls":
            raise RefusedError(
                f"outbox.nats.url: {parts.hostname} is another machine, and {parts.scheme}:// is"
                f' not encrypted; expected "tls://{parts.hostname}:{parts.port or 4222}"'
            )
    return config


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def raise_if_cancelled() -> None:
    """Raise the cancellation of this task that the client may have swallowed.

    It does in a flush and, on Python 3.11, in a request whose answer is there.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class RoleConnection:
    """Connection with its streams; made by `open`."""

    def __init__(self, client: Client, config: NatsBusConfig, status: RoleStatus) -> None:
        self.client = client
        self.status = status
        self.jetstream = client.jetstream(timeout=REPLY_TIMEOUT_S)
        self.address = nats_address(config)
        self._config = config

    @classmethod
    @asynccontextmanager
    async def open(cls, config: NatsBusConfig, role: str) -> AsyncIterator[Self]:
        """Connect, and create the streams that the server does not have."""
        config = check_nats(config)
        status = RoleStatus()
        client = await connect_nats(config, f"qts {role}")
        connection = cls(client, config, status)
        exporting = asyncio.create_task(connection._export())
        try:
            for stream in (SIGNALS, REPORTS):
                await connection._create_at_start(stream)
            yield connection
        finally:
            exporting.cancel()
            status.reconnects = client.stats["reconnects"]
            await close_nats(client)

    @property
    def is_connected(self) -> bool:
        return self.client.is_connected

    async def _export(self) -> None:
        """Export the figures of the role as metrics until cancelled."""
        while True:
            self.status.reconnects = self.client.stats["reconnects"]
            for name in self.status.__struct_fields__:
                _FIGURES.labels(name).set(getattr(self.status, name))
            await asyncio.sleep(EXPORT_INTERVAL_S)

    async def publish(self, subject: str, data: bytes) -> bool:
        """Publish what may be lost; return False without a connection, which buffers nothing."""
        if not self.client.is_connected:
            return False
        try:
            await self.client.publish(subject, data)
        except nats_errors():
            return False
        raise_if_cancelled()
        return True

    async def publish_durable(
        self, stream: DurableStream, subject: str, data: bytes, id_: str
    ) -> None:
        """Publish until the stream has stored it; its id makes a repetition harmless."""
        from nats.js.errors import NoStreamResponseError

        while True:
            try:
                await self.jetstream.publish(
                    subject, data, timeout=REPLY_TIMEOUT_S, headers={"Nats-Msg-Id": id_}
                )
                raise_if_cancelled()
                return
            except NoStreamResponseError:  # lost with the server's disk, or without a leader
                await self._try_create(stream)
                await asyncio.sleep(RETRY_INTERVAL_S)
            except nats_errors() as error:
                if due := telemetry.log_every(10.0, f"roles {stream.name}"):
                    log.warning("message not stored; retrying", error=repr(error), **due)
                await asyncio.sleep(RETRY_INTERVAL_S)
            raise_if_cancelled()

    async def _create_at_start(self, stream: DurableStream) -> None:
        error: Exception | None = None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    error = await self._try_create(stream)
                    if error is None:
                        return
                    await asyncio.sleep(RETRY_INTERVAL_S)
        except TimeoutError:
            reason = getattr(error, "description", None) or repr(error)
            raise UnreachableError(
                f"{self.address} makes no stream {stream.name} with outbox.nats.replicas ="
                f" {self._config.replicas}: {reason}"
            ) from None

    async def _try_create(self, stream: DurableStream) -> Exception | None:
        """Create the stream unless it exists; return why that failed."""
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
        from nats.js.errors import APIError

        settings = StreamConfig(
            name=stream.name,
            subjects=[f"{stream.subject}.>"],
            retention=RetentionPolicy.WORK_QUEUE,  # acknowledged messages are removed
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,  # a full stream blocks the sender and drops nothing
            max_msgs=MAX_STORED,
            num_replicas=self._config.replicas,
            duplicate_window=self._config.duplicate_window_s,
        )
        try:
            await self.jetstream.add_stream(settings)
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                return error
            return await self._try_update(settings.name or "", settings.num_replicas)
        except nats_errors() as error:
            return error
        return None

    async def _try_update(self, name: str, replicas: int | None) -> Exception | None:
        """Give an existing stream the replicas of the settings."""
        try:
            found = (await self.jetstream.stream_info(name)).config
            if found.num_replicas != replicas:
                found.num_replicas = replicas
                await self.jetstream.update_stream(found)
        except nats_errors() as error:
            return error
        return None


class DurableReceiver:
    """Consumer of one subject, of which there is one at a time; `run` until cancelled.

    A message is acknowledged after what it says took effect:

    delivered ─▶ handling ──True──▶ acknowledged, removed
                   │  └──False, error, kill -9──▶ delivered again after ACK_WAIT_S
                   └─ every third of it: in progress
    """

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
