"""Client of the Telegram Bot API, and what may reach it: who commands, how often, confirmed how.

Errors never contain the address, which has the token.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
import msgspec

from qts.domain import Clock, Secret
from qts.notify.config import TelegramConfig
from qts.notify.message import RetryLaterError, address_hash, check_status, retry_seconds, short

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


COMMANDS_PER_MINUTE = 20
CONFIRM_WITHIN_S = 30.0
_MINUTE_NS = 60_000_000_000


class Caller(NamedTuple):
    """Author of a command, and the chat in which it was sent."""

    user: int
    chat: int

    @property
    def actor(self) -> str:
        return f"telegram:{self.user}"


class Confirmation(msgspec.Struct, frozen=True):
    """What a command will do once its author confirms it.

    A long one waits for a venue: other commands run beside it, and its result is a message.
    """

    question: str
    act: Callable[[], Awaitable[str]]
    is_long: bool = False


def is_allowed(config: TelegramConfig, caller: Caller) -> bool:
    """Return whether the settings name the user and the chat; empty lists allow nobody."""
    return caller.user in config.command_users and caller.chat in config.command_chats


class CommandLimit:
    """Commands per minute of each user; users are those of the settings, so it stays small."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._admitted: dict[int, deque[int]] = {}
        self._reported_ns: dict[int, int] = {}

    def admits(self, user: int) -> bool:
        now = self._clock.monotonic_ns()
        times = self._admitted.setdefault(user, deque())
        while times and now - times[0] >= _MINUTE_NS:
            times.popleft()
        if len(times) >= COMMANDS_PER_MINUTE:
            return False
        times.append(now)
        return True

    def is_report_due(self, user: int) -> bool:
        """Return True once a minute."""
        now, last = self._clock.monotonic_ns(), self._reported_ns.get(user)
        if last is not None and now - last < _MINUTE_NS:
            return False
        self._reported_ns[user] = now
        return True


class _Pending(NamedTuple):
    code: str
    until_ns: int
    confirmation: Confirmation


class PendingConfirmations:
    """The last unconfirmed command of each author in each chat, in memory: a restart ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[Caller, _Pending] = {}

    def add(self, caller: Caller, confirmation: Confirmation) -> str:
        """Return the code that confirms the command; it replaces the author's last one."""
        code = secrets.token_hex(4)
        until_ns = self._clock.monotonic_ns() + round(CONFIRM_WITHIN_S * 1e9)
        self._pending[caller] = _Pending(code, until_ns, confirmation)
        return code

    def take(self, caller: Caller, code: str) -> Confirmation | None:
        """Return what the author confirms, once and in time, else None."""
        found = self._pending.get(caller)
        if found is None or not secrets.compare_digest(found.code.encode(), code.encode()):
            return None
        del self._pending[caller]
        return found.confirmation if self._clock.monotonic_ns() < found.until_ns else None
