"""Notification service: stores events and alerts, and runs a sender per channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, RefusedError, SystemClock
from qts.notify.alert_watcher import AlertWatcher
from qts.notify.channel import NotificationChannel
from qts.notify.channels import LogChannel, SlackChannel, TelegramChannel, WebhookChannel
from qts.notify.config import ALWAYS, NotifyConfig
from qts.notify.message import Message, message_for_event
from qts.notify.message_store import MessageStore
from qts.notify.sender import Sender
from qts.notify.web_push import WebPushChannel
from qts.outbox import TRADE_EVENT, Delivery, Dispatcher, uuid7

log = telemetry.logger("notify")

RESTART_INTERVAL_S = 5.0


class NotificationService:
    """Create it with `open`, `register` it with the dispatcher of trade events, then `run` it."""

    def __init__(
        self,
        database: Database,
        channels: list[NotificationChannel],
        config: NotifyConfig,
        clock: Clock,
        account: AccountKey | None,
    ) -> None:
        self._config = config
        self._clock = clock
        self.store = MessageStore(database)
        self.channels = {channel.name: channel for channel in channels}
        self._senders = [Sender(channel, self.store, config, clock) for channel in channels]
        self.watcher = AlertWatcher(
            database, self.store, tuple(self.channels), clock, self.wake, account
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: Database,
        config: NotifyConfig,
        clock: Clock | None = None,
        *,
        account: AccountKey | None = None,
    ) -> AsyncIterator[NotificationService]:
        """Open the channels; the switches and the fail-safe of `account` are watched, if given."""
        config.check()
        clock = clock or SystemClock()
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            channels = configured_channels(session, database, config, clock)
            service = cls(database, channels, config, clock, account)
            for channel in channels:
                await service.store.open(channel.name, channel.address_hash)
            yield service

    def register(self, dispatcher: Dispatcher) -> None:
        """Handle the trade events in the settings; ignore all others."""

        async def enqueue(payload: dict[str, Any], delivery: Delivery) -> None:
            if await self.store.enqueue(message_for_event(payload, delivery), tuple(self.channels)):
                self.wake()

        if self.channels:
            for name in dict.fromkeys((*ALWAYS, *self._config.events)):
                dispatcher.on(TRADE_EVENT, dict[str, Any], type=name)(enqueue)
        dispatcher.ignore(TRADE_EVENT)

    def wake(self) -> None:
        for sender in self._senders:
            sender.wake()

    async def run(self) -> None:
        """Send and watch until cancelled; an error restarts both and does not stop trading."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for sender in self._senders:
                        group.create_task(sender.run())
                    group.create_task(self.watcher.run())
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
