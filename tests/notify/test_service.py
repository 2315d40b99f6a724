"""From the bus to the owner: once per event, later when they are down, never in trading's way."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from qts import telemetry
from qts.database import Database
from qts.domain import RefusedError, Secret
from qts.notify import NotificationService, NotifyConfig, SlackConfig, TelegramConfig, WebhookConfig
from qts.notify import sender as sender_module
from qts.notify.message_store import state_of
from qts.outbox import (
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
from tests.notify.conftest import a_message
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
    monkeypatch.setattr(sender_module, "PAUSES_S", (0.01, 0.05))
    monkeypatch.setattr(sender_module, "LOOK_EVERY_S", 0.02)


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
        consumer = bus.consumer(TRADE_EVENT, dispatcher)
        task = asyncio.create_task(consumer.run())
        try:
            yield bus
        finally:
            consumer.stop()
            await task


async def publish(database: Database, bus: PostgresBus, payload: Any = None) -> OutboxEvent:
    event = OutboxEvent.of(TRADE_EVENT, payload or OrderAccepted(), ("order", "1"))
    async with database.transaction() as tx:
        await bus.publish(tx, event)
    return event


async def handled(database: Database, count: int) -> bool:
    query = "SELECT count(*) FROM outbox_event_all WHERE status = 'DONE'"
    return bool(await database.fetchval(query) >= count)


async def test_an_event_of_the_bus_reaches_the_owner(
    database: Database, receiver: Receiver
) -> None:
    async with (
        running(database, settings(receiver)) as notifications,
        consuming(database, notifications) as bus,
    ):
        event = await publish(database, bus)
        await receiver.until(1)
    (told,) = receiver.taken[0]["messages"]
    assert told["eventId"] == str(event.envelope.event_id)
    assert told["title"] == "Order accepted: BUY 10 005930"


async def test_an_event_delivered_twice_is_told_once(
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
        await notifications.book.note(a_message("the next"), ("webhook",))
        await receiver.until(2)
    told = [each["title"] for body in receiver.taken for each in body["messages"]]
    assert told == ["Order accepted: BUY 10 005930", "the next"]


async def test_a_server_that_is_down_gets_it_later(database: Database, receiver: Receiver) -> None:
    receiver.answers.extend([503, 500, 429])
    async with running(database, settings(receiver)) as notifications:
        message = a_message()
        await notifications.book.note(message, ("webhook",))
        await receiver.until(1)
    assert len(receiver.requests) == 4
    assert receiver.taken[0]["messages"][0]["eventId"] == str(message.event_id)


async def test_what_waits_is_sent_by_the_next_start(database: Database) -> None:
    gone = Receiver()
    async with gone.serving():
        config = settings(gone)
    message = a_message()
    async with NotificationService.open(database, config) as notifications:
        await notifications.book.note(message, ("webhook",))
        await notifications._senders[0].once()
    assert await state_of(database, "webhook", message.event_id) == ("PENDING", 1)
    port = int(gone.url.rsplit(":", 1)[1])
    async with gone.serving(port), running(database, config):
        await gone.until(1)


async def test_an_address_that_is_gone_is_left_alone(
    database: Database, receiver: Receiver
) -> None:
    receiver.answers.append(410)
    message = a_message()
    async with running(database, settings(receiver)) as notifications:
        await notifications.book.note(message, ("webhook",))
        await receiver.until_asked(1)

        async def closed() -> bool:
            return not await notifications.book.is_open("webhook")

        await until(closed)
        await notifications.book.note(a_message(), ("webhook",))
        await notifications.test("webhook")
        assert await notifications.book.is_open("webhook")
    assert await state_of(database, "webhook", message.event_id) == ("GIVEN_UP", 1)
    assert [body["messages"][0]["type"] for body in receiver.taken] == ["TEST"]


async def test_a_new_address_opens_a_closed_channel(database: Database, receiver: Receiver) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        await notifications.book.disable("webhook", "gone")
    async with NotificationService.open(database, settings(receiver)) as notifications:
        assert not await notifications.book.is_open("webhook")
    other = WebhookConfig(url=Secret(f"{receiver.url}/new"), key=Secret("key"))
    async with NotificationService.open(database, NotifyConfig(webhook=other)) as notifications:
        assert await notifications.book.is_open("webhook")


async def test_what_they_decline_is_given_up_in_the_end(
    database: Database, receiver: Receiver
) -> None:
    receiver.answers.extend([400] * sender_module.DECLINED_TRIES)
    bad = a_message("bad")
    async with running(database, settings(receiver)) as notifications:
        await notifications.book.note(bad, ("webhook",))
        await receiver.until_asked(sender_module.DECLINED_TRIES)

        async def given_up() -> bool:
            tries = sender_module.DECLINED_TRIES
            return await state_of(database, "webhook", bad.event_id) == ("GIVEN_UP", tries)

        await until(given_up)
        await notifications.book.note(a_message("good"), ("webhook",))
        await receiver.until(1)
    assert receiver.taken[0]["messages"][0]["title"] == "good"


async def test_many_go_in_one_request(database: Database, receiver: Receiver) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        for number in range(30):
            await notifications.book.note(a_message(f"number {number}"), ("webhook",))
        assert await notifications._senders[0].once() == 30
    assert len(receiver.requests) == 1
    titles = [each["title"] for each in receiver.taken[0]["messages"]]
    assert titles == [f"number {number}" for number in range(30)]


async def test_a_channel_is_not_asked_more_often_than_allowed(
    database: Database, receiver: Receiver
) -> None:
    config = settings(receiver, per_minute=2)
    async with NotificationService.open(database, config) as notifications:
        sender = notifications._senders[0]
        for _ in range(2):
            await notifications.book.note(a_message(), ("webhook",))
            await sender.once()
        assert 50 < sender._until_turn_s() <= 60
    assert len(receiver.requests) == 2


async def test_a_slow_server_holds_no_event_of_the_bus_up(
    database: Database, receiver: Receiver
) -> None:
    """The handler only writes a row: a stream is done though no message has left."""
    receiver.answers.extend([503] * 10_000)
    async with (
        running(database, settings(receiver)) as notifications,
        consuming(database, notifications) as bus,
    ):
        events = [await publish(database, bus) for _ in range(20)]
        await until(lambda: handled(database, len(events)))
        await receiver.until_asked(1)
    assert receiver.taken == []


async def test_fail_safe_and_kill_switch_are_told(database: Database, receiver: Receiver) -> None:
    async with running(database, settings(receiver)):
        await KillSwitch(database).set(False, "kim", "lunch")
        await FailSafe(database).trip("FS070", "2 positions differ")
        wanted = {"the account is STOPPED", "Fail-safe NORMAL to FAIL: FS070"}
        async with asyncio.timeout(60):
            while not wanted <= set(_titles(receiver)):
                await receiver.until(len(receiver.taken) + 1)
    assert len(_titles(receiver)) == len(set(_titles(receiver)))


def _titles(receiver: Receiver) -> list[str]:
    return [each["title"] for body in receiver.taken for each in body["messages"]]


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
            await notifications.book.note(a_message(), ("webhook", "slack", "telegram"))
            await receiver.until_asked(4)
    finally:
        telemetry.shutdown()
    assert "messages were not taken" in lines.getvalue()
    assert CANARY not in lines.getvalue()
    assert CANARY not in telemetry.render_metrics().decode()
    rows = await database.fetch("SELECT * FROM notification_channel")
    errors = await database.fetch("SELECT * FROM notification_log")
    assert CANARY not in repr([dict(row.items()) for row in [*rows, *errors]])


async def test_old_messages_are_given_up_and_forgotten(
    database: Database, receiver: Receiver
) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        message = a_message()
        await notifications.book.note(message, ("webhook",))
        await database.execute("UPDATE notification_log SET created_at = now() - interval '2 days'")
        assert await notifications.book.purge(24) == 1
        assert await state_of(database, "webhook", message.event_id) == ("GIVEN_UP", 0)
        await database.execute("UPDATE notification_log SET created_at = now() - interval '1 year'")
        assert await notifications.book.purge(24) == 0
        assert await state_of(database, "webhook", message.event_id) is None


async def test_a_channel_that_is_not_set_is_refused(database: Database, receiver: Receiver) -> None:
    async with NotificationService.open(database, settings(receiver)) as notifications:
        with pytest.raises(RefusedError, match="pager is not set; the settings have: webhook"):
            await notifications.test("pager")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (NotifyConfig(telegram=TelegramConfig(token=Secret("1:a"))), "notify.telegram.chat"),
        (NotifyConfig(webhook=WebhookConfig(url=Secret("http://a"))), "notify.webhook.key"),
        (NotifyConfig(slack=SlackConfig(url=Secret("ftp://CANARY"))), "notify.slack.url"),
    ],
)
async def test_half_a_channel_is_refused_by_name(config: NotifyConfig, told: str) -> None:
    with pytest.raises(RefusedError, match=told) as raised:
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
