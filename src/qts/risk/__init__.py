"""What may be ordered, and what must be sold: the gate, the stops, the fail-safe, the switches."""

from qts.risk.codes import CODES, Code, Effect
from qts.risk.gate import REASONS, Gate
from qts.risk.limits import LimitsConfig
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
from qts.risk.switches import KillSwitch, Switch, Watch

__all__ = [
    "CODES",
    "REASONS",
    "Approved",
    "Code",
    "Effect",
    "Entry",
    "Exposure",
    "Facts",
    "FailSafe",
    "Gate",
    "KillSwitch",
    "LimitsConfig",
    "Market",
    "Proposal",
    "Reason",
    "Refusal",
    "Safety",
    "SafetyState",
    "Switch",
    "Switches",
    "Watch",
]
