"""Errors that a handler raises to say what becomes of its event.

    RetryableError       transient (network, 5xx, timeout): retried after a backoff
    PermanentError       a retry cannot help (invalid data, policy): a dead letter at once
    UnknownOutcomeError  the effect may have happened: a dead letter at once, requeued only after
                         an operator has checked the outcome

Any other error counts as retryable: handlers are idempotent, and attempts are limited.
"""

from __future__ import annotations

from qts.domain import OperationError, QtsError, RefusedError


class RetryableError(OperationError):
    code = "RETRYABLE"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


class PermanentError(OperationError):
    code = "PERMANENT"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


class UnknownOutcomeError(OperationError):
    code = "UNKNOWN"


class OutboxEventRefusedError(RefusedError):
    """Event that cannot be published as given; the caller's transaction stays usable."""


# Code stored in `last_error_code` for an error of ours; rows and alerts depend on the spelling.
STORED_CODES = {
    "RefusedError": "Refused",
    "EventRefusedError": "EventRefused",
    "HomeInUseError": "HomeInUse",
    "SchemaTooNewError": "SchemaTooNew",
    "OperationError": "Failed",
    "LaneFullError": "LaneFull",
    "ServerFailedError": "ServerFailed",
    "UnreachableError": "Unreachable",
    "OutcomeUnknownError": "OutcomeUnknown",
    "RemoteHandlerError": "Told",
    "RetryLaterError": "Later",
    "MessageDeclinedError": "Declined",
    "ChannelGoneError": "Gone",
    "OutboxEventRefusedError": "EventRefused",
    "StepFailedError": "StepFailed",
    "RateLimitedError": "Throttled",
    "VenueRejectedError": "Rejected",
    "NotSupportedError": "NotOffered",
    "VenueBlockedError": "Blocked",
    "AccountTakenError": "AccountTaken",
    "FencedOutError": "TakenOver",
    "CircuitOpenError": "CircuitOpen",
    "StoreBusyError": "Busy",
    "ForbiddenError": "Forbidden",
    "RetryableError": RetryableError.code,
    "PermanentError": PermanentError.code,
    "UnknownOutcomeError": UnknownOutcomeError.code,
}


def stored_code(error: Exception) -> str:
    """Return the code to store for an error: its own, the table's, or its class name."""
    if isinstance(error, RetryableError | PermanentError | UnknownOutcomeError):
        return error.code
    name = type(error).__name__
    return STORED_CODES.get(name, name) if isinstance(error, QtsError) else name
