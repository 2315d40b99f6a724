"""The value that passes through the five steps: extract, transform, evaluate, decide, act.

    extract ─▶ raw    transform ─▶ calc    evaluate ─▶ evaluations    decide ─▶ decisions
    act ─▶ executions

Each step returns the cycle with its part filled in, or raises StepFailedError with a fail-safe
code; then the later steps do not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

from qts.domain import OperationError
from qts.events import Payload
from qts.events import payloads as p
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


class CycleReporter:
    """Publishes how far the steps of a cycle came, for one event loop.

    It publishes once the cycle waits, as for the commit of its order: no order waits for an event.
    """

    def __init__(self, emit: Callable[[str, Payload], object]) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()

    def step(self, name: str, number: int, took_ns: int) -> None:
        payload = p.StepComplete(cycle=number, duration_ms=took_ns / 1e6)
        self._loop.call_soon(self._emit, name, payload)

    def generated(self, cycle: Cycle, signals: Sequence[Signal]) -> None:
        """Report what the strategy returned; Evaluate refuses what is not a signal."""
        self._loop.call_soon(self._emit_generated, cycle, signals)

    def sized(self, cycle: Cycle) -> None:
        """Report the signals that have a quantity within the limits."""
        self._loop.call_soon(self._emit_sized, cycle)

    def decided(self, cycle: Cycle) -> None:
        self._loop.call_soon(self._emit_decided, cycle)

    def _emit_generated(self, cycle: Cycle, signals: Sequence[Signal]) -> None:
        for each in signals:
            if isinstance(each, Signal):
                self._emit("SIGNAL_GENERATED", _signal_payload(cycle, each))

    def _emit_sized(self, cycle: Cycle) -> None:
        for each in cycle.evaluations:
            if each.approved:
                price = float(each.price or 0)
                self._emit("STRATEGY_SIGNAL", _signal_payload(cycle, each.signal, price))

    def _emit_decided(self, cycle: Cycle) -> None:
        for each in cycle.decisions:
            if each.proposal is not None:
                self._emit(
                    "ORDER_DECISION",
                    p.OrderDecision(
                        symbol=each.proposal.symbol,
                        side=each.proposal.side,
                        qty=float(each.proposal.quantity),
                        price=float(each.proposal.price or 0),
                        strategy_type=cycle.strategy_key,
                    ),
                )


def _signal_payload(cycle: Cycle, signal: Signal, price: float = 0.0) -> p.SignalPayload:
    return p.SignalPayload(
        symbol=signal.symbol,
        side=signal.side,
        strategy_type=cycle.strategy_key,
        strength=signal.confidence,
        price=price,
    )
