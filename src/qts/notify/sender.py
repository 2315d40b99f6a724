"""Sends what waits for one channel: grouped, not too often, again after a failure.

    look ─▶ wait for company ─▶ wait for a turn ─▶ take ─▶ send ─▶ SENT
     ▲                                                       ├─▶ Later, Declined: pause, put back
     └───────────────────────────────────────────────────────┴─▶ Gone: the channel is closed

The database is the queue: nothing piles up in memory, and another start goes on where this ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.notify.channel import (
    ChannelGoneError,
    MessageDeclinedError,
    NotificationChannel,
    RetryLaterError,
)
from qts.notify.config import NotifyConfig
from qts.notify.message_store import MessageStore, QueuedMessage

log = telemetry.logger("notify")

MOST = 50  # messages in one request
LOOK_EVERY_S = 1.0
ROUND = 1.5  # of the time one request may take: a request that hangs ends before its round
PAUSES_S = (2.0, 300.0)  # after the first failure; at most
DECLINED_TRIES = 5
TIDY_EVERY_S = 600.0
_MINUTE_NS = 60_000_000_000

_sent = telemetry.counter(
    "qts_notifications_total", "Messages by channel and by what became of them.",
    ("channel", "result"),
)  # fmt: skip


class Sender:
    """One channel. Its own errors never leave `run`."""

    def __init__(
        self, notifier: NotificationChannel, book: MessageStore, config: NotifyConfig, clock: Clock
    ) -> None:
        self._notifier = notifier
        self._book = book
        self._config = config
        self._clock = clock
        self._wake = asyncio.Event()
        self._turns: deque[int] = deque()  # when requests left, within the last minute
        self._pause_s = 0.0
        self._tidied_ns: int | None = None
        for result in ("sent", "failed", "given_up"):
            _sent.labels(notifier.name, result)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled; a closed channel may be opened again meanwhile."""
        while True:
            try:
                if await self._book.is_open(self._notifier.name):
                    await self.once()
                await self._tidy()
            except OperationError as error:  # the database is away
                log.warning("messages wait", channel=self._notifier.name, error=str(error))
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wake.wait()

    async def once(self) -> int:
        """Send what is due; answers how many went."""
        queue = await self._book.waiting(self._notifier.name)
        if not queue.count:
            return 0
        if not queue.urgent and queue.count < MOST:
            await self._clock.sleep(max(0.0, self._config.batch_window_s - queue.oldest_s))
        await self._clock.sleep(max(self._pause_s, self._until_turn_s()))
        lease_s = self._config.timeout_s * 2 + 5
        taken = await self._book.claim(self._notifier.name, MOST, lease_s)
        return await self._send(taken) if taken else 0

    async def _send(self, taken: list[QueuedMessage]) -> int:
        self._turns.append(self._clock.monotonic_ns())
        name = self._notifier.name
        try:
            async with asyncio.timeout(self._config.timeout_s * ROUND):
                await self._notifier.send([each.message for each in taken])
        except ChannelGoneError as error:
            log.error("a channel is no more and was switched off", channel=name, error=str(error))
            await self._book.disable(name, str(error))
            _sent.labels(name, "given_up").inc(len(taken))
        except MessageDeclinedError as error:
            hopeless = [each for each in taken if each.tries >= DECLINED_TRIES]
            await self._book.give_up(hopeless, str(error))
            _sent.labels(name, "given_up").inc(len(hopeless))
            await self._failed([each for each in taken if each not in hopeless], error, PAUSES_S[1])
        except RetryLaterError as error:
            await self._failed(taken, error, error.after_s)
        except TimeoutError:
            late = RetryLaterError(f"{name} took longer than {self._config.timeout_s * ROUND:g} s")
            await self._failed(taken, late, 0.0)
        else:
            self._pause_s = 0.0
            await self._book.sent(taken)
            _sent.labels(name, "sent").inc(len(taken))
            return len(taken)
        return 0

    async def _failed(
        self, taken: list[QueuedMessage], error: OperationError, at_least_s: float
    ) -> None:
        first, longest = PAUSES_S
        self._pause_s = max(at_least_s, min(self._pause_s * 2 or first, longest))
        _sent.labels(self._notifier.name, "failed").inc(len(taken))
        await self._book.retry_later(taken, str(error))
        log.warning(
            "messages were not taken",
            channel=self._notifier.name,
            error=str(error),
            waiting=len(taken),
            again_in_s=self._pause_s,
        )

    def _until_turn_s(self) -> float:
        now = self._clock.monotonic_ns()
        while self._turns and now - self._turns[0] >= _MINUTE_NS:
            self._turns.popleft()
        if len(self._turns) < self._config.per_minute:
            return 0.0
        return (self._turns[0] + _MINUTE_NS - now) / 1e9

    async def _tidy(self) -> None:
        now = self._clock.monotonic_ns()
        if self._tidied_ns is not None and now - self._tidied_ns < TIDY_EVERY_S * 1e9:
            return
        self._tidied_ns = now
        if old := await self._book.purge(self._config.keep_hours):
            log.warning("messages were given up, they are too old", count=old)
