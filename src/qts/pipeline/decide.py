"""Decide: turn an evaluation into an order proposal, or into the reason for none."""

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
    """What may be decided at this moment."""

    mode: Mode = "trading"  # safe: everything but Act
    safety: SafetyState = SafetyState.NORMAL
    expires_after_s: float = 5.0


def decide(cycle: Cycle, policy: DecisionPolicy) -> Cycle:
    decisions = tuple(
        Decision(each.signal, None, reason)
        if (reason := _refusal(each, policy))
        else Decision(each.signal, _proposal(cycle, each, policy))
        for each in cycle.evaluations
    )
    return replace(cycle, decisions=decisions)


def _refusal(evaluation: Evaluation, policy: DecisionPolicy) -> str:
    if policy.mode != "trading":
        return f"the pipeline is {policy.mode}"
    is_exit = evaluation.signal.intent_type.is_exit
    if policy.safety not in (SafetyState.NORMAL, SafetyState.WARNING) and not is_exit:
        return f"the fail-safe is in {policy.safety}"
    if not evaluation.approved:
        return evaluation.reason
    return ""


def _proposal(cycle: Cycle, evaluation: Evaluation, policy: DecisionPolicy) -> OrderProposal:
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
        expires_at=cycle.started_at + timedelta(seconds=policy.expires_after_s),
        reason=signal.reason,
        time_in_force=signal.time_in_force,
    )
