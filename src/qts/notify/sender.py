"""Sender of one channel: batched, rate-limited, with retries.

    poll ─▶ batch window ─▶ rate limit ─▶ claim ─▶ send ─▶ SENT
     ▲                                              ├─▶ retry later, declined: back off, release
     └──────────────────────────────────────────────┴─▶ gone: the channel is disabled

The queue is in the database: memory use is bounded, and a restart continues with it. A result that
could not be recorded is kept here and recorded before the next request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.notify.channel import (
    DEDUPLICATING,
    ChannelGoneError,
    MessageDeclinedError,
    NotificationChannel,
    RetryLaterError,
)
from qts.notify.config import NotifyConfig
from qts.notify.message_store import MessageStore, QueuedMessage

log = telemetry.logger("notify")

MAX_BATCH = 50  # messages in one request
POLL_INTERVAL_S = 1.0
SEND_TIMEOUT_FACTOR = 1.5  # times timeout_s, which limits one request of a channel
BACKOFF_S = (2.0, 300.0)  # first, maximum
DECLINED_TRIES = 5
PURGE_INTERVAL_S = 600.0
_MINUTE_NS = 60_000_000_000

_sent = telemetry.counter(
    "qts_notifications_total", "Messages by channel and result.",
    ("channel", "result"),
)  # fmt: skip


class Sender:
    """Sends the queued messages of one channel."""

    def __init__(
        self, channel: NotificationChannel, store: MessageStore, config: NotifyConfig, clock: Clock
    ) -> None:
        self._channel = channel
        self._store = store
        self._config = config
        self._clock = clock
        self._wake = asyncio.Event()
        self._requests: deque[int] = deque()  # times of the requests of the last minute
        self._backoff_s = 0.0
        self._purged_ns: int | None = None
        self._unrecorded: list[QueuedMessage] = []  # sent, and not yet marked so
        for result in ("sent", "failed", "given_up"):
            _sent.labels(channel.name, result)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled; a disabled channel may be enabled meanwhile."""
        while True:
            try:
                if await self._store.is_enabled(self._channel.name):
                    await self.send_due()
                await self._purge()
            except OperationError as error:  # database unreachable
                log.warning(
                    "message queue unavailable; retrying",
                    channel=self._channel.name,
                    error=str(error),
                )
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wake.wait()

    async def send_due(self) -> int:
        """Send the due messages; return how many were sent."""
        await self._record_sent([])
        repeats = self._channel.name in DEDUPLICATING
        if not repeats and (count := await self._store.abandon_unknown(self._channel.name)):
            log.warning(
                "messages may have been sent; not repeated", channel=self._channel.name, count=count
            )
            _sent.labels(self._channel.name, "given_up").inc(count)
        backlog = await self._store.backlog(self._channel.name)
        if not backlog.count:
            return 0
        if not backlog.urgent and backlog.count < MAX_BATCH:
            await self._clock.sleep(max(0.0, self._config.batch_window_s - backlog.oldest_s))
        await self._clock.sleep(max(self._backoff_s, self._rate_limit_s()))
        lease_s = self._config.timeout_s * 2 + 5
        claimed = await self._store.claim(self._channel.name, MAX_BATCH, lease_s, repeat=repeats)
        return await self._send(claimed) if claimed else 0

    async def _send(self, claimed: list[QueuedMessage]) -> int:
        self._requests.append(self._clock.monotonic_ns())
        name = self._channel.name
        try:
            async with asyncio.timeout(self._config.timeout_s * SEND_TIMEOUT_FACTOR):
                await self._channel.send([each.message for each in claimed])
        except ChannelGoneError as error:
            log.error("channel address gone; channel disabled", channel=name, error=str(error))
            await self._store.disable(name, str(error))
            _sent.labels(name, "given_up").inc(len(claimed))
        except MessageDeclinedError as error:
            exhausted = [each for each in claimed if each.tries >= DECLINED_TRIES]
            await self._store.abandon(exhausted, str(error))
            _sent.labels(name, "given_up").inc(len(exhausted))
            await self._failed(
                [each for each in claimed if each not in exhausted], error, BACKOFF_S[1]
            )
        except RetryLaterError as error:
            await self._failed(claimed, error, error.after_s)
        except TimeoutError:
            timeout = RetryLaterError(
                f"{name} took longer than {self._config.timeout_s * SEND_TIMEOUT_FACTOR:g} s"
            )
            await self._failed(claimed, timeout, 0.0)
        else:
            self._backoff_s = 0.0
            _sent.labels(name, "sent").inc(len(claimed))
            await self._record_sent(claimed)
            return len(claimed)
        return 0

    async def _record_sent(self, messages: list[QueuedMessage]) -> None:
        """Mark these messages SENT, and those whose mark failed before."""
        self._unrecorded += messages
        if self._unrecorded:
            await self._store.mark_sent(self._unrecorded)
            self._unrecorded = []

    async def _failed(
        self, claimed: list[QueuedMessage], error: OperationError, min_backoff_s: float
    ) -> None:
        first, maximum = BACKOFF_S
        self._backoff_s = max(min_backoff_s, min(self._backoff_s * 2 or first, maximum))
        _sent.labels(self._channel.name, "failed").inc(len(claimed))
        await self._store.retry_later(claimed, str(error))
        log.warning(
            "notification failed; retrying",
            channel=self._channel.name,
            error=str(error),
            count=len(claimed),
            retry_in_s=self._backoff_s,
        )

    def _rate_limit_s(self) -> float:
        now = self._clock.monotonic_ns()
        while self._requests and now - self._requests[0] >= _MINUTE_NS:
            self._requests.popleft()
        if len(self._requests) < self._config.per_minute:
            return 0.0
        return (self._requests[0] + _MINUTE_NS - now) / 1e9

    async def _purge(self) -> None:
        now = self._clock.monotonic_ns()
        if self._purged_ns is not None and now - self._purged_ns < PURGE_INTERVAL_S * 1e9:
            return
        self._purged_ns = now
        if count := await self._store.abandon_old(self._config.keep_hours):
            log.warning("undelivered messages expired", count=count)
