"""One POST and what its answer means, for every channel that is a web address.

The log as a channel: for a desktop, and for a machine whose log is watched.

Slack: an incoming webhook.

Telegram: a bot writes to one chat.

A server of the owner's: the messages as JSON, signed with a key both sides know.

The header `X-QTS-Signature: t=<unix seconds>,v1=<hex>` holds HMAC-SHA256 of `<t>.<body>`. The
receiver computes the same, compares in constant time, and refuses a `t` that is minutes old.
A message may come twice when we died after sending: its `eventId` is the same then.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

import aiohttp
import msgspec

from qts import telemetry
from qts.domain import Clock, Secret
from qts.notify.channel import ChannelGoneError, MessageDeclinedError, RetryLaterError, address_hash
from qts.notify.message import SCHEMA_VERSION, Message, as_text

LONGEST_PAUSE_S = 3600.0
_GONE = (404, 410)
_LATER = (408, 425, 429)


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], who: str
) -> None:
    """Errors name `who`, never the address: it may hold a token."""
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            status, wish = answer.status, answer.headers.get("Retry-After", "")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        # Not chained: the error's own text may name the address.
        raise RetryLaterError(f"{who} cannot be reached ({type(error).__name__})") from None
    if 200 <= status < 300:
        return
    if status in _GONE:
        raise ChannelGoneError(f"{who} answered {status}: the address is no more")
    if status in _LATER or status >= 500:
        raise RetryLaterError(f"{who} answered {status}", _seconds(wish))
    raise MessageDeclinedError(f"{who} answered {status}")


def _seconds(wish: str) -> float:
    return min(float(wish), LONGEST_PAUSE_S) if wish.isdigit() and wish.isascii() else 0.0


log = telemetry.logger("notify")


class LogChannel:
    name = "log"
    address_hash = "log"

    async def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            level = log.info if message.severity == "info" else log.warning
            level(
                message.title,
                about=message.body,
                severity=message.severity,
                eventId=str(message.event_id),
            )


SLACK_MAX_CHARS = 3500
# Slack reads these three as the beginning of a link or of an entity.
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


TELEGRAM_MAX_CHARS = 4000  # Telegram takes 4096


class TelegramChannel:
    name = "telegram"

    def __init__(self, session: aiohttp.ClientSession, token: Secret, chat: str, url: str) -> None:
        self._session = session
        self._token = token
        self._chat = chat
        self._url = url.rstrip("/")
        self.address_hash = address_hash(url, token.reveal(), chat)

    async def send(self, messages: Sequence[Message]) -> None:
        body = {
            "chat_id": self._chat,
            "text": as_text(messages, TELEGRAM_MAX_CHARS),
            "link_preview_options": {"is_disabled": True},
            "disable_notification": all(each.severity == "info" for each in messages),
        }
        await post(
            self._session,
            f"{self._url}/bot{self._token.reveal()}/sendMessage",
            msgspec.json.encode(body),
            {"Content-Type": "application/json"},
            f"telegram {self.address_hash}",
        )


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
