"""Port of a notification channel, and its errors.

    RetryLaterError        transient (429, 5xx, no answer): retried after a pause
    MessageDeclinedError   not accepted (400, 401, 403): logged, retried rarely
    ChannelGoneError       the address no longer exists (404, 410): the channel is disabled

Errors never contain an address or a token; an address appears as its hash.
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
        self.after_s = after_s  # Retry-After of the server


class MessageDeclinedError(OperationError):
    pass


class ChannelGoneError(OperationError):
    pass


# Channels whose receivers recognise a repeated message by its `eventId`. The others get a message
# at most once if QTS ends, or loses its database, while it is sent.
DEDUPLICATING = frozenset({"webhook"})


MAX_RETRY_AFTER_S = 3600.0
_GONE = (404, 410)
_LATER = (408, 425, 429)


def check_status(status: int, retry_after_s: float, who: str) -> None:
    """Raise the channel error of an HTTP status; errors name `who`, never the address."""
    if 200 <= status < 300:
        return
    if status in _GONE:
        raise ChannelGoneError(f"{who} answered {status}: the address no longer exists")
    if status in _LATER or status >= 500:
        raise RetryLaterError(f"{who} answered {status}", retry_after_s)
    raise MessageDeclinedError(f"{who} answered {status}")


def retry_seconds(text: str) -> float:
    """Return the seconds of a Retry-After header; 0 without one that is a number."""
    return min(float(text), MAX_RETRY_AFTER_S) if text.isdigit() and text.isascii() else 0.0


class NotificationChannel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address_hash(self) -> str:
        """Identify the address; a disabled channel is enabled again when it changes."""
        ...

    async def send(self, messages: Sequence[Message]) -> None:
        """Send all messages in one request; raise one of the errors above on failure."""
        ...


def address_hash(*parts: str) -> str:
    """Return a short hash that identifies an address in logs without revealing it."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
