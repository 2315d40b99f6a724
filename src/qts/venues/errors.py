"""Errors of a venue, by what the caller may do next, and the last check before a request.

OperationError
├── RateLimitedError        too many requests, nothing was done: retry later
├── VenueRejectedError      understood and declined: a retry changes nothing
│   └── NotSupportedError   the host or key does not have the endpoint
└── UnreachableError        no reply, or an unreadable one
    └── OutcomeUnknownError     the request may have been executed: reconcile, never resend
RefusedError                wrong settings: keys, hosts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from qts.domain import OperationError, OutcomeUnknownError, QtsError, RefusedError, UnreachableError


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


NO_SUCH_SYMBOL = frozenset(("APBK0656", "market_not_found"))  # codes of KIS and of Upbit


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


# What decoding the body of a reply can raise.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ReplyClass(Enum):
    """Class of a code; its value is its name in the documentation."""

    REJECTED = "rejected"
    REJECTED_QUOTE = "rejected quote"
    NOT_SUPPORTED = "not supported"
    SETTINGS = "wrong settings"
    TOKEN = "no token"  # noqa: S105 - a class of codes
    RATE_LIMITED = "rate-limited"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class VenueCode(msgspec.Struct, frozen=True):
    code: str
    kind: ReplyClass
    meaning: str
    confirmed: bool = True  # False: the simulator sends it; not seen at the venue


# By class: what it means for a request that changes something, and for one that reads.
_EFFECTS = {
    ReplyClass.REJECTED: ("rejected: nothing was placed", "rejected; a retry changes nothing"),
    ReplyClass.REJECTED_QUOTE: ("outcome unknown", "rejected; a retry changes nothing"),
    ReplyClass.NOT_SUPPORTED: (
        "rejected: nothing was placed",
        "rejected; the key does not have the endpoint",
    ),
    ReplyClass.SETTINGS: ("rejected with the code `settings`", "refused: a setting is wrong"),
    ReplyClass.TOKEN: (
        "nothing was placed; another attempt may follow",
        "retried, once with a new token",
    ),
    ReplyClass.RATE_LIMITED: (
        "nothing was placed; another attempt may follow",
        "retried at a lower rate",
    ),
    ReplyClass.BLOCKED: (
        "rejected; the adapter sends nothing until the block ends",
        "not sent until the block ends",
    ),
    ReplyClass.UNKNOWN: ("outcome unknown: reconciled, never sent again", "retried"),
}


def by_code(*codes: VenueCode) -> Mapping[str, VenueCode]:
    return {each.code: each for each in codes}


def error_of_class(
    kind: ReplyClass, message: str, code: str, changes: bool, pause_s: float | None = None
) -> QtsError:
    """Return the error for a reply of a class; `changes`: the request could modify something."""
    match kind:
        case ReplyClass.REJECTED:
            return VenueRejectedError(message, code)
        case ReplyClass.REJECTED_QUOTE if not changes:
            return VenueRejectedError(message, code)
        case ReplyClass.NOT_SUPPORTED:
            return NotSupportedError(message, code)
        case ReplyClass.SETTINGS:
            return RefusedError(message)
        case ReplyClass.TOKEN:
            return OperationError(message)
        case ReplyClass.RATE_LIMITED | ReplyClass.BLOCKED:
            return RateLimitedError(message, pause_s, blocked=kind is ReplyClass.BLOCKED)
        case _:
            return OutcomeUnknownError(message) if changes else UnreachableError(message)


def redirect_error(venue: str, status: int, changes: bool) -> QtsError:
    """Return the error for a 3xx: following it would send the key to another address."""
    message = f"{venue} HTTP {status}: a redirect, which is not followed; see the venue's url"
    return error_of_class(ReplyClass.UNKNOWN, message, "", changes)


def refuse_redirects(venue: str) -> aiohttp.ClientMiddlewareType:
    """Return a middleware that raises on a 3xx; aiohttp follows those of a WebSocket."""

    async def send(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        if 300 <= response.status < 400:
            response.close()
            raise redirect_error(venue, response.status, False)
        return response

    return send


def class_table() -> str:
    """Return the classes as the first table of docs/venue-codes.md."""
    rows = [f"| {kind.value} | {order} | {read} |" for kind, (order, read) in _EFFECTS.items()]
    return "\n".join(("| class | order or cancel | read |", "|---|---|---|", *rows))


def code_table(codes: Iterable[VenueCode]) -> str:
    """Return the codes of a venue as a table of docs/venue-codes.md."""
    rows = [
        f"| {each.code} | {each.kind.value} | {each.meaning} |"
        f" {'venue' if each.confirmed else 'simulator'} |"
        for each in codes
    ]
    return "\n".join(("| code | class | meaning | seen at |", "|---|---|---|---|", *rows))


BeforeSend = Callable[[], None]  # raises to prevent the request


class GuardedJsonBody(aiohttp.JsonPayload):
    """JSON body that calls `before_send` at the moment it is written to the connection.

    Between the rate limiter's grant and this moment, connecting may take long and the process
    may be stopped. The venue ignores a request without its body.
    """

    def __init__(self, values: dict[str, Any], before_send: BeforeSend | None) -> None:
        super().__init__(values)
        self._before_send = before_send

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if self._before_send is not None:
            self._before_send()
        await super().write_with_length(writer, content_length)
