"""How a handler says what its failure means for the event.

    Retryable   passing trouble (network, 5xx, a time limit): tried again after a pause
    Permanent   trying again cannot help (bad data, against policy): a dead letter at once
    Unknown     it may have happened: a dead letter at once, requeued only by someone who looked

Any other error counts as Retryable: handlers can be run twice, and attempts are limited.
"""

from __future__ import annotations

from qts.domain import OperationError, RefusedError


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

    def __init__(self, message: str) -> None:
        super().__init__(message)


class OutboxEventRefusedError(RefusedError):
    """An event that cannot be published as it is; the transaction it was meant for is usable."""
