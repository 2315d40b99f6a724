"""The port: a way to reach the owner, and what its failures mean.

    Later      passing trouble (429, 5xx, no answer): kept, tried again after a pause
    Declined   they do not take it (400, 401, 403): kept, logged, tried again seldom
    Gone       the address is no more (404, 410): the channel is switched off

Errors never carry an address or a token: an address is told by its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from qts.domain import OperationError
from qts.notify.message import Message


class RetryLaterError(OperationError):
    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s  # as they asked


class MessageDeclinedError(OperationError):
    pass


class ChannelGoneError(OperationError):
    pass


class NotificationChannel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address_hash(self) -> str:
        """Another address is another subscription; one that is gone says nothing of a new one."""
        ...

    async def send(self, messages: Sequence[Message]) -> None:
        """All of them in one request; raises one of the three above when they did not arrive."""
        ...


def address_hash(*parts: str) -> str:
    """Enough to recognise an address in a log, not enough to use it."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
