"""Extract, transform, evaluate and decide: the steps of a cycle that send no order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from qts.domain import (
    FILL_AT_ONCE,
    Instrument,
    Instruments,
    OrderType,
    Side,
    TimeInForce,
    exact_decimal,
)
from qts.orders import signal_id_for
from qts.pipeline.cycle import Calc, Cycle, Decision, Evaluation, StepFailedError
from qts.risk import OrderProposal, RiskLimits, SafetyState, StrategyLimits
from qts.strategies import Signal, View

_ZERO = Decimal(0)
_NO_LIMITS = StrategyLimits()


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


def evaluate(
    cycle: Cycle,
    signals: Iterable[Signal],
    limits: RiskLimits,
    instruments: Instruments,
    owners: Mapping[str, str] | None = None,
) -> Cycle:
    """Size the signals within the limits of the account and of the strategy itself.

    A symbol of another strategy in `owners` is refused.
    """
    if cycle.raw is None or cycle.calc is None:
        raise StepFailedError("FS030", "nothing to evaluate: an earlier step is missing")
    given = list(signals)
    for signal in given:
        if not isinstance(signal, Signal):
            raise StepFailedError("FS030", f"the strategy returned {signal!r}, not a Signal")
    key, owners = cycle.strategy_key, owners or {}
    refused = dict.fromkeys(_contradicted(given), "GR030 bought and sold at once")
    for signal in given:
        if (owner := owners.get(signal.symbol, key)) != key:
            refused[signal.symbol] = f"strategy {owner} holds it"
    own = limits.strategies.get(key, _NO_LIMITS)
    has_capital = own.capital is not None
    used = _values_of(key, cycle.raw, cycle.calc, owners) if has_capital else {}
    sizing = _Sizing(cycle.raw, cycle.calc, _tightened(limits, own), instruments, own, used)
    found = [sizing.evaluate(signal, refused.get(signal.symbol, "")) for signal in given]
    return replace(cycle, evaluations=tuple(found))


def _contradicted(signals: list[Signal]) -> set[str]:
    """Return symbols that one cycle would both buy and sell (GR030)."""
    if len(signals) < 2:
        return set()
    by_symbol: dict[str, list[Signal]] = {}
    for signal in signals:
        by_symbol.setdefault(signal.symbol, []).append(signal)
    return {symbol for symbol, found in by_symbol.items() if contradict(found)}


def contradict(signals: Iterable[Signal]) -> bool:
    """Return whether signals of one symbol buy and sell it at once.

    Limit orders that buy below what others sell at do not: these are the quotes of a market maker.
    Nor does a stop order, which trades later if at all.
    """
    bids: list[Decimal] = []
    asks: list[Decimal] = []
    for each in signals:
        if each.trigger is not None:
            continue
        is_buy = each.side is Side.BUY
        price = each.price if each.type is OrderType.LIMIT and each.price is not None else None
        worst = Decimal("Infinity") if is_buy else Decimal(0)
        (bids if is_buy else asks).append(worst if price is None else price)
    return bool(bids and asks) and max(bids) >= min(asks)


class _Sizing(msgspec.Struct, frozen=True):
    view: View
    calc: Calc
    limits: RiskLimits
    instruments: Instruments
    own: StrategyLimits
    used: Mapping[str, Decimal]  # what the strategy holds and buys, by symbol

    def evaluate(self, signal: Signal, refusal: str) -> Evaluation:
        price, held = _price(signal, self.view), self.view.quantity(signal.symbol)
        reduces, instrument = held * signal.side.sign < 0, self.instruments[signal.symbol]
        reason = refusal or self._refusal(signal, reduces, price, instrument)
        if reason or price is None:
            return Evaluation(signal, price, _ZERO, _ZERO, _ZERO, reason)
        most = abs(held) if reduces else self.limits.max_order_value / price
        recommended = self._recommended(signal, price, most)
        if reduces:
            allowed = final = _reduction(recommended, most, price, instrument)
        else:
            is_short = signal.side is Side.SELL and not self.limits.short_selling
            allowed = _ZERO if is_short else min(recommended, most, self.limits.max_quantity)
            final = self._fitting(signal.symbol, allowed, price)
        if not reduces or final != abs(held):  # odd lots are sold with the rest
            final = instrument.floor_to_lot(final)
        reason = "" if final > 0 else "nothing left within the limits"
        return Evaluation(signal, price, recommended, allowed, final, reason)

    def _fitting(self, symbol: str, allowed: Decimal, price: Decimal) -> Decimal:
        """Apply the exposure limits of the symbol and of the portfolio, and the own capital."""
        here, equity = self.calc.values.get(symbol, _ZERO), self.calc.total_equity
        capacity = min(
            equity * self.limits.max_symbol_exposure - abs(here),
            equity * self.limits.max_exposure - self.calc.total_exposure,
        )
        fitting = max(_ZERO, min(allowed, capacity / price))
        if self.own.capital is None:
            return fitting
        return min(fitting, self._own_capacity(self.own.capital, symbol) / price)

    def _own_capacity(self, capital: Decimal, symbol: str) -> Decimal:
        """Return what the strategy's own capital leaves for a symbol, in won."""
        left, one = capital - sum(self.used.values(), _ZERO), self.own.capital_per_symbol
        if one is not None:
            left = min(left, one - self.used.get(symbol, _ZERO))
        return max(_ZERO, left)

    def _recommended(self, signal: Signal, price: Decimal, most: Decimal) -> Decimal:
        """Return the quantity that the signal asks for; without a size, the most."""
        if signal.quantity is not None:
            return max(signal.quantity, _ZERO)
        if signal.value is not None:
            return signal.value / price
        if signal.share is not None:
            return self.calc.total_equity * signal.share / price
        if signal.risk is not None and signal.stop is not None:
            return self.calc.total_equity * signal.risk / abs(price - signal.stop)
        return most

    def _refusal(
        self, signal: Signal, reduces: bool, price: Decimal | None, instrument: Instrument
    ) -> str:
        if not reduces and instrument.entry_block:
            return f"G_INSTRUMENT {signal.symbol}: {self.instruments.entry_block(signal.symbol)}"
        if price is None:
            return "AN010 no price"
        if signal.quantity is not None and not signal.quantity.is_finite():
            return "the quantity is not a number"
        if signal.exits is not None and (reason := _bad_exits(signal, reduces, price)):
            return reason
        rests = signal.trigger is None  # else QTS keeps it, and the order that it becomes is of DAY
        if signal.time_in_force is TimeInForce.GTC and rests and instrument.orders_end_with_day:
            return (
                f"time_in_force GTC: orders of {signal.symbol} end with the day;"
                " expected IOC, FOK, DAY or seconds"
            )
        return ""


