"""How a venue can say no, and what may be done about each.

Failed
├── Throttled        too many requests: not carried out, ask again later
├── Rejected         understood and declined: asking again changes nothing
│   └── NotOffered   this host or key does not have the service
└── Unreachable      no answer, or none that can be read
    └── OutcomeUnknown   and what was asked for may have been carried out: look, never resend
Refused              the settings are wrong: keys, hosts
"""

from __future__ import annotations

import aiohttp

from qts.domain import OperationError, OutcomeUnknownError, QtsError, UnreachableError


class RateLimitedError(OperationError):
    """The venue refused before it did anything; `retry_after_s` when it named a pause.

    `blocked`: it has shut us out altogether (HTTP 418).
    """

    def __init__(
        self, text: str, retry_after_s: float | None = None, *, blocked: bool = False
    ) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.blocked = blocked


class VenueRejectedError(OperationError):
    """`code` is the venue's own."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class NotSupportedError(VenueRejectedError):
    pass


def no_reply_error(venue: str, error: Exception, changes: bool) -> QtsError:
    """What it means that a request, one that changes something or not, got no reply."""
    if isinstance(error.__cause__, QtsError):  # held back as it was leaving
        return error.__cause__
    reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
    left = changes and not isinstance(error, aiohttp.ClientConnectorError)
    kind = (
        OutcomeUnknownError if left else UnreachableError
    )  # without a connection nothing was sent
    return kind(f"{venue} does not answer: {reason or type(error).__name__}")
