"""Words that two or more rooms use: clock, errors, secrets. No I/O."""

from qts.domain.clock import Clock, MovableClock, SystemClock
from qts.domain.duration import parse_duration
from qts.domain.errors import (
    ConfigError,
    Failed,
    HomeInUse,
    OutcomeUnknown,
    QtsError,
    Refused,
    ScenarioError,
    SchemaTooNew,
    ServerFailed,
    Unreachable,
)
from qts.domain.secret import Secret

__all__ = [
    "Clock",
    "ConfigError",
    "Failed",
    "HomeInUse",
    "MovableClock",
    "OutcomeUnknown",
    "QtsError",
    "Refused",
    "ScenarioError",
    "SchemaTooNew",
    "Secret",
    "ServerFailed",
    "SystemClock",
    "Unreachable",
    "parse_duration",
]