def _tightened(limits: RiskLimits, own: StrategyLimits) -> RiskLimits:
    """Return the limits with the strategy's largest order, where it is the smaller one."""
    if own.max_order_value is None:
        return limits
    return replace(limits, max_order_value=min(limits.max_order_value, own.max_order_value))


def _values_of(key: str, view: View, calc: Calc, owners: Mapping[str, str]) -> dict[str, Decimal]:
    """Return the value of what a strategy holds and buys, by symbol."""
    found = {
        symbol: abs(value) for symbol, value in calc.values.items() if owners.get(symbol) == key
    }
    for order in view.orders:
        if order.strategy_key == key and order.side is Side.BUY and order.trigger is None:
            price = order.price or _tick_price(order.symbol, order.side, view) or _ZERO
            found[order.symbol] = found.get(order.symbol, _ZERO) + order.remaining * price
    return found


def _bad_exits(signal: Signal, reduces: bool, price: Decimal) -> str:
    """Return why the stop and target do not fit an entry at this price; empty: they do."""
    if signal.intent_type.is_exit or reduces:
        return "stop, target and trail belong to an entry"
    for name, level, sign in (("stop", signal.stop, 1), ("target", signal.target, -1)):
        if level is not None and (price - level) * signal.side.sign * sign <= 0:
            where = "below" if sign * signal.side.sign > 0 else "above"
            return f"{name} {level} is not {where} the price {price}"
    return ""


def _price(signal: Signal, view: View) -> Decimal | None:
    if signal.price is not None:
        return signal.price if signal.price.is_finite() and signal.price > 0 else None
    if signal.trigger is not None:
        return signal.trigger
    return _tick_price(signal.symbol, signal.side, view)


def _tick_price(symbol: str, side: Side, view: View) -> Decimal | None:
    tick = view.ticks.get(symbol)
    if tick is None or not tick.price > 0:
        return None
    return exact_decimal((tick.ask if side is Side.BUY else tick.bid) or tick.price)


def _reduction(quantity: Decimal, held: Decimal, price: Decimal, instrument: Instrument) -> Decimal:
    """Limit what reduces a position to what is held; it leaves no dust."""
    leaves_dust = (held - quantity) * price < instrument.min_order_value
    return held if leaves_dust else min(quantity, held)


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


OrderSlot = tuple[str, str, Side]  # of a strategy and a symbol


def slots_of(key: str, order: Signal | OrderProposal) -> set[OrderSlot]:
    symbol = symbol_of(order)
    return {(key, symbol, side) for side in sides_in_flight(order)}


def sides_in_flight(order: Signal | OrderProposal) -> tuple[Side, ...]:
    """Return the sides of its symbol that an order occupies; one that may rest its own alone.

    A stop order occupies none: it trades later, if at all.
    """
    if getattr(order, "trigger", None) is not None:
        return ()
    is_limit = getattr(order, "type", None) is OrderType.LIMIT
    rests = is_limit and order.time_in_force not in FILL_AT_ONCE
    return (order.side,) if rests else (Side.BUY, Side.SELL)


def one_of_each(signals: list[Signal]) -> list[Signal]:
    """Return the latest signal per symbol and side; an exit displaces entries that contradict it.

    Two entries of opposite sides stay: both are refused (GR030).
    """
    exits = [each for each in signals if _is_exit(each)]
    kept = [
        each
        for each in signals
        if _is_exit(each) or not any(_excludes(exiting, each) for exiting in exits)
    ]
    return list({(symbol_of(each), getattr(each, "side", None)): each for each in kept}.values())


def symbol_of(signal: Signal | OrderProposal) -> str:
    """Return its symbol; a later step refuses what is not a signal."""
    return getattr(signal, "symbol", "")


def _excludes(exiting: Signal, entry: Signal) -> bool:
    if exiting.symbol != symbol_of(entry) or not isinstance(entry, Signal):
        return False
    return exiting.side is entry.side or contradict((exiting, entry))


def _is_exit(signal: Signal) -> bool:
    return getattr(getattr(signal, "intent_type", None), "is_exit", False)
