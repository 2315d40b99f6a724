"""Requests that each channel sends, and how it interprets responses."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest

from qts.domain import ManualClock, Secret
from qts.notify import ChannelGoneError, MessageDeclinedError, RetryLaterError
from qts.notify.channels import SlackChannel, TelegramChannel, WebhookChannel
from tests.notify.conftest import a_message
from tests.notify.receiver import Receiver

KEY = Secret("shared key")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


def verified(headers: dict[str, str], body: bytes, now: datetime) -> bool:
    """Verify the signature independently of the code under test."""
    parts = dict(part.split("=", 1) for part in headers["X-QTS-Signature"].split(","))
    expected = hmac.new(
        KEY.reveal().encode(), parts["t"].encode() + b"." + body, hashlib.sha256
    ).hexdigest()
    fresh = abs(now.timestamp() - int(parts["t"])) < 300
    return fresh and hmac.compare_digest(expected, parts["v1"])


async def test_the_receiver_verifies_the_signature(
    session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    clock = ManualClock(datetime(2026, 1, 5, tzinfo=UTC))
    await WebhookChannel(session, Secret(f"{receiver.url}/in"), KEY, clock).send([a_message()])
    path, headers, body = receiver.requests[0]
    assert path == "/in"
    assert verified(dict(headers), body, clock.now())
    assert not verified(dict(headers), body + b" ", clock.now())
    assert not verified(dict(headers), body, datetime(2026, 1, 5, 1, tzinfo=UTC))
    assert receiver.accepted[0]["messages"][0]["deepLink"] == "/orders/1"


async def test_telegram_gets_a_text_for_the_chat(
    session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    await TelegramChannel(session, Secret("1:token"), "@mine", receiver.url).send(
        [a_message("Hello")]
    )
    assert receiver.requests[0][0] == "/bot1:token/sendMessage"
    assert receiver.accepted[0]["chat_id"] == "@mine"
    assert receiver.accepted[0]["text"] == "Hello\nstrategy surge_breakout"
    assert receiver.accepted[0]["disable_notification"] is True


async def test_slack_reads_no_markup_of_a_venue(
    session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    await SlackChannel(session, Secret(receiver.url)).send([a_message("<!channel> & co")])
    assert receiver.accepted[0]["text"].startswith("&lt;!channel&gt; &amp; co")


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (404, ChannelGoneError),
        (410, ChannelGoneError),
        (429, RetryLaterError),
        (500, RetryLaterError),
        (503, RetryLaterError),
        (400, MessageDeclinedError),
        (401, MessageDeclinedError),
        (403, MessageDeclinedError),
        (302, MessageDeclinedError),
    ],
)
async def test_each_status_has_one_meaning(
    session: aiohttp.ClientSession, receiver: Receiver, status: int, meaning: type[Exception]
) -> None:
    receiver.answers.append(status)
    receiver.headers = {"Retry-After": "7", "Location": "http://127.0.0.1:1/elsewhere"}
    with pytest.raises(meaning) as raised:
        await SlackChannel(session, Secret(f"{receiver.url}/services/CANARY")).send([a_message()])
    assert "CANARY" not in str(raised.value)
    assert len(receiver.requests) == 1
    if isinstance(raised.value, RetryLaterError):
        assert raised.value.after_s == 7


async def test_an_unreachable_server_means_retry_and_shows_no_address(
    session: aiohttp.ClientSession,
) -> None:
    with pytest.raises(RetryLaterError) as raised:
        await SlackChannel(session, Secret("http://127.0.0.1:1/CANARY")).send([a_message()])
    assert "CANARY" not in str(raised.value)
    assert raised.value.__cause__ is None
