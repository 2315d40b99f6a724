"""Transform: value, weight and profit of every position."""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from qts.pipeline.cycle import Calc, Cycle, StepFailedError, SymbolCalc


def transform(cycle: Cycle) -> Cycle:
    view = cycle.raw
    if view is None:
        raise StepFailedError("FS010", "nothing was extracted")
    equity = view.equity
    if not equity.is_finite():
        raise StepFailedError("FS020", "the equity is not a number")
    if equity <= 0:
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
