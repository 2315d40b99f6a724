"""Notification channels: log, Slack, Telegram and signed webhook.

A webhook request contains the messages as JSON and the header
`X-QTS-Signature: t=<unix seconds>,v1=<hex>` with the HMAC-SHA256 of `<t>.<body>` under a shared
key. The receiver computes the same, compares in constant time, and refuses a `t` that is minutes
old. After a crash a webhook may get a message twice, with the same `eventId`; the other channels
get it at most once.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

import aiohttp
import msgspec

from qts import telemetry
from qts.domain import Clock, Secret
from qts.notify.channel import RetryLaterError, address_hash, check_status, retry_seconds
from qts.notify.message import SCHEMA_VERSION, Message, as_text
from qts.notify.telegram_api import MAX_CHARS, TelegramApi


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], who: str
) -> None:
    """Send one POST request and translate its status into a channel error.

    Errors name `who`, never the address, which may contain a token.
    """
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            status, retry_after = response.status, response.headers.get("Retry-After", "")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        # Not chained: the text of the cause may contain the address.
        raise RetryLaterError(f"{who} is unreachable ({type(error).__name__})") from None
    check_status(status, retry_seconds(retry_after), who)


log = telemetry.logger("notify")


class LogChannel:
    name = "log"
    address_hash = "log"

    async def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            level = log.info if message.severity == "info" else log.warning
            level(
                message.title,
                body=message.body,
                severity=message.severity,
                eventId=str(message.event_id),
            )


SLACK_MAX_CHARS = 3500
# Slack interprets these as the start of a link or an entity.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class SlackChannel:
    name = "slack"

    def __init__(self, session: aiohttp.ClientSession, url: Secret) -> None:
        self._session = session
        self._url = url
        self.address_hash = address_hash(url.reveal())

    async def send(self, messages: Sequence[Message]) -> None:
        text = as_text(messages, SLACK_MAX_CHARS).translate(_ESCAPED)
        await post(
            self._session,
            self._url.reveal(),
            msgspec.json.encode({"text": text}),
            {"Content-Type": "application/json"},
            f"slack {self.address_hash}",
        )


class TelegramChannel:
    name = "telegram"

    def __init__(self, session: aiohttp.ClientSession, token: Secret, chat: str, url: str) -> None:
        self._chat = chat
        self._api = TelegramApi(session, token, url)
        self.address_hash = address_hash(url, token.reveal(), chat)

    async def send(self, messages: Sequence[Message]) -> None:
        body = {
            "chat_id": self._chat,
            "text": as_text(messages, MAX_CHARS),
            "link_preview_options": {"is_disabled": True},
            "disable_notification": all(each.severity == "info" for each in messages),
        }
        await self._api.call("sendMessage", body)


SIGNATURE = "X-QTS-Signature"


class WebhookChannel:
    name = "webhook"

    def __init__(
        self, session: aiohttp.ClientSession, url: Secret, key: Secret, clock: Clock
    ) -> None:
        self._session = session
        self._url = url
        self._key = key
        self._clock = clock
        self.address_hash = address_hash(url.reveal())

    async def send(self, messages: Sequence[Message]) -> None:
        body = msgspec.json.encode({"schemaVersion": SCHEMA_VERSION, "messages": messages})
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: signature(self._key, body, int(self._clock.now().timestamp())),
        }
        who = f"webhook {self.address_hash}"
        await post(self._session, self._url.reveal(), body, headers, who)


def signature(key: Secret, body: bytes, at: int) -> str:
    signed = hmac.new(key.reveal().encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"
