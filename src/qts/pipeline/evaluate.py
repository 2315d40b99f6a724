"""Evaluate: size each signal within the limits of risk and of the portfolio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_FLOOR, Decimal

from msgspec.structs import replace

from qts.domain import Market, Side, market_for_symbol, min_order_value
from qts.pipeline.cycle import Calc, Cycle, Evaluation, StepFailedError
from qts.risk import RiskLimits
from qts.strategies import Signal, View

_COIN = Decimal("0.00000001")


def evaluate(
    cycle: Cycle,
    signals: Iterable[Signal],
    limits: RiskLimits,
    owners: Mapping[str, str] | None = None,
) -> Cycle:
    """Size the signals; a symbol of another strategy in `owners` is refused."""
    if cycle.raw is None or cycle.calc is None:
        raise StepFailedError("FS030", "nothing to evaluate: an earlier step is missing")
    given = list(signals)
    for signal in given:
        if not isinstance(signal, Signal):
            raise StepFailedError("FS030", f"the strategy returned {signal!r}, not a Signal")
    refused = dict.fromkeys(_contradicted(given), "GR030 bought and sold at once")
    for signal in given:
        owner = (owners or {}).get(signal.symbol, cycle.strategy_key)
        if owner != cycle.strategy_key:
            refused[signal.symbol] = f"strategy {owner} holds it"
    found = tuple(
        _evaluated(signal, cycle.raw, cycle.calc, limits, refused.get(signal.symbol, ""))
        for signal in given
    )
    return replace(cycle, evaluations=found)


def _contradicted(signals: list[Signal]) -> set[str]:
    """Return symbols that one cycle would both buy and sell (GR030)."""
    sides: dict[str, set[Side]] = {}
    for signal in signals:
        sides.setdefault(signal.symbol, set()).add(signal.side)
    return {symbol for symbol, found in sides.items() if len(found) > 1}


def _evaluated(
    signal: Signal, view: View, calc: Calc, limits: RiskLimits, refusal: str
) -> Evaluation:
    price = _price(signal, view)
    none = Decimal(0)
    if refusal:
        return Evaluation(signal, price, none, none, none, refusal)
    if price is None:
        return Evaluation(signal, None, none, none, none, "AN010 no price")
    if signal.quantity is not None and not signal.quantity.is_finite():
        return Evaluation(signal, price, none, none, none, "the quantity is not a number")
    held = view.quantity(signal.symbol)
    recommended = _recommended(signal, held, price, limits)
    allowed = _allowed(signal, held, recommended, price, limits)
    final = _whole(signal.symbol, _fitting(signal, held, allowed, price, calc, limits))
    reason = "" if final > 0 else "nothing left within the limits"
    return Evaluation(signal, price, recommended, allowed, final, reason)


def _price(signal: Signal, view: View) -> Decimal | None:
    if signal.price is not None:
        return signal.price if signal.price.is_finite() and signal.price > 0 else None
    tick = view.ticks.get(signal.symbol)
    if tick is None or not tick.price > 0:
        return None
    return Decimal(str((tick.ask if signal.side is Side.BUY else tick.bid) or tick.price))


def _reduces(signal: Signal, held: Decimal) -> bool:
    return held * signal.side.sign < 0


def _recommended(signal: Signal, held: Decimal, price: Decimal, limits: RiskLimits) -> Decimal:
    if signal.quantity is not None:
        return max(signal.quantity, Decimal(0))
    return abs(held) if _reduces(signal, held) else limits.max_order_value / price


def _allowed(
    signal: Signal, held: Decimal, quantity: Decimal, price: Decimal, limits: RiskLimits
) -> Decimal:
    """Apply the limits of one order; a sale is limited to the position, and leaves no dust."""
    if _reduces(signal, held):
        rest = (abs(held) - quantity) * price
        leaves_dust = rest < min_order_value(market_for_symbol(signal.symbol))
        return abs(held) if leaves_dust else min(quantity, abs(held))
    if signal.side is Side.SELL and not limits.short_selling:
        return Decimal(0)
    return min(quantity, limits.max_order_value / price, limits.max_quantity)


def _fitting(
    signal: Signal,
    held: Decimal,
    allowed: Decimal,
    price: Decimal,
    calc: Calc,
    limits: RiskLimits,
) -> Decimal:
    """Apply the exposure limits of the symbol and of the portfolio."""
    if _reduces(signal, held):
        return allowed
    here = calc.symbols.get(signal.symbol)
    used = abs(here.exposure_value) if here else Decimal(0)
    capacity = min(
        calc.total_equity * limits.max_symbol_exposure - used,
        calc.total_equity * limits.max_exposure - calc.total_exposure,
    )
    return max(Decimal(0), min(allowed, capacity / price))


def _whole(symbol: str, quantity: Decimal) -> Decimal:
    step = Decimal(1) if market_for_symbol(symbol) is Market.KRX else _COIN
    return (quantity / step).to_integral_value(ROUND_FLOOR) * step
