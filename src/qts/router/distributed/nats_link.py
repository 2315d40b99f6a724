"""One side's connection to NATS: a thread with its loop, and signs of life both ways."""

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

_CONNECT_S = 5.0
_ALIVE_S = 0.5
_ANSWER_S = 2.0
_NAME_TAKEN = 10058


class NatsLink:
    """Calls into it come from any thread; its coroutines run on its own loop."""

    client: Client
    jetstream: JetStreamContext

    def __init__(self, edge: EdgeConfig, role: Role) -> None:
        self.edge = edge
        self.reconnects = 0
        self.peer_at = 0.0  # when the other side last said that it lives, monotonic
        self._role = role
        self._peer: Role = "sink" if role == "source" else "source"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=f"qts-{role}", daemon=True)

    def open(self) -> None:
        """Connected when it returns; nothing is left running when it raises."""
        _library()
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

    def call_soon(self, what: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

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
        """Of the stream; None while the server does not answer."""
        import nats.errors
        from nats.js.errors import NotFoundError, ServiceUnavailableError

        try:
            return (await self.jetstream.stream_info(self.edge.stream)).state
        except NotFoundError:
            raise OperationError(
                f"stream {self.edge.stream} is gone from {self.edge.place}"
            ) from None
        except (ServiceUnavailableError, nats.errors.Error, TimeoutError, OSError):
            return None

    async def make_stream(self) -> None:
        """For a source: one stream a run, refused when it is there."""
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
            metadata={"source": secrets.token_hex(8)},  # two streams of a run are never alike
        )
        try:
            await self.jetstream.add_stream(config)
        except (APIError, TimeoutError) as error:
            if getattr(error, "err_code", None) == _NAME_TAKEN:
                raise RefusedError(
                    f"run {edge.run} is in {edge.place} already; choose another name,"
                    f" or delete its stream {edge.stream}"
                ) from None
            reason = getattr(error, "description", None) or "no answer"
            raise OperationError(
                f"{edge.place} does not make stream {edge.stream}: {reason}"
            ) from None

    async def move_end(self, number: int) -> None:
        """Let the next batch of an empty stream be the one after this."""
        import nats.errors

        with suppress(nats.errors.Error, TimeoutError):  # it is looked at again
            await self.jetstream.purge_stream(self.edge.stream, seq=number + 1)

    async def remove_stream(self) -> None:
        import nats.errors

        # An empty stream that stays behind harms nobody.
        with suppress(nats.errors.Error, TimeoutError):
            await self.jetstream.delete_stream(self.edge.stream)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _connect(self) -> None:
        import nats

        try:
            await asyncio.wait_for(self._try(), 2 * _CONNECT_S)
            connecting = nats.connect(
                self.edge.url.reveal(),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,
                error_cb=_ignore,
                reconnected_cb=self._note_reconnect,
                name=f"qts {self._role} {self.edge.run}",
            )
            self.client = await asyncio.wait_for(connecting, 2 * _CONNECT_S)
        except (OSError, TimeoutError, nats.errors.Error, ValueError) as error:
            if "authorization" in str(error).lower():
                raise RefusedError(
                    f"{self.edge.place} refuses the user, password or token of its URL"
                ) from None
            raise UnreachableError(f"{self.edge.place} does not answer: {_reason(error)}") from None
        self.jetstream = self.client.jetstream(timeout=_ANSWER_S)
        await self._check_jetstream()
        await self.client.subscribe(self.edge.alive(self._peer), cb=self._note_peer)
        self._saying = asyncio.create_task(self._say_alive())

    async def _try(self) -> None:
        """The first connection, which must fail where the client itself would try for ever."""
        from nats.aio.client import Client

        _, probe = await asyncio.wait_for(
            asyncio.open_connection(self.edge.host, self.edge.port), _CONNECT_S
        )
        probe.close()
        await probe.wait_closed()
        trial = Client()
        try:
            await trial.connect(
                self.edge.url.reveal(),
                allow_reconnect=False,
                connect_timeout=int(_CONNECT_S),
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
                f"{self.edge.place} has no JetStream; start it with -js or a jetstream block"
            ) from None

    async def _disconnect(self) -> None:
        import nats.errors

        if hasattr(self, "client"):
            # A connection that broke says so once more while it is closed.
            with suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self.client.close(), _ANSWER_S)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _say_alive(self) -> None:
        import nats.errors

        while True:
            if self.connected:  # what is said while disconnected would be sent when it is old
                try:
                    await self.client.publish(self.edge.alive(self._role))
                except nats.errors.Error:
                    continue
            await asyncio.sleep(_ALIVE_S)

    async def _note_peer(self, _message: object) -> None:
        self.peer_at = time.monotonic()

    async def _note_reconnect(self) -> None:
        self.reconnects += 1


def _library() -> None:
    try:
        import nats  # noqa: F401 - optional: asked for here, once, with an answer that helps
    except ImportError:
        raise OperationError(
            'two machines are joined by NATS, whose client is missing; pip install "qts[nats]"'
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "nothing came in time"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio writes a text of its own
    return getattr(error, "strerror", None) or str(error)


async def _ignore(_error: Exception) -> None:
    """The client's own log of errors: what matters is seen by whoever waits."""
