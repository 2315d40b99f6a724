"""From outbox event to notification: once per event, with retries, without blocking trading."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from qts import telemetry
from qts.brokers import open_account
from qts.database import Database
from qts.domain import ManualClock, RefusedError, Secret, SystemClock, UnreachableError
from qts.notify import (
    NotificationService,
    NotifyConfig,
    RecentAlerts,
    SlackConfig,
    TelegramConfig,
    WebhookConfig,
)
from qts.notify import service as service_module
from qts.notify.message import Message
from qts.notify.message_store import MessageStore, QueuedMessage
from qts.notify.service import Sender
from qts.outbox import (
    SYSTEM_EVENT,
    TRADE_EVENT,
    Delivery,
    Dispatcher,
    Envelope,
    OutboxConfig,
    OutboxEvent,
    PostgresBus,
)
from qts.risk import FailSafe, KillSwitch
from qts.telemetry import TelemetryConfig
from tests.accounts import PAPER
from tests.notify.conftest import a_message, state_of
from tests.notify.receiver import Receiver, until

CANARY = "xoxb-canary-4711"


class OrderAccepted(msgspec.Struct, rename="camel"):
    symbol: str = "005930"
    side: str = "BUY"
    quantity: str = "10"
    strategy_key: str = "surge_breakout"
    broker_order_id: str = "0001"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(service_module, "POLL_INTERVAL_S", 0.02)


def settings(receiver: Receiver, **more: Any) -> NotifyConfig:
    webhook = WebhookConfig(url=Secret(f"{receiver.url}/{CANARY}"), key=Secret("key"))
    return NotifyConfig(webhook=webhook, **({"batch_window_s": 0.0} | more))


@asynccontextmanager
async def running(database: Database, config: NotifyConfig) -> AsyncIterator[NotificationService]:
    async with NotificationService.open(database, config) as notifications:
        task = asyncio.create_task(notifications.run())
        try:
            yield notifications
        finally:
            task.cancel()
            await asyncio.wait({task})


@asynccontextmanager
async def consuming(
    database: Database, notifications: NotificationService
) -> AsyncIterator[PostgresBus]:
    dispatcher = Dispatcher()
    notifications.register(dispatcher)
    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        streams = (TRADE_EVENT, SYSTEM_EVENT)
        consumers = [bus.consumer(stream, dispatcher, str(PAPER)) for stream in streams]
        tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
        try:
            yield bus
        finally:
            for consumer in consumers:
                consumer.stop()
            await asyncio.gather(*tasks)


async def publish(database: Database, bus: PostgresBus, payload: Any = None) -> OutboxEvent:
    event = OutboxEvent.of(TRADE_EVENT, payload or OrderAccepted(), ("order", "1"))
    async with database.transaction() as tx:
        await bus.publish(tx, event)
    return event


async def handled(database: Database, count: int) -> bool:
    query = "SELECT count(*) FROM outbox_event_all WHERE status = 'DONE'"
    return bool(await database.fetchval(query) >= count)


async def test_an_outbox_event_reaches_the_channel(database: Database, receiver: Receiver) -> None:
    async with (
        running(database, settings(receiver)) as notifications,
        consuming(database, notifications) as bus,
    ):
        event = await publish(database, bus)
        await receiver.until(1)
    (message,) = receiver.accepted[0]["messages"]
    assert message["eventId"] == str(event.envelope.event_id)
    assert message["title"] == "Order accepted: BUY 10 005930"


async def test_an_event_delivered_twice_is_sent_once(
    database: Database, receiver: Receiver
) -> None:
    dispatcher = Dispatcher()
    envelope = Envelope(
        type="OrderAccepted",
        trace_id="0" * 32,
        payload=msgspec.Raw(msgspec.json.encode(OrderAccepted())),
    )
    delivery = Delivery(TRADE_EVENT, "order", "1", envelope, 1, 10)
    async with running(database, settings(receiver)) as notifications:
        notifications.register(dispatcher)
        await dispatcher.dispatch(delivery)
        await receiver.until(1)
        await asyncio.gather(*(dispatcher.dispatch(delivery) for _ in range(5)))
        await notifications.store.enqueue(a_message("the next"), ("webhook",))
        await receiver.until(2)
    titles = [each["title"] for body in receiver.accepted for each in body["messages"]]
    assert titles == ["Order accepted: BUY 10 005930", "the next"]


async def test_a_server_that_is_down_gets_it_later(database: Database, receiver: Receiver) -> None:
    receiver.answers.extend([503, 500, 429])
    async with running(database, settings(receiver)) as notifications:
        message = a_message()
        await notifications.store.enqueue(message, ("webhook",))
        await receiver.until(1)
    assert len(receiver.requests) == 4
    assert receiver.accepted[0]["messages"][0]["eventId"] == str(message.event_id)


async def test_pending_messages_are_sent_after_a_restart(database: Database) -> None:
    gone = Receiver()
    async with gone.serving():
        config = settings(gone)
    message = a_message()
    async with NotificationService.open(database, config) as notifications:
        await notifications.store.enqueue(message, ("webhook",))
        await notifications._senders[0].send_due()
    assert await state_of(database, "webhook", message.event_id) == ("PENDING", 1)
    port = int(gone.url.rsplit(":", 1)[1])
    async with gone.serving(port), running(database, config):
        await gone.until(1)


async def test_an_address_that_is_gone_gets_no_more_requests(
    database: Database, receiver: Receiver
) -> None:
    receiver.answers.append(410)
    message = a_message()
    async with running(database, settings(receiver)) as notifications:
        await notifications.store.enqueue(message, ("webhook",))
        await receiver.until_requested(1)

        async def disabled() -> bool:
            return not await notifications.store.is_enabled("webhook")

        await until(disabled)
        await notifications.store.enqueue(a_message(), ("webhook",))
        await notifications.test("webhook")
        assert await notifications.store.is_enabled("webhook")
    assert await state_of(database, "webhook", message.event_id) == ("GIVEN_UP", 1)
    assert [body["messages"][0]["type"] for body in receiver.accepted] == ["TEST"]


async def test_a_new_address_enables_a_disabled_channel(
    database: Database, receiver: Receiver
) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        await notifications.store.disable("webhook", "gone")
    async with NotificationService.open(database, settings(receiver)) as notifications:
        assert not await notifications.store.is_enabled("webhook")
    other = WebhookConfig(url=Secret(f"{receiver.url}/new"), key=Secret("key"))
    async with NotificationService.open(database, NotifyConfig(webhook=other)) as notifications:
        assert await notifications.store.is_enabled("webhook")


async def test_declined_messages_are_abandoned_in_the_end(
    database: Database, receiver: Receiver
) -> None:
    receiver.answers.extend([400] * service_module.DECLINED_TRIES)
    bad = a_message("bad")
    async with running(database, settings(receiver)) as notifications:
        await notifications.store.enqueue(bad, ("webhook",))
        await receiver.until_requested(service_module.DECLINED_TRIES)

        async def abandoned() -> bool:
            tries = service_module.DECLINED_TRIES
            return await state_of(database, "webhook", bad.event_id) == ("GIVEN_UP", tries)

        await until(abandoned)
        await notifications.store.enqueue(a_message("good"), ("webhook",))
        await receiver.until(1)
    assert receiver.accepted[0]["messages"][0]["title"] == "good"


async def test_many_go_in_one_request(database: Database, receiver: Receiver) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        for number in range(30):
            await notifications.store.enqueue(a_message(f"number {number}"), ("webhook",))
        assert await notifications._senders[0].send_due() == 30
    assert len(receiver.requests) == 1
    titles = [each["title"] for each in receiver.accepted[0]["messages"]]
    assert titles == [f"number {number}" for number in range(30)]


async def test_a_channel_is_rate_limited(database: Database, receiver: Receiver) -> None:
    config = settings(receiver, per_minute=2)
    async with NotificationService.open(database, config) as notifications:
        sender = notifications._senders[0]
        for _ in range(2):
            await notifications.store.enqueue(a_message(), ("webhook",))
            await sender.send_due()
        assert 50 < sender._rate_limit_s() <= 60
    assert len(receiver.requests) == 2


async def test_a_slow_server_does_not_delay_the_outbox(
    database: Database, receiver: Receiver
) -> None:
    """The handler only stores a row: events complete although no message was sent."""
    receiver.answers.extend([503] * 10_000)
    async with (
        running(database, settings(receiver)) as notifications,
        consuming(database, notifications) as bus,
    ):
        events = [await publish(database, bus) for _ in range(20)]
        await until(lambda: handled(database, len(events)))
        await receiver.until_requested(1)
    assert receiver.accepted == []


async def test_fail_safe_and_kill_switch_are_reported(
    database: Database, receiver: Receiver
) -> None:
    await open_account(database, PAPER, is_live=False)
    async with (
        running(database, settings(receiver)) as notifications,
        consuming(database, notifications),
    ):
        await KillSwitch(database, PAPER).set(False, "kim", "lunch")
        await FailSafe(database, PAPER).trip("FS070", "2 positions differ")
        for code in ("GR041", "GR075", "GR040"):
            await FailSafe(database, PAPER).trip(code, "a notice")
        expected = {"the account is STOPPED", "Fail-safe NORMAL to FAIL: FS070"}
        expected |= {"Notice GR041", "Notice GR075"}
        async with asyncio.timeout(60):
            while not expected <= set(_titles(receiver)):
                await receiver.until(len(receiver.accepted) + 1)
    assert len(_titles(receiver)) == len(set(_titles(receiver)))
    assert "Notice GR040" not in _titles(receiver)


def _titles(receiver: Receiver) -> list[str]:
    return [each["title"] for body in receiver.accepted for each in body["messages"]]


async def test_no_log_and_no_metric_shows_a_token(database: Database, receiver: Receiver) -> None:
    lines = io.StringIO()
    telemetry.configure(TelemetryConfig(log_level="debug", log_format="json"), lines)
    try:
        config = settings(
            receiver,
            telegram=TelegramConfig(token=Secret(f"1:{CANARY}"), chat="1", url=receiver.url),
            slack=SlackConfig(url=Secret(f"http://127.0.0.1:1/{CANARY}")),
        )
        receiver.answers.extend([503, 400, 410, 503])
        async with running(database, config) as notifications:
            await notifications.store.enqueue(a_message(), ("webhook", "slack", "telegram"))
            await receiver.until_requested(4)
    finally:
        telemetry.shutdown()
    assert "notification failed; retrying" in lines.getvalue()
    assert CANARY not in lines.getvalue()
    assert CANARY not in telemetry.render_metrics().decode()
    rows = await database.fetch("SELECT * FROM notification_channel")
    errors = await database.fetch("SELECT * FROM notification_log")
    assert CANARY not in repr([dict(row.items()) for row in [*rows, *errors]])


async def test_old_messages_are_abandoned(database: Database, receiver: Receiver) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        message = a_message()
        await notifications.store.enqueue(message, ("webhook",))
        await database.execute("UPDATE notification_log SET created_at = now() - interval '2 days'")
        assert await notifications.store.abandon_old(24) == 1
        assert await state_of(database, "webhook", message.event_id) == ("GIVEN_UP", 0)
        assert await notifications.store.abandon_old(24) == 0


class CountingChannel:
    """Channel that counts what it is sent."""

    address_hash = "test"

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[UUID] = []

    async def send(self, messages: Sequence[Message]) -> None:
        self.sent += [each.event_id for each in messages]


class FailingStore(MessageStore):
    """Store that cannot mark messages SENT while `fails`."""

    fails = True

    async def mark_sent(self, messages: Sequence[QueuedMessage]) -> None:
        if self.fails:
            raise UnreachableError("the database does not answer")
        await super().mark_sent(messages)


@pytest.mark.parametrize(("channel", "times"), [("slack", 1), ("webhook", 2)])
async def test_a_message_whose_result_was_not_recorded_is_sent_again_only_where_it_is_recognised(
    database: Database, receiver: Receiver, channel: str, times: int
) -> None:
    """After a crash; a webhook gets it again with the same eventId, Slack would show it twice."""
    store, message = FailingStore(database), a_message()
    await store.open(channel, "test")
    await store.enqueue(message, (channel,))
    first, config = CountingChannel(channel), settings(receiver)
    with pytest.raises(UnreachableError):
        await Sender(first, store, config, SystemClock()).send_due()
    await database.execute("UPDATE notification_log SET due_at = now()")  # the lease is over
    store.fails, second = False, CountingChannel(channel)
    await Sender(second, store, config, SystemClock()).send_due()
    assert first.sent + second.sent == [message.event_id] * times
    ended = {1: ("GIVEN_UP", 1), 2: ("SENT", 2)}[times]
    assert await state_of(database, channel, message.event_id) == ended


async def test_a_result_that_was_not_recorded_is_recorded_later(
    database: Database, receiver: Receiver
) -> None:
    store, message, channel = FailingStore(database), a_message(), CountingChannel("slack")
    await store.open("slack", "test")
    await store.enqueue(message, ("slack",))
    sender = Sender(channel, store, settings(receiver), SystemClock())
    with pytest.raises(UnreachableError):
        await sender.send_due()
    await database.execute("UPDATE notification_log SET due_at = now()")
    store.fails = False
    await sender.send_due()
    assert channel.sent == [message.event_id]
    assert await state_of(database, "slack", message.event_id) == ("SENT", 1)


async def test_a_channel_that_is_not_set_is_refused(database: Database, receiver: Receiver) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        with pytest.raises(RefusedError, match="pager is not configured; configured: webhook"):
            await notifications.test("pager")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (NotifyConfig(telegram=TelegramConfig(token=Secret("1:a"))), "notify.telegram.chat"),
        (NotifyConfig(webhook=WebhookConfig(url=Secret("http://a"))), "notify.webhook.key"),
        (NotifyConfig(slack=SlackConfig(url=Secret("ftp://CANARY"))), "notify.slack.url"),
    ],
)
async def test_an_incomplete_channel_is_refused_by_name(config: NotifyConfig, name: str) -> None:
    with pytest.raises(RefusedError, match=name) as raised:
        config.check()
    assert "CANARY" not in str(raised.value)


async def test_without_channels_events_pass(database: Database) -> None:
    async with (
        NotificationService.open(database, NotifyConfig()) as notifications,
        consuming(database, notifications) as bus,
    ):
        await publish(database, bus)
        await until(lambda: handled(database, 1))
    assert await database.fetchval("SELECT count(*) FROM notification_log") == 0


async def test_changes_by_another_process_are_listed_without_any_channel(
    database: Database,
) -> None:
    await open_account(database, PAPER, is_live=False)
    alerts = RecentAlerts()
    alerts.add(SystemClock().now().timestamp(), "critical", "shown before it is stored", "FS070")
    async with (
        NotificationService.open(database, NotifyConfig(), alerts=alerts) as notifications,
        consuming(database, notifications),
    ):
        await KillSwitch(database, PAPER).set(False, "kim", "lunch", "dip")
        await FailSafe(database, PAPER).trip("FS070", "2 positions differ")
        await database.execute(
            "INSERT INTO strategy_params (strategy_key, params, changed_by)"
            " VALUES ('dip', '{\"drop\": 0.02}', 'kim')"
        )
        await until(lambda: handled(database, 3))
    texts = {alert.text for alert in alerts.all()}
    assert texts == {
        "shown before it is stored",
        "strategy dip is STOPPED: by kim: lunch",
        "Parameters of dip changed: by kim: drop = 0.02",
    }


async def test_a_change_that_is_rolled_back_is_not_published(database: Database) -> None:
    await open_account(database, PAPER, is_live=False)

    async def change() -> None:
        async with database.transaction() as tx:
            await tx.execute(
                "INSERT INTO kill_switch (broker, account, scope, trading_enabled, changed_by)"
                " VALUES ($1, $2, 'account', false, 'kim')",
                *PAPER,
            )
            assert await tx.fetchval("SELECT count(*) FROM outbox_event") == 1
            raise RuntimeError("the rest of the change failed")

    with pytest.raises(RuntimeError):
        await change()
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 0


async def test_a_change_from_long_ago_is_consumed_in_silence(database: Database) -> None:
    await open_account(database, PAPER, is_live=False)
    clock, alerts = ManualClock(SystemClock().now() + timedelta(hours=2)), RecentAlerts()
    async with (
        NotificationService.open(database, NotifyConfig(), clock, alerts=alerts) as notifications,
        consuming(database, notifications),
    ):
        await KillSwitch(database, PAPER).set(False, "kim", "lunch")
        await until(lambda: handled(database, 1))
    assert alerts.all() == []
