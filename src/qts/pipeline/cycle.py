"""The value that passes through the five steps: extract, transform, evaluate, decide, act.

    extract ─▶ raw    transform ─▶ calc    evaluate ─▶ evaluations    decide ─▶ decisions
    act ─▶ executions

Each step returns the cycle with its part filled in, or raises StepFailedError with a fail-safe
code; then the later steps do not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

from qts.domain import OperationError
from qts.risk import OrderProposal, Reason
from qts.strategies import Signal, View

Outcome = Literal["FILLED", "PARTIAL", "REJECTED", "CANCELLED", "TIMEOUT", "STOPPED", "PENDING"]


class StepFailedError(OperationError):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Calc(msgspec.Struct, frozen=True):
    values: Mapping[str, Decimal]  # of the positions, by symbol; signed
    total_equity: Decimal
    total_exposure: Decimal


class Evaluation(msgspec.Struct, frozen=True):
    """Strategy, then risk, then portfolio: each may only take away."""

    signal: Signal
    price: Decimal | None
    recommended_qty: Decimal
    allowed_qty: Decimal
    final_qty: Decimal
    reason: str = ""

    @property
    def approved(self) -> bool:
        return self.final_qty > 0


class Decision(msgspec.Struct, frozen=True):
    """An order to propose to the gate, or why there is none."""

    signal: Signal
    proposal: OrderProposal | None
    reason: str = ""

    @property
    def action(self) -> str:
        return self.proposal.side if self.proposal else "NONE"


class Execution(msgspec.Struct, frozen=True):
    proposal: OrderProposal
    outcome: Outcome
    filled_qty: Decimal = Decimal(0)
    reason: str = ""
    refusals: tuple[Reason, ...] = ()  # by the gate


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    strategy_key: str
    started_at: datetime
    raw: View | None = None
    calc: Calc | None = None
    evaluations: tuple[Evaluation, ...] = ()
    decisions: tuple[Decision, ...] = ()
    executions: tuple[Execution, ...] = ()
    code: str = ""  # of the step that failed
    error: str = ""
    took_ms: float = 0.0
