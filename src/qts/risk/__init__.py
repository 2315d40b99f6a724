"""What may be ordered, and what must be sold: the gate, the stops, the fail-safe, the switches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.risk.codes import CODES, Code, Effect
from qts.risk.config import RiskConfig
from qts.risk.gate import REASONS, Gate
from qts.risk.limits import Limits, LimitsConfig
from qts.risk.proposal import (
    Approved,
    Exposure,
    Facts,
    Market,
    Proposal,
    Reason,
    Refusal,
    Switches,
)
from qts.risk.safety import Entry, FailSafe, Safety, SafetyState
from qts.risk.stops_config import HoldingLimits, StopsConfig
from qts.risk.switches import KillSwitch, Switch, Watch

if TYPE_CHECKING:
    from qts.risk.loop import EMERGENCY_ORDER, EmergencyOrder, MicroRisk
    from qts.risk.loop import Holding as StopHolding

# Loaded when asked for: settings and refusals do not need the C++ core.
_NATIVE = {
    "EMERGENCY_ORDER": "EMERGENCY_ORDER",
    "EmergencyOrder": "EmergencyOrder",
    "MicroRisk": "MicroRisk",
    "StopHolding": "Holding",
}

__all__ = [
    "CODES",
    "EMERGENCY_ORDER",
    "REASONS",
    "Approved",
    "Code",
    "Effect",
    "EmergencyOrder",
    "Entry",
    "Exposure",
    "Facts",
    "FailSafe",
    "Gate",
    "HoldingLimits",
    "KillSwitch",
    "Limits",
    "LimitsConfig",
    "Market",
    "MicroRisk",
    "Proposal",
    "Reason",
    "Refusal",
    "RiskConfig",
    "Safety",
    "SafetyState",
    "StopHolding",
    "StopsConfig",
    "Switch",
    "Switches",
    "Watch",
]


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        return getattr(import_module("qts.risk.loop"), _NATIVE[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
