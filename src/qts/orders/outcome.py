"""What an answer of a venue, or the lack of one, means for an attempt."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from qts.brokers import VenueBlockedError
from qts.domain import OutcomeUnknownError, RefusedError, UnreachableError
from qts.venues import RateLimitedError, VenueRejectedError


class Kind(Enum):
    ACCEPTED = auto()
    REJECTED = auto()
    BLOCKED = auto()  # declined, and so will be everything else
    NOT_PLACED = auto()  # certainly: another attempt may take over
    UNKNOWN = auto()


class Outcome(msgspec.Struct, frozen=True):
    kind: Kind
    order_id: str = ""
    code: str = ""
    text: str = ""
    pause_s: float | None = None


def outcome_of(error: Exception) -> Outcome:
    """Only what a venue is known to mean by "no" is a no: everything else may have been placed."""
    text = str(error) or type(error).__name__
    if isinstance(error, RateLimitedError):
        return Outcome(Kind.NOT_PLACED, code="THROTTLED", text=text, pause_s=error.retry_after_s)
    if isinstance(error, VenueBlockedError):
        return Outcome(Kind.BLOCKED, code="BLOCKED", text=text)
    if isinstance(error, VenueRejectedError):
        return Outcome(Kind.REJECTED, code=error.code or "REJECTED", text=text)
    if isinstance(error, RefusedError):
        return Outcome(Kind.REJECTED, code="REFUSED", text=text)
    if isinstance(error, UnreachableError) and not isinstance(error, OutcomeUnknownError):
        return Outcome(Kind.NOT_PLACED, code="UNREACHABLE", text=text)
    if isinstance(error, TimeoutError):
        text = "the venue did not answer in time"
    return Outcome(Kind.UNKNOWN, code="UNKNOWN", text=text)
