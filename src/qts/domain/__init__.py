"""Words that two or more rooms use: clock, errors, secrets. No I/O."""

from qts.domain.clock import Clock, MovableClock, SystemClock
from qts.domain.duration import parse_duration
from qts.domain.errors import (
    CacheStaleDataError,
    ConfigError,
    EventRefused,
    Failed,
    HomeInUse,
    LaneFull,
    OutcomeUnknown,
    PriceDataUnavailableError,
    QtsError,
    Refused,
    ScenarioError,
    SchemaTooNew,
    ServerFailed,
    TradeLimitExceededError,
    Unreachable,
)
from qts.domain.secret import Secret

__all__ = [
    "CacheStaleDataError",
    "Clock",
    "ConfigError",
    "EventRefused",
    "Failed",
    "HomeInUse",
    "LaneFull",
    "MovableClock",
    "OutcomeUnknown",
    "PriceDataUnavailableError",
    "QtsError",
    "Refused",
    "ScenarioError",
    "SchemaTooNew",
    "Secret",
    "ServerFailed",
    "SystemClock",
    "TradeLimitExceededError",
    "Unreachable",
    "parse_duration",
]
