"""Who may give commands to the bot, how many, and what they must confirm."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from qts.domain import Clock
from qts.notify.config import TelegramConfig

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
