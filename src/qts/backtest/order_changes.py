"""Cancels and replacements of a backtest: an order ends at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal

from qts.domain import OrderSnapshot, OrderTerms
from qts.strategies import Instruction, Replace, Signal

CancelNow = Callable[[OrderSnapshot], tuple[Decimal, OrderTerms] | None]


def change_orders(returned: Iterable[Instruction], cancel: CancelNow, at: float) -> list[Signal]:
    """Cancel and replace orders; return the signals, with those of replacements."""
    signals: list[Signal] = []
    for each in returned:
        if isinstance(each, Signal):
            signals.append(each)
            continue
        if isinstance(each, Replace) and each.changes_nothing:
            continue
        ended = cancel(each.order)
        if ended is not None and isinstance(each, Replace):
            filled, terms = ended
            if signal := each.signal(at, filled, terms):
                signals.append(signal)
    return signals
