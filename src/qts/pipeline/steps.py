"""Extract, transform and decide: the steps of a cycle that neither size nor send an order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from qts.domain import OrderType, exact_decimal
from qts.orders import signal_id_for
from qts.pipeline.cycle import Calc, Cycle, Decision, Evaluation, StepFailedError
from qts.risk import OrderProposal, SafetyState
from qts.strategies import Signal, View


def extract(cycle: Cycle, view: View) -> Cycle:
    """Check the view and attach it to the cycle."""
    for symbol, position in view.positions.items():
        if not symbol or symbol != position.symbol:
            raise StepFailedError("FS010", f"a position without its symbol: {position}")
        if not position.quantity.is_finite() or not position.average_price.is_finite():
            raise StepFailedError("FS010", f"the position of {symbol} is not a number")
        if position.average_price < 0:
            raise StepFailedError("FS010", f"the average price of {symbol} is below zero")
    if not view.account.cash.is_finite():
        raise StepFailedError("FS010", "the cash of the account is not a number")
    return replace(cycle, raw=view)


def transform(cycle: Cycle) -> Cycle:
    """Compute the value of every position, and of all of them."""
    view = cycle.raw
    if view is None:
        raise StepFailedError("FS010", "nothing was extracted")
    equity = view.equity
    if not equity.is_finite():
        raise StepFailedError("FS020", "the equity is not a number")
    cost = total = Decimal(0)
    for position in view.positions.values():
        cost += position.quantity * position.average_price
    capital = view.account.cash + cost
    is_empty = not view.positions and not view.account.cash  # its entries are refused: no cash
    if capital <= 0 and not is_empty:  # at cost: no price, right or wrong, makes it better
        raise StepFailedError("FS080", f"cash and positions at cost are {capital}")
    if equity <= 0 and not is_empty:
        raise StepFailedError("FS050", f"the equity is {equity}")
    values: dict[str, Decimal] = {}
    for symbol, position in view.positions.items():
        tick = view.ticks.get(symbol)
        price = exact_decimal(tick.price) if tick else position.average_price
        if not price.is_finite():
            raise StepFailedError("FS020", f"the price of {symbol} is not a number")
        value = values[symbol] = price * position.quantity
        total += abs(value)
    return replace(cycle, calc=Calc(values, equity, total))


Mode = Literal["trading", "safe", "paused"]
_SAFE = (SafetyState.NORMAL, SafetyState.WARNING)


class DecisionPolicy(msgspec.Struct, frozen=True):
    """What may be decided at this moment."""

    mode: Mode = "trading"  # safe: everything but Act
    safety: SafetyState = SafetyState.NORMAL
    expires_after_s: float = 5.0


def decide(cycle: Cycle, policy: DecisionPolicy) -> Cycle:
    """Turn each evaluation into an order proposal, or into the reason for none."""
    decisions = []
    for each in cycle.evaluations:
        reason = _refusal(each, policy)
        proposal = None if reason else _proposal(cycle, each, policy)
        decisions.append(Decision(each.signal, proposal, reason))
    return replace(cycle, decisions=tuple(decisions))


def _refusal(evaluation: Evaluation, policy: DecisionPolicy) -> str:
    if policy.mode != "trading":
        return f"the pipeline is {policy.mode}"
    if policy.safety not in _SAFE and not evaluation.signal.intent_type.is_exit:
        return f"the fail-safe is in {policy.safety}"
    return "" if evaluation.approved else evaluation.reason


def signal_id_of(strategy_key: str, signal: Signal, at: datetime | None = None) -> UUID:
    """Return the id of a signal, which its order proposal has too; `at` is its time, if known."""
    at = at or datetime.fromtimestamp(signal.at, UTC)
    return signal_id_for(strategy_key, signal.symbol, signal.side, at)


def _proposal(cycle: Cycle, evaluation: Evaluation, policy: DecisionPolicy) -> OrderProposal:
    signal = evaluation.signal
    decided_at = datetime.fromtimestamp(signal.at, UTC)
    return OrderProposal(
        strategy_key=cycle.strategy_key,
        symbol=signal.symbol,
        side=signal.side,
        type=signal.type,
        quantity=evaluation.final_qty,
        price=signal.price if signal.type is OrderType.LIMIT else None,
        intent_type=signal.intent_type,
        signal_id=signal_id_of(cycle.strategy_key, signal, decided_at),
        decided_at=decided_at,
        expires_at=cycle.started_at + timedelta(seconds=policy.expires_after_s),
        reason=signal.reason,
        time_in_force=signal.time_in_force,
        exits=signal.exits,
        trigger=signal.trigger,
    )
