"""Extract, transform and decide: the steps of a cycle that neither size nor send an order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from qts.domain import OrderType
from qts.orders import signal_id_for
from qts.pipeline.cycle import Calc, Cycle, Decision, Evaluation, StepFailedError, SymbolCalc
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
    """Compute value, weight and profit of every position."""
    view = cycle.raw
    if view is None:
        raise StepFailedError("FS010", "nothing was extracted")
    equity = view.equity
    if not equity.is_finite():
        raise StepFailedError("FS020", "the equity is not a number")
    capital = view.account.cash + sum(
        (each.quantity * each.average_price for each in view.positions.values()), Decimal(0)
    )
    is_empty = not view.positions and not view.account.cash  # its entries are refused: no cash
    if capital <= 0 and not is_empty:  # at cost: no price, right or wrong, makes it better
        raise StepFailedError("FS080", f"cash and positions at cost are {capital}")
    if equity <= 0 and not is_empty:
        raise StepFailedError("FS050", f"the equity is {equity}")
    symbols = {}
    for symbol, position in view.positions.items():
        tick = view.ticks.get(symbol)
        price = Decimal(str(tick.price)) if tick else position.average_price
        if not price.is_finite():
            raise StepFailedError("FS020", f"the price of {symbol} is not a number")
        value = price * position.quantity
        symbols[symbol] = SymbolCalc(
            symbol,
            price,
            position.quantity,
            value,
            value / equity,
            (price - position.average_price) * position.quantity,
        )
    total = sum((abs(each.exposure_value) for each in symbols.values()), Decimal(0))
    return replace(cycle, calc=Calc(symbols, equity, total))


Mode = Literal["trading", "safe", "paused"]


class DecisionPolicy(msgspec.Struct, frozen=True):
    """What may be decided at this moment."""

    mode: Mode = "trading"  # safe: everything but Act
    safety: SafetyState = SafetyState.NORMAL
    expires_after_s: float = 5.0


def decide(cycle: Cycle, policy: DecisionPolicy) -> Cycle:
    """Turn each evaluation into an order proposal, or into the reason for none."""
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


def signal_id_of(strategy_key: str, signal: Signal) -> UUID:
    """Return the id of a signal, which its order proposal has too."""
    at = datetime.fromtimestamp(signal.at, UTC)
    return signal_id_for(strategy_key, signal.symbol, signal.side, at)


def _proposal(cycle: Cycle, evaluation: Evaluation, policy: DecisionPolicy) -> OrderProposal:
    signal = evaluation.signal
    return OrderProposal(
        strategy_key=cycle.strategy_key,
        symbol=signal.symbol,
        side=signal.side,
        type=signal.type,
        quantity=evaluation.final_qty,
        price=signal.price if signal.type is OrderType.LIMIT else None,
        intent_type=signal.intent_type,
        signal_id=signal_id_of(cycle.strategy_key, signal),
        decided_at=datetime.fromtimestamp(signal.at, UTC),
        expires_at=cycle.started_at + timedelta(seconds=policy.expires_after_s),
        reason=signal.reason,
        time_in_force=signal.time_in_force,
        exits=signal.exits,
        trigger=signal.trigger,
    )
