"""What may be ordered, and what must be sold: the gate, the stops, the fail-safe, the switches."""

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

__all__ = [
    "REASONS",
    "Approved",
    "Exposure",
    "Facts",
    "Gate",
    "LimitsConfig",
    "Market",
    "Proposal",
    "Reason",
    "Refusal",
    "Switches",
]
