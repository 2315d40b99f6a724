"""Reasons why an order is smaller than its signal asked for."""

from __future__ import annotations

from qts.domain import Instrument
from qts.pipeline import Evaluation
from qts.risk import RiskLimits


def cut_reason(evaluation: Evaluation, limits: RiskLimits, instrument: Instrument) -> str:
    """Return what made an order smaller than its signal; empty: nothing did.

    A signal without a quantity asks for as much as one order may be, in whole lots.
    """
    asked, allowed, final = (
        evaluation.recommended_qty,
        evaluation.allowed_qty,
        evaluation.final_qty,
    )
    if final < allowed and final < instrument.floor_to_lot(allowed):
        return "risk.limits.max_exposure or max_symbol_exposure"
    if allowed < asked and evaluation.price is not None:
        if evaluation.signal.intent_type.is_exit:
            return "no more than is held"
        by_value = limits.max_order_value / evaluation.price
        name = "max_quantity" if limits.max_quantity < by_value else "max_order_value"
        return f"risk.limits.{name}"
    return "whole lots" if evaluation.signal.quantity is not None and final < asked else ""
