"""Translation of client errors into those of the Broker port, and the deadline for sending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from qts.brokers.venue import VenueBlockedError
from qts.domain import (
    Clock,
    OperationError,
    OrderRequest,
    OutcomeUnknownError,
    RefusedError,
    UnreachableError,
)
from qts.venues import BeforeSend, RateLimitedError, RequestPriority, VenueRejectedError

R = TypeVar("R")

# What decoding a message of an unexpected form can raise.
UNREADABLE = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError)


def priority_of(request: OrderRequest) -> RequestPriority:
    return RequestPriority.EXIT if request.is_exit else RequestPriority.ORDER


@contextmanager
def translate_order_errors() -> Iterator[None]:
    """Translate the errors of a request that places or cancels into those of the port."""
    try:
        yield
    except VenueRejectedError as error:
        if not error.code:  # without a venue code: something in between may have replied
            raise OutcomeUnknownError(str(error)) from None
        raise
    except RefusedError as error:
        raise VenueRejectedError(str(error), "settings") from None
    except (RateLimitedError, UnreachableError, VenueBlockedError):
        raise
    except OperationError as error:  # before the request: no token could be obtained
        raise UnreachableError(str(error)) from None


@contextmanager
def translate_decode_errors(venue: str) -> Iterator[None]:
    """Translate decoding errors into UnreachableError: an unreadable reply counts as none."""
    try:
        yield
    except UNREADABLE as error:
        raise UnreachableError(f"{venue} sent an unreadable reply: {error!r}") from None


async def send_before_deadline(
    clock: Clock,
    timeout_s: float,
    request: OrderRequest,
    send: Callable[[BeforeSend], Awaitable[R]],
) -> R:
    """Call `send`, and raise RateLimitedError if the body is not sent in time.

    In time is within `timeout_s`, before the last of `request.send_by` and, by the wall clock,
    before `request.expires_at`. The client calls the BeforeSend callback as it writes the body.
    Until then the order can be abandoned and nothing was sent; afterwards its outcome counts. All
    clocks are read at that moment: a process that was stopped sees no timeout, and the monotonic
    clock stands still while the machine sleeps.
    """
    deadline_ns = clock.monotonic_ns() + int(timeout_s * 1e9)
    timeout = asyncio.timeout(timeout_s)

    def before_send() -> None:
        if timeout.expired() or clock.monotonic_ns() > deadline_ns:
            raise too_late
        if request.send_by and all(each.is_over(clock) for each in request.send_by):
            raise RateLimitedError(
                "the process stood still for longer than orders.send_within_s; nothing was sent"
            )
        expires_at = request.expires_at
        if expires_at is not None and clock.now() >= expires_at:
            raise RateLimitedError(f"the order expired at {expires_at:%H:%M:%S}; nothing was sent")
        timeout.reschedule(None)

    too_late = RateLimitedError(
        f"the order was not sent within {timeout_s:g} s (brokers.send_timeout_s); nothing was sent"
    )
    try:
        async with timeout:
            return await send(before_send)
    except TimeoutError:
        raise too_late from None
