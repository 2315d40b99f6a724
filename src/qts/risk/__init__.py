"""What may be ordered, and what must be sold: the gate, the stops, the fail-safe, the switches."""

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
    "Approved",
    "Exposure",
    "Facts",
    "Market",
    "Proposal",
    "Reason",
    "Refusal",
    "Switches",
]
