"""The errors of QTS, as a tree.

    QtsError
    ├── Refused             bad input: nothing was done, exit code 2
    │   ├── ConfigError     a settings file or an environment override
    │   ├── EventRefused    an event, a handler or an event type that breaks the contract
    │   ├── HomeInUse       another QTS runs on this home directory
    │   ├── ScenarioError   a router scenario that contradicts itself or cannot be read
    │   └── SchemaTooNew    the database was migrated by a newer QTS
    └── Failed              asked for rightly, could not be done, exit code 1
        ├── CacheStaleDataError        a cached value is too old to act on
        ├── LaneFull        an event found no room in its lane in the time it was given
        ├── PriceDataUnavailableError  no price or order book is known
        ├── TradeLimitExceededError    the day's number of trades is used up
        ├── ServerFailed    an embedded server did not start or died
        └── Unreachable     a server named in the settings does not answer
            └── OutcomeUnknown  it was lost while it wrote: the change may have been kept

Errors of other libraries are translated into these at the seam where they occur.
"""

from __future__ import annotations


class QtsError(Exception):
    """Every error QTS raises on purpose; its text is one line a user can act on."""

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
