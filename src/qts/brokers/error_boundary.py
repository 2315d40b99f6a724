"""Where a venue's errors become the few that the port allows, and a late order is not sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from qts.brokers.broker import VenueBlockedError
from qts.domain import Clock, OperationError, OutcomeUnknownError, RefusedError, UnreachableError
from qts.venues import BeforeSend, RateLimitedError, VenueRejectedError

R = TypeVar("R")

# What reading a message of another form can raise.
UNREADABLE = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError)


@contextmanager
def translate_order_errors() -> Iterator[None]:
    """Around a request that places or cancels: whatever happens is one of the port's errors."""
    try:
        yield
    except VenueRejectedError as error:
        if not error.code:  # no word of the venue's own: who knows what has answered
            raise OutcomeUnknownError(str(error)) from None
        raise
    except RefusedError as error:
        raise VenueRejectedError(str(error), "settings") from None
    except (RateLimitedError, UnreachableError, VenueBlockedError):
        raise
    except OperationError as error:  # before the request: a token that is not to be had
        raise UnreachableError(str(error)) from None


@contextmanager
def translate_decode_errors(venue: str) -> Iterator[None]:
    """Around the reading of an answer: one of another form is as good as none."""
    try:
        yield
    except UNREADABLE as error:
        raise UnreachableError(
            f"{venue} answered something that cannot be read: {error!r}"
        ) from None


async def send_before_deadline(
    clock: Clock, patience_s: float, send: Callable[[BeforeSend], Awaitable[R]]
) -> R:
    """Send, unless it is held up for too long on its way out: an order that got old must not go.

    The client calls what it is given as the body goes into the connection. Until then the order
    can be given up and nothing has left; from then on its outcome counts. A process that was
    stopped meanwhile is late by the clock, though nobody has interrupted it.
    """
    latest_ns = clock.monotonic_ns() + int(patience_s * 1e9)
    waiting = asyncio.timeout(patience_s)

    def leaving() -> None:
        if waiting.expired() or clock.monotonic_ns() > latest_ns:
            raise held_up
        waiting.reschedule(None)

    held_up = RateLimitedError(
        f"an order was held up for {patience_s:g} s (brokers.send_timeout_s); nothing was sent"
    )
    try:
        async with waiting:
            return await send(leaving)
    except TimeoutError:
        raise held_up from None
