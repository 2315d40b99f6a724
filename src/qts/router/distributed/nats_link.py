"""NATS connection of one side: a thread with an event loop, and heartbeats both ways."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from qts.domain import OperationError, RefusedError, UnreachableError
from qts.router.distributed.edge import EdgeConfig

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StreamState

Role = Literal["source", "sink"]
T = TypeVar("T")

_CONNECT_TIMEOUT_S = 5.0
_HEARTBEAT_INTERVAL_S = 0.5
_REPLY_TIMEOUT_S = 2.0
_NAME_TAKEN = 10058


class NatsLink:
    """Connection with a dedicated event loop; its methods are called from any thread."""

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
