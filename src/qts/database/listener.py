"""LISTEN on a connection of its own that comes back by itself.

Notifications sent while nobody listened are gone. So the iterator says `Listening` each time
it begins to listen, at first and after every loss: look then for what was missed.

    connect ─▶ Listening ─▶ Notification … ─▶ lost, silent or overrun ─▶ connect …
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

import msgspec

from qts import telemetry
from qts.database.errors import DRIVER_ERRORS, is_gone
from qts.domain import Clock

MAX_WAITING = 10_000  # notifications a slow reader may leave before it has to look for itself
CHECK_AFTER_S = 10.0  # a quiet connection is asked whether it is still there
RETRY_S = (0.05, 5.0)
MAX_CHANNEL_BYTES = 63

log = telemetry.logger("database")


class ListenStarted(msgspec.Struct, frozen=True):
    """From here on notifications arrive; what came before may have been missed."""


class Notification(msgspec.Struct, frozen=True):
    channel: str
    payload: str


class Listener:
    """An endless async iterator, for one reader; close it by leaving its `async with`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channels: Sequence[str],
        where: str,
        clock: Clock,
    ) -> None:
        for channel in channels:
            if not 0 < len(channel.encode()) <= MAX_CHANNEL_BYTES:
                raise ValueError(
                    f"a channel name has 1 to {MAX_CHANNEL_BYTES} bytes, not {channel!r}"
                )
        self._connect = connect
        self._channels = channels
        self._where = where
        self._clock = clock
        self._connection: Any = None
        self._waiting: asyncio.Queue[Notification | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ListenStarted | Notification:
        while self._connection is not None:
            try:
                async with asyncio.timeout(CHECK_AFTER_S):
                    arrived = await self._waiting.get()
            except TimeoutError:
                if await self._answers():
                    continue
                break
            if arrived is None:
                break
            return arrived
        self._drop()
        await self._listen_again()
        return ListenStarted()

    async def _listen_again(self) -> None:
        delay_s, longest_s = RETRY_S
        while True:
            try:
                self._connection = await self._connect()
                self._connection.add_termination_listener(self._on_end)
                for channel in self._channels:
                    await self._connection.add_listener(channel, self._on_notification)
            except DRIVER_ERRORS as error:
                self._drop()
                log.warning("cannot listen, trying again", server=self._where, error=str(error))
                await self._clock.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                delay_s = min(delay_s * 2, longest_s)
            except BaseException:
                self._drop()
                raise
            else:
                return

    async def _answers(self) -> bool:
        try:
            await self._connection.execute("SELECT 1", timeout=CHECK_AFTER_S)
        except DRIVER_ERRORS:
            return False
        return True

    def _on_notification(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put_nowait(Notification(channel, payload))
        else:
            self._connection.terminate()

    def _on_end(self, connection: Any) -> None:
        if connection is self._connection:
            self._waiting.put_nowait(None)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._waiting = asyncio.Queue()
        if connection is not None and not is_gone(connection):
            connection.terminate()
