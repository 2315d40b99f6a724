"""Notification service: stores events and alerts, and runs a sender per channel.

event, alert ─▶ stored ─▶ NOTIFICATION_SEND (P3) ─▶ its handler wakes the senders ─▶ channel
                  └──────── every second, also without the event ───────▲
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, EventRefusedError, OperationError, RefusedError, SystemClock
from qts.events import EventEngine
from qts.events import payloads as p
from qts.notify.alerts import AlertWatcher, RecentAlerts
from qts.notify.channels import (
    LogChannel,
    SlackChannel,
    TelegramChannel,
    WebhookChannel,
    WebPushChannel,
)
from qts.notify.config import ALWAYS, JOB_RESULTS, NotifyConfig
from qts.notify.message import (
    CHANGES,
    DEDUPLICATING,
    ChannelGoneError,
    Message,
    MessageDeclinedError,
    NotificationChannel,
    RetryLaterError,
    SystemEvent,
    message_for_change,
    message_for_event,
)
from qts.notify.message_store import WAKE_CHANNEL, MessageStore, QueuedMessage
from qts.outbox import BACKTEST_EVENT, SYSTEM_EVENT, TRADE_EVENT, Delivery, Dispatcher, uuid7

log = telemetry.logger("notify")


RESTART_INTERVAL_S = 5.0

MAX_BATCH = 50  # messages in one request
POLL_INTERVAL_S = 1.0
SEND_TIMEOUT_FACTOR = 1.5  # times timeout_s, which limits one request of a channel
BACKOFF_S = (2.0, 300.0)  # first, maximum
DECLINED_TRIES = 5
PURGE_INTERVAL_S = 600.0
_MINUTE_NS = 60_000_000_000

STORED = "notify"  # source of a NOTIFICATION_SEND whose message is in the database
MAX_CHANGE_AGE_S = 3600.0  # an older change, made while nothing ran, is not news


class NotificationService:
    """Create it with `open`, `register` it with the dispatcher of a run, then `run` it."""

    def __init__(
        self,
        database: Database,
        channels: list[NotificationChannel],
        config: NotifyConfig,
        clock: Clock,
        alerts: RecentAlerts,
        engine: EventEngine | None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._alerts = alerts
        self._clock = clock
        self._database = database
        self.store = MessageStore(database)
        self.channels = {channel.name: channel for channel in channels}
        self._senders = [Sender(channel, self.store, config, clock) for channel in channels]
        self.watcher = AlertWatcher(self.publish, clock)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: Database,
        config: NotifyConfig,
        clock: Clock | None = None,
        *,
        alerts: RecentAlerts | None = None,
        engine: EventEngine | None = None,
    ) -> AsyncIterator[NotificationService]:
        """Open the channels; alerts are listed in `alerts` whether or not there is a channel.

        With an engine, the senders wake up by its lane P3.
        """
        config.check()
        clock = clock or SystemClock()
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            channels = configured_channels(session, database, config, clock)
            service = cls(database, channels, config, clock, alerts or RecentAlerts(), engine)
            for channel in channels:
                await service.store.open(channel.name, channel.address_hash)
            yield service

    def register(self, dispatcher: Dispatcher) -> None:
        """Handle system events, results of backtests and the trade events in the settings.

        The rest of these streams is ignored. Trade events that are no alert go to channels only.
        """

        async def enqueue(payload: dict[str, Any], delivery: Delivery) -> None:
            await self._enqueue(message_for_event(payload, delivery))

        async def publish(payload: dict[str, Any], delivery: Delivery) -> None:
            await self.publish(message_for_event(payload, delivery))

        async def report(payload: SystemEvent, delivery: Delivery) -> None:
            age_s = (self._clock.now() - delivery.envelope.occurred_at).total_seconds()
            if age_s < MAX_CHANGE_AGE_S:
                await self.publish(message_for_change(payload, delivery))

        for kind in CHANGES:
            dispatcher.on(SYSTEM_EVENT, kind)(report)
        for name in JOB_RESULTS:
            dispatcher.on(BACKTEST_EVENT, dict[str, Any], type=name)(publish)
        for name in ALWAYS:
            dispatcher.on(TRADE_EVENT, dict[str, Any], type=name)(publish)
        if self.channels:
            for name in self._config.events:
                dispatcher.on(TRADE_EVENT, dict[str, Any], type=name)(enqueue)
        for stream in (TRADE_EVENT, BACKTEST_EVENT, SYSTEM_EVENT):
            dispatcher.ignore(stream)

    async def publish(self, message: Message) -> None:
        """List the message as an alert and queue it for the channels."""
        await self._enqueue(message)
        self._alerts.add_message(message)

    async def _enqueue(self, message: Message) -> None:
        if self.channels and await self.store.enqueue(message, tuple(self.channels)):
            self._stored(message)

    def wake(self) -> None:
        for sender in self._senders:
            sender.wake()

    def _stored(self, message: Message) -> None:
        """Wake the senders by an event: a lane that is full or stopped only delays them."""
        engine = self._engine
        if engine is None:
            self.wake()
            return
        payload = p.NotificationSend(text=message.title, code=message.type)
        try:
            engine.try_publish(engine.new_event("NOTIFICATION_SEND", payload, STORED))
        except EventRefusedError:
            self.wake()

    async def _listen(self) -> None:
        async with self._database.listen(WAKE_CHANNEL) as listener:
            async for _ in listener:
                self.wake()

    async def run(self) -> None:
        """Send and watch until cancelled; an error restarts both and does not stop trading."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for sender in self._senders:
                        group.create_task(sender.run())
                    group.create_task(self.watcher.run())
                    group.create_task(self._listen())
            except* Exception:
                log.error("notifications failed; restarting", exc_info=True)
            await self._clock.sleep(RESTART_INTERVAL_S)

    async def test(self, channel: str) -> None:
        """Send one message now, bypassing the queue; on success enable the channel."""
        if channel not in self.channels:
            known = ", ".join(self.channels) or "none"
            raise RefusedError(f"channel {channel} is not configured; configured: {known}")
        message = Message(
            event_id=uuid7(),
            type="TEST",
            occurred_at=self._clock.now(),
            severity="critical",
            title="QTS: test message",
            body="If you read this, this channel works.",
        )
        await self.channels[channel].send([message])
        await self.store.enable(channel)


