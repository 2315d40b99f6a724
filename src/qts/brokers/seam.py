"""Where a venue's errors become the few that the port allows, and a late order is not sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from qts.brokers.broker import Blocked
from qts.domain import Failed, OutcomeUnknown, Refused, Unreachable
from qts.venues import Rejected, Throttled

V = TypeVar("V")
R = TypeVar("R")

# What reading a message of another form can raise.
UNREADABLE = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError)


@contextmanager
def changing() -> Iterator[None]:
    """Around a request that places or cancels: whatever happens is one of the port's errors."""
    try:
        yield
    except Rejected as error:
        if not error.code:  # no word of the venue's own: who knows what has answered
            raise OutcomeUnknown(str(error)) from None
        raise
    except Refused as error:
        raise Rejected(str(error), "settings") from None
    except (Throttled, Unreachable, Blocked):
        raise
    except Failed as error:  # before the request: a token that is not to be had
        raise Unreachable(str(error)) from None


@contextmanager
def reading(venue: str) -> Iterator[None]:
    """Around the reading of an answer: one of another form is as good as none."""
    try:
        yield
    except UNREADABLE as error:
        raise Unreachable(f"{venue} answered something that cannot be read: {error!r}") from None


async def send_in_time(
    values: V, patience_s: float, send: Callable[[Callable[[], V]], Awaitable[R]]
) -> R:
    """Send, unless the request budget grants it too late: an order that got old must not go.

    The client asks for the values when it has the grant; until then the wait can be given up.
    """
    waiting = asyncio.timeout(patience_s)

    def granted() -> V:
        waiting.reschedule(None)
        return values

    try:
        async with waiting:
            return await send(granted)
    except TimeoutError:
        raise Throttled(
            f"an order waited {patience_s:g} s for its turn (brokers.patience_s); nothing was sent"
        ) from None
