"""Errors of a venue, by what the caller may do next.

OperationError
├── RateLimitedError        too many requests, nothing was done: retry later
├── VenueRejectedError      understood and declined: a retry changes nothing
│   └── NotSupportedError   the host or key does not have the endpoint
└── UnreachableError        no reply, or an unreadable one
    └── OutcomeUnknownError     the request may have been executed: reconcile, never resend
RefusedError                wrong settings: keys, hosts
"""

from __future__ import annotations

import aiohttp

from qts.domain import OperationError, OutcomeUnknownError, QtsError, UnreachableError


class RateLimitedError(OperationError):
    """The venue declined without doing anything; `retry_after_s` is the pause it named, if any.

    `blocked`: it has banned us (HTTP 418).
    """

    def __init__(
        self, text: str, retry_after_s: float | None = None, *, blocked: bool = False
    ) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.blocked = blocked


class VenueRejectedError(OperationError):
    """The venue declined; `code` is its error code."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class NotSupportedError(VenueRejectedError):
    pass


def no_reply_error(venue: str, error: Exception, changes: bool) -> QtsError:
    """Return the error for a request without a reply; `changes`: it could modify something."""
    if isinstance(error.__cause__, QtsError):  # raised by before_send: nothing was sent
        return error.__cause__
    reason = "no reply in time" if isinstance(error, TimeoutError) else str(error)
    sent = not isinstance(error, aiohttp.ClientConnectorError)  # no connection: nothing was sent
    kind = OutcomeUnknownError if changes and sent else UnreachableError
    return kind(f"{venue} does not answer: {reason or type(error).__name__}")
