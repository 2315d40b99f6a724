"""Everything of this room joined: events and alerts are written down, senders bring them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, RefusedError, SystemClock
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

AGAIN_S = 5.0


class NotificationService:
    """Use `open`; then `register` with the dispatcher of trade events, and `run`."""

    def __init__(
        self,
        database: Database,
        notifiers: list[NotificationChannel],
        config: NotifyConfig,
        clock: Clock,
    ) -> None:
        self._config = config
        self._clock = clock
        self.book = MessageStore(database)
        self.notifiers = {each.name: each for each in notifiers}
        self._senders = [Sender(each, self.book, config, clock) for each in notifiers]
        self.alarms = AlertWatcher(database, self.book, tuple(self.notifiers), clock, self.wake)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, config: NotifyConfig, clock: Clock | None = None
    ) -> AsyncIterator[NotificationService]:
        config.check()
        clock = clock or SystemClock()
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            opened = cls(database, notifiers(session, database, config, clock), config, clock)
            for each in opened.notifiers.values():
                await opened.book.open(each.name, each.address_hash)
            yield opened

    def register(self, dispatcher: Dispatcher) -> None:
        """Trade events the settings name are written down; all others pass."""

        async def tell(payload: dict[str, Any], delivery: Delivery) -> None:
            if await self.book.note(message_for_event(payload, delivery), tuple(self.notifiers)):
                self.wake()

        if self.notifiers:
            for name in dict.fromkeys((*ALWAYS, *self._config.events)):
                dispatcher.on(TRADE_EVENT, dict[str, Any], type=name)(tell)
        dispatcher.ignore(TRADE_EVENT)

    def wake(self) -> None:
        for sender in self._senders:
            sender.wake()

    async def run(self) -> None:
        """Until it is cancelled. No error of ours ends it: whoever runs it has orders to send."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for sender in self._senders:
                        group.create_task(sender.run())
                    group.create_task(self.alarms.run())
            except* Exception:
                log.error("messages stopped; they begin again", exc_info=True)
            await self._clock.sleep(AGAIN_S)

    async def test(self, channel: str) -> None:
        """Send one message now, past the queue; a channel that takes it is open again."""
        if channel not in self.notifiers:
            known = ", ".join(self.notifiers) or "none"
            raise RefusedError(f"channel {channel} is not set; the settings have: {known}")
        message = Message(
            event_id=uuid7(),
            type="TEST",
            occurred_at=self._clock.now(),
            severity="critical",
            title="QTS: a test message",
            body="If you read this, this channel works.",
        )
        await self.notifiers[channel].send([message])
        await self.book.enable(channel)


def notifiers(
    session: aiohttp.ClientSession, database: Database, config: NotifyConfig, clock: Clock
) -> list[NotificationChannel]:
    """Those the settings name."""
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
