"""Notification service: stores events and alerts, and runs a sender per channel.

event, alert ─▶ stored ─▶ NOTIFICATION_SEND (P3) ─▶ its handler wakes the senders ─▶ channel
                  └──────── every second, also without the event ───────▲
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, EventRefusedError, RefusedError, SystemClock
from qts.events import EventEngine
from qts.events import payloads as p
from qts.notify.alert_watcher import AlertWatcher, RecentAlerts
from qts.notify.channel import NotificationChannel
from qts.notify.channels import LogChannel, SlackChannel, TelegramChannel, WebhookChannel
from qts.notify.config import ALWAYS, JOB_RESULTS, NotifyConfig
from qts.notify.message import (
    CHANGES,
    Message,
    SystemEvent,
    message_for_change,
    message_for_event,
)
from qts.notify.message_store import WAKE_CHANNEL, MessageStore
from qts.notify.sender import Sender
from qts.notify.web_push import WebPushChannel
from qts.outbox import BACKTEST_EVENT, SYSTEM_EVENT, TRADE_EVENT, Delivery, Dispatcher, uuid7

log = telemetry.logger("notify")

RESTART_INTERVAL_S = 5.0
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
