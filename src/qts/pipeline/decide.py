"""Decide: the last look before the gate. What comes out is a proposal, or the reason for none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from qts.domain import OrderType
from qts.orders import signal_id_for
from qts.pipeline.cycle import Cycle, Decision, Evaluation
from qts.risk import OrderProposal, SafetyState

Mode = Literal["trading", "safe", "paused"]


class DecisionPolicy(msgspec.Struct, frozen=True):
    """What is allowed at the moment of the decision."""

    mode: Mode = "trading"  # safe: everything but acting
    safety: SafetyState = SafetyState.NORMAL
    expires_after_s: float = 5.0


def decide(cycle: Cycle, leave: DecisionPolicy) -> Cycle:
    decisions = tuple(
        Decision(each.signal, None, why)
        if (why := _why_not(each, leave))
        else Decision(each.signal, _proposal(cycle, each, leave))
        for each in cycle.evaluations
    )
    return replace(cycle, decisions=decisions)


def _why_not(evaluation: Evaluation, leave: DecisionPolicy) -> str:
    if leave.mode != "trading":
        return f"the pipeline is {leave.mode}"
    is_exit = evaluation.signal.intent_type.is_exit
    if leave.safety not in (SafetyState.NORMAL, SafetyState.WARNING) and not is_exit:
        return f"the fail-safe is at {leave.safety}"
    if not evaluation.approved:
        return evaluation.reason
    return ""


def _proposal(cycle: Cycle, evaluation: Evaluation, leave: DecisionPolicy) -> OrderProposal:
    signal = evaluation.signal
    at = datetime.fromtimestamp(signal.at, UTC)
    return OrderProposal(
        strategy_key=cycle.strategy_key,
        symbol=signal.symbol,
        side=signal.side,
        type=signal.type,
        quantity=evaluation.final_qty,
        price=signal.price if signal.type is OrderType.LIMIT else None,
        intent_type=signal.intent_type,
        signal_id=signal_id_for(cycle.strategy_key, signal.symbol, signal.side, at),
        decided_at=at,
        expires_at=cycle.started_at + timedelta(seconds=leave.expires_after_s),
        reason=signal.reason,
    )
