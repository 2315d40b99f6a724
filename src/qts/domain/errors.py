"""Tree of the errors that QTS raises.

    QtsError
    ├── RefusedError               invalid input; nothing was done, exit code 2
    │   ├── ConfigError            invalid settings file or environment variable
    │   ├── EventRefusedError      event, handler or event type that violates the contract
    │   ├── HomeInUseError         another QTS runs on this home directory
    │   ├── ScenarioError          router scenario that contradicts itself or cannot be read
    │   └── SchemaTooNewError      database that was migrated by a newer QTS
    └── OperationError             valid request that could not be carried out, exit code 1
        ├── CacheStaleDataError        cached value too old to act on
        ├── LaneFullError              no capacity in a lane before the timeout
        ├── PriceDataUnavailableError  no price or order book available
        ├── TradeLimitExceededError    number of trades per day used up
        ├── ServerFailedError          embedded server that did not start or died
        └── UnreachableError           server named in the settings that does not answer
            └── OutcomeUnknownError    connection lost during a write; it may have been committed

Errors of other libraries are translated into these where the library is called.
"""

from __future__ import annotations


class QtsError(Exception):
    """Base of every error that QTS raises; its text is one line a user can act on."""

    exit_code = 1


class RefusedError(QtsError):
    exit_code = 2


class ConfigError(RefusedError):
    pass


class EventRefusedError(RefusedError):
    pass


class HomeInUseError(RefusedError):
    pass


class ScenarioError(RefusedError):
    pass


class SchemaTooNewError(RefusedError):
    pass


class OperationError(QtsError):
    pass


class CacheStaleDataError(OperationError):
    pass


class PriceDataUnavailableError(OperationError):
    pass


class TradeLimitExceededError(OperationError):
    pass


class LaneFullError(OperationError):
    pass


class ServerFailedError(OperationError):
    pass


class UnreachableError(OperationError):
    pass


class OutcomeUnknownError(UnreachableError):
    pass
