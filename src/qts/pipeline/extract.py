"""Extract: a consistent view of ticks, positions and account."""

from __future__ import annotations

from msgspec.structs import replace

from qts.pipeline.cycle import Cycle, StepFailedError
from qts.strategies import View


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
