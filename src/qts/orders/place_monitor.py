"""Codes for how the venue answers orders, raised after an outcome is stored.

three in a row not answered in time ─▶ FS042    symbol that the venue does not know ─▶ FS091
three in a row not sent             ─▶ FS090    three entries in a row rejected     ─▶ FS040
answered, but slowly                ─▶ AN050, at most once a minute

One order without an answer is UNKNOWN: its symbol is suspended, the others trade on.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from qts import telemetry
from qts.brokers import VenueBlockedError
from qts.domain import OperationError, OutcomeUnknownError, RefusedError, UnreachableError
from qts.orders.attempts import OrderAttempt
from qts.orders.context import ExecutionContext
from qts.venues import NO_SUCH_SYMBOL, RateLimitedError, VenueRejectedError

log = telemetry.logger("orders")

MAX_FAILURES = 3  # in a row
SLOW = 0.5  # of orders.place_timeout_s
REPEAT_INTERVAL_S = 60.0


class PlaceOutcomeKind(Enum):
    ACCEPTED = auto()
    REJECTED = auto()
    BLOCKED = auto()  # rejected, as every other request will be
    NOT_PLACED = auto()  # certain: another attempt may follow
    UNKNOWN = auto()


class PlaceOutcome(msgspec.Struct, frozen=True):
    kind: PlaceOutcomeKind
    order_id: str = ""
    code: str = ""
    text: str = ""
    pause_s: float | None = None


def classify_place_error(error: Exception) -> PlaceOutcome:
    """Return what an error means for the attempt; anything ambiguous may have been placed."""
    text = str(error) or type(error).__name__
    if isinstance(error, RateLimitedError):
        return PlaceOutcome(
            PlaceOutcomeKind.NOT_PLACED, code="THROTTLED", text=text, pause_s=error.retry_after_s
        )
    if isinstance(error, VenueBlockedError):
        return PlaceOutcome(PlaceOutcomeKind.BLOCKED, code="BLOCKED", text=text)
    if isinstance(error, VenueRejectedError):
        return PlaceOutcome(PlaceOutcomeKind.REJECTED, code=error.code or "REJECTED", text=text)
    if isinstance(error, RefusedError):
        return PlaceOutcome(PlaceOutcomeKind.REJECTED, code="REFUSED", text=text)
    if isinstance(error, UnreachableError) and not isinstance(error, OutcomeUnknownError):
        return PlaceOutcome(PlaceOutcomeKind.NOT_PLACED, code="UNREACHABLE", text=text)
    if isinstance(error, TimeoutError):
        text = "the venue did not answer in time"
        return PlaceOutcome(PlaceOutcomeKind.UNKNOWN, code="TIMEOUT", text=text)
    return PlaceOutcome(PlaceOutcomeKind.UNKNOWN, code="UNKNOWN", text=text)


class PlaceMonitor:
    """Counts the outcomes of one account's orders; for one event loop."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._slow_s = context.config.place_timeout_s * SLOW
        self._throttle = telemetry.LogThrottle(context.clock.monotonic_ns)
        self._unsent = self._rejected = self._unanswered = 0

    async def note(self, attempt: OrderAttempt, outcome: PlaceOutcome, took_s: float) -> None:
        """Raise the codes of an outcome; one that cannot be stored is logged."""
        found = self._codes(attempt, outcome, took_s)
        for code, text in found:
            try:
                await self._context.safety.raise_code(code, text)
            except OperationError as error:
                log.error("fail-safe code not stored", code=code, reason=text, error=str(error))

    def _codes(
        self, attempt: OrderAttempt, outcome: PlaceOutcome, took_s: float
    ) -> list[tuple[str, str]]:
        kind, what = outcome.kind, f"{attempt.request.side} {attempt.symbol}"
        found: list[tuple[str, str]] = []
        # A rate limit is the pace that the venue asks for, not a failure to send.
        is_unsent = kind is PlaceOutcomeKind.NOT_PLACED and outcome.code != "THROTTLED"
        self._unsent = self._unsent + 1 if is_unsent else 0
        if self._unsent == MAX_FAILURES:
            self._unsent = 0
            found.append(("FS090", f"{MAX_FAILURES} in a row, the last: {what}: {outcome.text}"))
        is_late = outcome.code == "TIMEOUT" or took_s > self._slow_s
        is_unanswered = kind is PlaceOutcomeKind.UNKNOWN and is_late
        self._unanswered = self._unanswered + 1 if is_unanswered else 0
        if self._unanswered == MAX_FAILURES:
            self._unanswered = 0
            found.append(("FS042", f"{MAX_FAILURES} in a row, the last: {what}: {outcome.text}"))
        if kind in (PlaceOutcomeKind.ACCEPTED, PlaceOutcomeKind.REJECTED):
            found += self._answered(attempt, outcome, took_s)
        return found

    def _answered(
        self, attempt: OrderAttempt, outcome: PlaceOutcome, took_s: float
    ) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        what = f"{attempt.request.side} {attempt.symbol}"
        if outcome.kind is PlaceOutcomeKind.ACCEPTED:
            self._rejected = 0
        elif outcome.code in NO_SUCH_SYMBOL:
            if self._throttle.every(3600.0, attempt.symbol):
                found.append(("FS091", f"{what}: {outcome.text}"))
        elif not attempt.intent_type.is_exit:  # an exit is repeated, and reported by GR074
            self._rejected += 1
            if self._rejected == MAX_FAILURES:
                self._rejected = 0
                text = f"{MAX_FAILURES} entries in a row rejected, the last: {what}: {outcome.text}"
                found.append(("FS040", text))
        if took_s > self._slow_s and self._throttle.every(REPEAT_INTERVAL_S, "AN050"):
            found.append(("AN050", f"{what}: answered after {took_s:.1f} s"))
        return found