def configured_channels(
    session: aiohttp.ClientSession, database: Database, config: NotifyConfig, clock: Clock
) -> list[NotificationChannel]:
    """Create the channels that the settings configure."""
    found: list[NotificationChannel] = []
    telegram, slack, webhook, push = config.telegram, config.slack, config.webhook, config.push
    if telegram.token and telegram.chat:
        found.append(TelegramChannel(session, telegram.token, telegram.chat, telegram.url))
    if slack.url:
        found.append(SlackChannel(session, slack.url))
    if webhook.url and webhook.key:
        found.append(WebhookChannel(session, webhook.url, webhook.key, clock))
    if push.key and push.contact:
        found.append(WebPushChannel(session, database, push.key, push.contact, clock))
    if config.log:
        found.append(LogChannel())
    return found


_sent = telemetry.counter(
    "qts_notifications_total", "Messages by channel and result.",
    ("channel", "result"),
)  # fmt: skip


class Sender:
    """Sends the queued messages of one channel: batched, rate-limited, with retries.

        poll ─▶ batch window ─▶ rate limit ─▶ claim ─▶ send ─▶ SENT
         ▲                                              ├─▶ retry later, declined: back off, release
         └──────────────────────────────────────────────┴─▶ gone: the channel is disabled

    The queue is in the database: memory use is bounded, and a restart continues with it. A result
    that could not be recorded is kept here and recorded before the next request.
    """

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
