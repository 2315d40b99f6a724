"""LISTEN on a dedicated connection that reconnects automatically.

Notifications sent while the connection is down are lost. The iterator therefore yields
`ListenStarted` after every connect; the reader then queries for what it missed.

    connect ─▶ ListenStarted ─▶ Notification … ─▶ lost, silent or overrun ─▶ connect …
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

MAX_PENDING = 10_000  # unread notifications; above it the listener reconnects
PING_INTERVAL_S = 10.0  # ping of a silent connection
BACKOFF_S = (0.05, 5.0)  # first, maximum
WARNING_INTERVAL_S = 10.0  # between warnings of all listeners on one server
MAX_CHANNEL_BYTES = 63

log = telemetry.logger("database")


class ListenStarted(msgspec.Struct, frozen=True):
    """Marks that notifications arrive from now on; earlier ones may be lost."""


class Notification(msgspec.Struct, frozen=True):
    channel: str
    payload: str


class Listener:
    """Endless async iterator for one reader; used as an async context manager."""

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
                    f"channel name {channel!r}: expected 1 to {MAX_CHANNEL_BYTES} bytes"
                )
        self._connect = connect
        self._channels = channels
        self._where = where
        self._clock = clock
        self._connection: Any = None
        self._pending: asyncio.Queue[Notification | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ListenStarted | Notification:
        while self._connection is not None:
            try:
                async with asyncio.timeout(PING_INTERVAL_S):
                    arrived = await self._pending.get()
            except TimeoutError:
                if await self._ping():
                    continue
                break
            if arrived is None:
                break
            return arrived
        self._drop()
        await self._reconnect()
        return ListenStarted()

    async def _reconnect(self) -> None:
        delay_s, max_delay_s = BACKOFF_S
        while True:
            try:
                self._connection = await self._connect()
                self._connection.add_termination_listener(self._on_termination)
                for channel in self._channels:
                    await self._connection.add_listener(channel, self._on_notification)
            except DRIVER_ERRORS as error:
                self._drop()
                if due := telemetry.log_every(WARNING_INTERVAL_S, ("listen", self._where)):
                    text = "listen failed; retrying"
                    log.warning(text, server=self._where, error=str(error), **due)
                await self._clock.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                delay_s = min(delay_s * 2, max_delay_s)
            except BaseException:
                self._drop()
                raise
            else:
                return

    async def _ping(self) -> bool:
        try:
            await self._connection.execute("SELECT 1", timeout=PING_INTERVAL_S)
        except DRIVER_ERRORS:
            return False
        return True

    def _on_notification(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if self._pending.qsize() < MAX_PENDING:
            self._pending.put_nowait(Notification(channel, payload))
        else:
            self._connection.terminate()

    def _on_termination(self, connection: Any) -> None:
        if connection is self._connection:
            self._pending.put_nowait(None)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._pending = asyncio.Queue()
        if connection is not None and not is_gone(connection):
            connection.terminate()
