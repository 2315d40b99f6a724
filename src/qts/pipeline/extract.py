"""Extract: the world as it is, or nothing."""

from __future__ import annotations

from msgspec.structs import replace

from qts.pipeline.cycle import Cycle, StepFailedError
from qts.strategies import View


def extract(cycle: Cycle, view: View) -> Cycle:
    """Take the view in, if it holds together."""
    for symbol, position in view.positions.items():
        if not symbol or symbol != position.symbol:
            raise StepFailedError("FS010", f"a position without its symbol: {position}")
        if not position.quantity.is_finite() or not position.average_price.is_finite():
            raise StepFailedError("FS010", f"the position of {symbol} is no number")
        if position.average_price < 0:
            raise StepFailedError("FS010", f"the average price of {symbol} is below zero")
    if not view.account.cash.is_finite():
        raise StepFailedError("FS010", "the cash of the account is no number")
    return replace(cycle, raw=view)
