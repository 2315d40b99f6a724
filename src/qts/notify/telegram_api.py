"""Client of the Telegram Bot API; its errors never contain the address, which has the token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from qts.domain import Secret
from qts.notify.channel import RetryLaterError, address_hash, check_status, retry_seconds
from qts.notify.message import short

MAX_CHARS = 4000  # of a text; Telegram accepts 4096
LONG_POLL_S = 25
LONG_POLL_MARGIN_S = 10.0
_JSON = {"Content-Type": "application/json"}
_MAX_ERROR_CHARS = 160


class TelegramUser(msgspec.Struct, frozen=True):
    id: int


class TelegramChat(msgspec.Struct, frozen=True):
    id: int


class TelegramMessage(msgspec.Struct, frozen=True):
    message_id: int
    date: int  # seconds since 1970
    chat: TelegramChat
    sender: TelegramUser | None = msgspec.field(name="from", default=None)
    text: str = ""


class CallbackQuery(msgspec.Struct, frozen=True):
    """Press of a button below a message of the bot."""

    id: str
    sender: TelegramUser = msgspec.field(name="from")
    message: TelegramMessage | None = None
    data: str = ""


class Update(msgspec.Struct, frozen=True):
    update_id: int
    message: TelegramMessage | None = None
    callback_query: CallbackQuery | None = None


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: int = 0


class _Answer(msgspec.Struct, frozen=True):
    """Envelope of every answer."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = _Parameters()


class _UpdateId(msgspec.Struct, frozen=True):
    update_id: int


class TelegramApi:
    """Methods of one bot."""

    def __init__(self, session: aiohttp.ClientSession, token: Secret, url: str) -> None:
        self._session = session
        self._token = token
        self._url = url.rstrip("/")
        self.bot = address_hash(url, token.reveal())

    async def call(
        self, method: str, body: Mapping[str, Any], timeout_s: float | None = None
    ) -> msgspec.Raw:
        """Call a method and return its result; raise a channel error on failure."""
        who = f"telegram {self.bot}"
        url = f"{self._url}/bot{self._token.reveal()}/{method}"
        timeout = self._session.timeout
        if timeout_s is not None:
            timeout = aiohttp.ClientTimeout(total=timeout_s)
        data = msgspec.json.encode(body)
        try:
            async with self._session.post(
                url, data=data, headers=_JSON, allow_redirects=False, timeout=timeout
            ) as response:
                status, text = response.status, await response.read()
                retry_after = response.headers.get("Retry-After", "")
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            # Not chained: the text of the cause may contain the address.
            raise RetryLaterError(f"{who} is unreachable ({type(error).__name__})") from None
        answer = _decode(text)
        after_s = float(answer.parameters.retry_after) or retry_seconds(retry_after)
        if answer.description:
            said = answer.description.replace(self._token.reveal(), "***")
            who = f"{who} ({short(said, _MAX_ERROR_CHARS)})"
        check_status(answer.error_code or status, after_s, who)
        return answer.result

    async def updates(self, offset: int | None) -> list[Update]:
        """Wait for updates, oldest first; those below `offset` are confirmed and not sent again.

        An update of an unknown form is empty.
        """
        body: dict[str, Any] = {
            "timeout": LONG_POLL_S,
            "allowed_updates": ["message", "callback_query"],
        }
        if offset is not None:
            body["offset"] = offset
        result = await self.call("getUpdates", body, LONG_POLL_S + LONG_POLL_MARGIN_S)
        try:
            found = [_update(each) for each in msgspec.json.decode(result, type=list[msgspec.Raw])]
        except msgspec.DecodeError:
            raise RetryLaterError(f"telegram {self.bot} sent unreadable updates") from None
        return sorted(found, key=lambda each: each.update_id)


def _update(raw: msgspec.Raw) -> Update:
    try:
        return msgspec.json.decode(raw, type=Update)
    except msgspec.ValidationError:
        return Update(msgspec.json.decode(raw, type=_UpdateId).update_id)


def _decode(text: bytes) -> _Answer:
    try:
        return msgspec.json.decode(text, type=_Answer)
    except msgspec.DecodeError:
        return _Answer()  # of a proxy, say: the status decides
