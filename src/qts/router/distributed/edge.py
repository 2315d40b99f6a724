"""Edge between two machines: its settings, names on NATS, batches, and connection of a side."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from qts.domain import OperationError, RefusedError, Secret, UnreachableError
from qts.router.handlers import BATCH, MESSAGE, Messages

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StreamState

TYPES = 8
STREAMS = 256 * TYPES  # of (producer, type)

_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_SCHEMES = ("nats", "tls")
_HEAD = struct.Struct("<4sBBHQII")  # magic, version, last, bytes of a message, number, rows, count
_MAGIC, _VERSION = b"QTSE", 1
_ROW = np.dtype([("stream", "<u2"), ("before", "<u8")])

_CONNECT_TIMEOUT_S = 5.0
_HEARTBEAT_INTERVAL_S = 0.5
_REPLY_TIMEOUT_S = 2.0
_NAME_TAKEN = 10058

Role = Literal["source", "sink"]
T = TypeVar("T")


class EdgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an edge; both sides use the same server and the same run."""

    url: Annotated[Secret, Meta(description="of the NATS server: nats://user:password@host:4222")]
    run: Annotated[str, Meta(description="name of the run; a second source of it is refused")]
    batch: Annotated[int, Meta(description="messages in one NATS message, at most")] = 1024
    in_flight: Annotated[int, Meta(description="batches sent and not yet stored, at most")] = 16
    held: Annotated[int, Meta(description="batches stored and not yet confirmed, at most")] = 512
    unconfirmed: Annotated[
        int, Meta(description="batches a sink receives before it confirms, at most")
    ] = 64
    timeout_s: Annotated[
        float, Meta(description="how long the other side may be silent before this one fails")
    ] = 10.0

    def __post_init__(self) -> None:
        if not _is_url(self.url.reveal()):
            raise RefusedError(
                f"the URL of NATS is not valid; expected {' or '.join(_SCHEMES)}://host:port"
            )
        if not _RUN.fullmatch(self.run):
            raise RefusedError(
                f"run is {self.run[:80]!r}; expected 1 to 64 letters, digits, _ and -"
            )
        for name, low, high in (
            ("batch", BATCH, 8192),
            ("in_flight", 1, 256),
            ("held", 1, 1_000_000),
            ("unconfirmed", 2, 10_000),
        ):
            if not low <= (value := getattr(self, name)) <= high:
                raise RefusedError(f"{name} is {value}; expected {low} to {high}")
        if not 0 < self.timeout_s < 86_400:
            raise RefusedError(f"timeout is {self.timeout_s:g} s; expected above 0, below a day")

    @property
    def server(self) -> str:
        """Address of the server, without the password that its URL may hold."""
        return f"NATS at {self.host}:{self.port}"

    @property
    def host(self) -> str:
        return urlsplit(self.url.reveal()).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url.reveal()).port or 4222

    @property
    def stream(self) -> str:
        return f"QTS_ROUTE_{self.run}"

    @property
    def subject(self) -> str:
        return f"qts.route.{self.run}"

    def heartbeat_subject(self, role: str) -> str:
        """Return the subject of a side's heartbeat, which is not part of the stream."""
        return f"{self.subject}.alive.{role}"

    def message_id(self, number: int) -> str:
        return f"{self.run}.{number}"


class Batch(NamedTuple):
    """`before`: messages of each stream (producer * 8 + type) that precede this batch."""

    number: int
    last: bool
    before: dict[int, int]
    messages: Messages


def encode(number: int, before: Mapping[int, int], messages: bytes, *, last: bool = False) -> bytes:
    rows = np.array(list(before.items()), _ROW)
    count = len(messages) // MESSAGE.itemsize
    head = _HEAD.pack(_MAGIC, _VERSION, last, MESSAGE.itemsize, number, len(rows), count)
    return head + rows.tobytes() + messages


def decode(data: bytes) -> Batch:
    """Return the batch with a private copy of its messages; raise OperationError if malformed."""
    try:
        magic, version, last, size, number, rows, count = _HEAD.unpack_from(data)
    except struct.error:
        raise OperationError("the stream holds data that is not a batch of messages") from None
    if (magic, version, size) != (_MAGIC, _VERSION, MESSAGE.itemsize):
        raise OperationError(
            "the stream was written by another version of QTS; use the same on both sides"
        )
    if len(data) != _HEAD.size + rows * _ROW.itemsize + count * size:
        raise OperationError(f"batch {number} of the stream is cut off or too long")
    table = np.frombuffer(data, _ROW, rows, _HEAD.size)
    messages = np.frombuffer(data, MESSAGE, count, _HEAD.size + rows * _ROW.itemsize)
    before = dict(zip(table["stream"].tolist(), table["before"].tolist(), strict=True))
    return Batch(number, bool(last), before, messages.copy())


def streams_of(messages: Messages) -> npt.NDArray[np.intp]:
    """Return the stream number of each message."""
    streams: npt.NDArray[np.intp] = messages["producer_id"].astype(np.intp) * TYPES
    streams += messages["msg_type"]
    return streams


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        return False


class NatsLink:
    """NATS connection of one side, with heartbeats both ways.

    It runs a dedicated thread with an event loop; its methods are called from any thread.
    """

    client: Client
    jetstream: JetStreamContext

    def __init__(self, edge: EdgeConfig, role: Role) -> None:
        self.edge = edge
        self.reconnects = 0
        self.peer_at = 0.0  # last heartbeat of the other side, monotonic
        self._role = role
        self._peer: Role = "sink" if role == "source" else "source"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=f"qts-{role}", daemon=True)

    def open(self) -> None:
        """Connect; nothing is left running when it raises."""
        _require_client()
        self._thread.start()
        try:
            self.run(self._connect())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.spawn(work).result()

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, callback: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        if self._thread.is_alive():
            self.run(self._disconnect())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    @property
    def connected(self) -> bool:
        return self.client.is_connected

    async def state(self) -> StreamState | None:
        """Return the state of the stream, or None while the server does not answer."""
        import nats.errors
        from nats.js.errors import NotFoundError, ServiceUnavailableError

        try:
            return (await self.jetstream.stream_info(self.edge.stream)).state
        except NotFoundError:
            raise OperationError(
                f"stream {self.edge.stream} is gone from {self.edge.server}"
            ) from None
        except (ServiceUnavailableError, nats.errors.Error, TimeoutError, OSError):
            return None

    async def create_stream(self) -> None:
        """Create the stream of the run; raise RefusedError if it exists."""
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
        from nats.js.errors import APIError

        edge = self.edge
        config = StreamConfig(
            name=edge.stream,
            subjects=[edge.subject],
            retention=RetentionPolicy.WORK_QUEUE,  # what is confirmed is removed
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_msgs=edge.held,
            metadata={"source": secrets.token_hex(8)},  # makes each stream of a run unique
        )
        try:
            await self.jetstream.add_stream(config)
        except (APIError, TimeoutError) as error:
            if getattr(error, "err_code", None) == _NAME_TAKEN:
                raise RefusedError(
                    f"run {edge.run} exists in {edge.server}; choose another name,"
                    f" or delete its stream {edge.stream}"
                ) from None
            reason = getattr(error, "description", None) or "no reply"
            raise OperationError(
                f"{edge.server} cannot create stream {edge.stream}: {reason}"
            ) from None

    async def move_end(self, number: int) -> None:
        """Set the end of an empty stream, so that the next batch is the one after `number`."""
        import nats.errors

        with suppress(nats.errors.Error, TimeoutError):  # the next check of the stream retries
            await self.jetstream.purge_stream(self.edge.stream, seq=number + 1)

    async def remove_stream(self) -> None:
        import nats.errors

        # An empty stream that remains does no harm.
        with suppress(nats.errors.Error, TimeoutError):
            await self.jetstream.delete_stream(self.edge.stream)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _connect(self) -> None:
        import nats

        try:
            await asyncio.wait_for(self._probe(), 2 * _CONNECT_TIMEOUT_S)
            connecting = nats.connect(
                self.edge.url.reveal(),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,
                error_cb=_ignore,
                reconnected_cb=self._on_reconnect,
                name=f"qts {self._role} {self.edge.run}",
            )
            self.client = await asyncio.wait_for(connecting, 2 * _CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError, nats.errors.Error, ValueError) as error:
            if "authorization" in str(error).lower():
                raise RefusedError(
                    f"{self.edge.server} refuses the user, password or token of its URL"
                ) from None
            raise UnreachableError(
                f"{self.edge.server} does not answer: {_reason(error)}"
            ) from None
        self.jetstream = self.client.jetstream(timeout=_REPLY_TIMEOUT_S)
        await self._check_jetstream()
        await self.client.subscribe(self.edge.heartbeat_subject(self._peer), cb=self._on_heartbeat)
        self._heartbeats = asyncio.create_task(self._send_heartbeats())

    async def _probe(self) -> None:
        """Connect once and disconnect: unlike the client, this fails instead of retrying."""
        from nats.aio.client import Client

        _, probe = await asyncio.wait_for(
            asyncio.open_connection(self.edge.host, self.edge.port), _CONNECT_TIMEOUT_S
        )
        probe.close()
        await probe.wait_closed()
        trial = Client()
        try:
            await trial.connect(
                self.edge.url.reveal(),
                allow_reconnect=False,
                connect_timeout=int(_CONNECT_TIMEOUT_S),
                error_cb=_ignore,
            )
        finally:
            await trial.close()

    async def _check_jetstream(self) -> None:
        import nats.errors

        try:
            await self.jetstream.account_info()
        except (nats.errors.Error, TimeoutError):
            raise OperationError(
                f"{self.edge.server} has no JetStream; start it with -js or a jetstream block"
            ) from None

    async def _disconnect(self) -> None:
        import nats.errors

        if hasattr(self, "client"):
            # A broken connection raises once more when it is closed; from Python 3.12 on a
            # TypeError of writelines() on its closed transport.
            with suppress(nats.errors.Error, TimeoutError, OSError, TypeError):
                await asyncio.wait_for(self.client.close(), _REPLY_TIMEOUT_S)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _send_heartbeats(self) -> None:
        import nats.errors

        while True:
            if self.connected:  # the client would send it late after a reconnect
                try:
                    await self.client.publish(self.edge.heartbeat_subject(self._role))
                except nats.errors.Error:
                    continue
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)

    async def _on_heartbeat(self, _message: object) -> None:
        self.peer_at = time.monotonic()

    async def _on_reconnect(self) -> None:
        self.reconnects += 1


def _require_client() -> None:
    try:
        import nats  # noqa: F401 - an optional dependency
    except ImportError:
        raise OperationError('the NATS client is not installed; pip install "qts[nats]"') from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio replaces the text
    return getattr(error, "strerror", None) or str(error)


async def _ignore(_error: Exception) -> None:
    """Drop an error of the client: the calls that wait raise it."""
