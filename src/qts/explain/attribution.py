"""Attribution: the difference between a day and its backtest, order by order.

A fill adds `sign x quantity x (last price - price) - fee` to what a day earned, on both sides with
the same last price. So the difference is a sum over orders, and each order, or pair of orders of
one signal, is taken from the backtest to the run in steps whose sum is its difference:

    only one side has the order   signal, or gate: the other side's signal was refused
                                  manual: an order of the operator, which a backtest never has
    both have it                  size ─▶ gate (signal, if it asked for another size)
                                  the market when the venue had it ─▶ delay
                                  what was filled, at which price, against that market ─▶ fill
    fees of the run above those of the settings, for the same fills ─▶ cost

What one side holds more than the other was opened by such a step. An order without counterpart, or
a size, that closes it again belongs to that step: a refused entry has its exit with it. A manual
order is manual as a whole, whatever it closes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Literal, NamedTuple

import msgspec

from qts.domain import MANUAL, Side
from qts.explain.ledger import (
    ZERO,
    DayLedger,
    DayOrder,
    Pair,
    clean,
    exact,
    kind_of,
    pair_orders,
    plain,
)
from qts.explain.replayed import Prices
from qts.pipeline import SignalOutcome

PartName = Literal["signal", "gate", "manual", "delay", "fill", "cost"]
PARTS: tuple[PartName, ...] = ("signal", "gate", "manual", "delay", "fill", "cost")
_SMALLEST = Decimal("0.00000001")

Charge = Callable[[str, Side, Decimal], Decimal]  # symbol, side and amount of one fill to its fee


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the difference, and the order behind it."""

    part: PartName
    won: Decimal
    reason: str
    strategy: str
    symbol: str
    side: Side
    at: datetime
    live_quantity: Decimal | None = None  # filled; None: no order
    live_price: Decimal | None = None
    backtest_quantity: Decimal | None = None
    backtest_price: Decimal | None = None


class Cause(NamedTuple):
    part: PartName
    reason: str


def attribute(
    live: DayLedger,
    backtest: DayLedger,
    prices: Mapping[str, Prices],
    charge: Charge,
    tolerance_s: float,
) -> list[Item]:
    """Return the parts of the difference, in order of time; those of 0 won are left out."""
    with exact():
        attribution = _Attribution(live, backtest, prices, charge, tolerance_s)
        pairs = pair_orders(live.orders, backtest.orders, tolerance_s)
        items = [item for pair in pairs for item in attribution.items(*pair)]
    return [item for item in items if item.won]


def needed_moments(ledgers: Sequence[DayLedger]) -> dict[str, set[float]]:
    """Return the moments of each symbol at which `attribute` needs a quote."""
    found: defaultdict[str, set[float]] = defaultdict(set)
    for order in chain.from_iterable(ledger.orders for ledger in ledgers):
        found[order.symbol] |= {order.reached_at, order.traded_at}
    return found


def last_prices(ledgers: Sequence[DayLedger], prices: Mapping[str, Prices]) -> dict[str, Decimal]:
    """Return what positions are worth at the end: by the record, else by the last fill."""
    found = {symbol: Decimal(repr(each.last)) for symbol, each in prices.items()}
    orders = chain.from_iterable(ledger.orders for ledger in ledgers)
    fills = sorted(chain.from_iterable(order.fills for order in orders), key=lambda fill: fill.at)
    unknown = {fill.symbol: fill.price for fill in fills if fill.symbol not in found}
    return found | unknown


def earned(ledger: DayLedger, last: Mapping[str, Decimal]) -> Decimal:
    """Return what the fills of a day earned, with positions at their last prices."""
    with exact():
        return sum(
            (
                order.side.sign * (order.filled * last[order.symbol] - order.value) - order.fees
                for order in ledger.orders
                if order.fills
            ),
            ZERO,
        )


class _Gap:
    """What the run holds more of a symbol than the backtest, with the causes, oldest first."""

    def __init__(self) -> None:
        self._open: deque[tuple[Decimal, Cause]] = deque()

    def change(self, quantity: Decimal, own: Cause) -> list[tuple[Decimal, Cause]]:
        """Change it; return the quantity in parts: what closes it has the cause that opened it."""
        parts = []
        while quantity and self._open and self._open[0][0] * quantity < 0:
            held, cause = self._open.popleft()
            closed = max(quantity, -held) if quantity < 0 else min(quantity, -held)
            parts.append((closed, cause))
            quantity -= closed
            if held + closed:
                self._open.appendleft((held + closed, cause))
        if quantity:
            self._open.append((quantity, own))
        if quantity or not parts:
            parts.append((quantity, own))
        return parts


class _Attribution:
    """Steps from the orders of the backtest to those of the run, in order of time."""

    def __init__(
        self,
        live: DayLedger,
        backtest: DayLedger,
        prices: Mapping[str, Prices],
        charge: Charge,
        tolerance_s: float,
    ) -> None:
        self._prices = prices
        self._last = last_prices((live, backtest), prices)
        self._charge = charge
        self._live_refusals = _Refusals(live.refused, tolerance_s)
        self._backtest_refusals = _Refusals(backtest.refused, tolerance_s)
        self._gaps: defaultdict[str, _Gap] = defaultdict(_Gap)

    def items(self, live: DayOrder | None, backtest: DayOrder | None) -> Iterator[Item]:
        yield self._cost(live, backtest)
        if live is not None and backtest is not None:
            both_filled = bool(live.fills and backtest.fills)
            steps = self._steps if both_filled else self._one_filled
            yield from steps(live, backtest)
        elif live is not None and live.strategy == MANUAL:
            self._gaps[live.symbol].change(live.side.sign * live.filled, cause := _manual(live))
            yield _item(cause, self._net(live), live, None)
        elif live is not None:
            cause = self._cause(live, self._backtest_refusals, ("run", "backtest"))
            yield from self._only(live, cause, self._net(live), (live, None))
        elif backtest is not None:
            cause = self._cause(backtest, self._live_refusals, ("backtest", "run"))
            yield from self._only(backtest, cause, -self._net(backtest), (None, backtest))

    def _cost(self, live: DayOrder | None, backtest: DayOrder | None) -> Item:
        """What each side paid above the fees of the settings for its own fills."""
        ours, theirs = (
            order.fees - self._usual_fees(order) if order is not None else ZERO
            for order in (live, backtest)
        )
        text = f"fees above those of the settings: {plain(ours)}, in the backtest {plain(theirs)}"
        return _item(Cause("cost", text), theirs - ours, live, backtest)

    def _only(self, order: DayOrder, cause: Cause, won: Decimal, pair: Pair) -> Iterator[Item]:
        """An order that one side has."""
        quantity = order.side.sign * order.filled * (1 if pair[0] is order else -1)
        for part, part_cause in self._split(order.symbol, quantity, won, cause):
            yield _item(part_cause, part, *pair)

    def _one_filled(self, live: DayOrder, backtest: DayOrder) -> Iterator[Item]:
        """Orders of both sides of which one was filled, or none."""
        won = self._net(live) - self._net(backtest)
        quantity = live.side.sign * (live.filled - backtest.filled)
        cause = Cause("fill", _filled_text(live, backtest))
        for part, part_cause in self._split(live.symbol, quantity, won, cause):
            yield _item(part_cause, part, live, backtest)

    def _steps(self, live: DayOrder, backtest: DayOrder) -> Iterator[Item]:
        """Orders that both sides filled, at least in part."""
        symbol, side, sign = live.symbol, live.side, live.side.sign
        last, gap = self._last[symbol], self._gaps[symbol]

        def net(quantity: Decimal, value: Decimal) -> Decimal:
            return sign * (quantity * last - value) - self._charge(symbol, side, value)

        quantity, value = backtest.filled, backtest.value
        start = net(quantity, value)
        if live.quantity != backtest.quantity:
            quantity = _scaled(quantity, live.quantity, backtest.quantity)
            value = _scaled(value, live.quantity, backtest.quantity)
        sized = net(quantity, value)
        more, cause = sign * (quantity - backtest.filled), _size_cause(live, backtest)
        for part, part_cause in self._split(symbol, more, sized - start, cause):
            yield _item(part_cause, part, live, backtest)
        there, then = self._market(backtest), self._market(live)
        value += quantity * (then - there)
        reached = net(quantity, value)
        text = f"market {plain(then)} when the venue had it, in the backtest {plain(there)}"
        yield _item(Cause("delay", text), reached - sized, live, backtest)
        # Fees of several fills are rounded one by one: the rest of the fees belongs to the fills.
        whole = self._net(live) - self._net(backtest)
        cause = Cause("fill", _filled_text(live, backtest))
        yield _item(cause, whole - (reached - start), live, backtest)
        gap.change(sign * (live.filled - quantity), cause)

    def _market(self, order: DayOrder) -> Decimal:
        """Return the quote when the venue had the order; a taker trades as it arrives."""
        prices = self._prices.get(order.symbol)
        if prices is None:
            return self._last[order.symbol]
        arrived = prices.quotes[order.reached_at].of(order.side)
        if order.limit is not None and (order.limit - arrived) * order.side.sign < 0:
            return arrived
        return prices.quotes[order.traded_at].of(order.side)

    def _net(self, order: DayOrder) -> Decimal:
        """Return what an order earned, with the fees of the settings."""
        if not order.fills:
            return ZERO
        gross = order.side.sign * (order.filled * self._last[order.symbol] - order.value)
        return gross - self._usual_fees(order)

    def _usual_fees(self, order: DayOrder) -> Decimal:
        charges = (
            self._charge(order.symbol, order.side, fill.quantity * fill.price)
            for fill in order.fills
        )
        return sum(charges, ZERO)

    def _split(
        self, symbol: str, quantity: Decimal, won: Decimal, own: Cause
    ) -> Iterator[tuple[Decimal, Cause]]:
        """Yield the won of a change of the gap by its causes; their sum is `won`."""
        parts, left = self._gaps[symbol].change(quantity, own), won
        for part, cause in parts[:-1]:
            share = _scaled(won, part, quantity)
            left -= share
            yield share, _closing(cause)
        last = parts[-1][1]
        yield left, last if last is own else _closing(last)

    @staticmethod
    def _cause(order: DayOrder, refusals: _Refusals, sides: tuple[str, str]) -> Cause:
        here, there = sides
        if order.is_earlier:
            return Cause("signal", "open since before the run, whose backtest begins without it")
        reason = refusals.near(order)
        if reason:
            return Cause("gate", f"refused in the {there}: {reason}")
        return Cause("signal", f"only the {here} had the signal")


class _Refusals:
    """Signals that did not become an order, by strategy, symbol and side, in order of time."""

    def __init__(self, refused: Sequence[SignalOutcome], tolerance_s: float) -> None:
        self._tolerance_s = tolerance_s
        self._found: defaultdict[object, list[tuple[float, str]]] = defaultdict(list)
        for each in sorted(refused, key=lambda outcome: outcome.at):
            if each.reason:
                kind = (each.strategy_key, each.symbol, each.side)
                self._found[kind].append((each.at, each.reason))

    def near(self, order: DayOrder) -> str:
        """Return why the signal nearest to that of an order was refused; empty: there is none."""
        found = self._found.get(kind_of(order), [])
        place = bisect_left(found, order.decided_at, key=lambda each: each[0])
        near = [(abs(at - order.decided_at), why) for at, why in found[max(0, place - 1) :][:2]]
        distance, reason = min(near, default=(float("inf"), ""))
        return reason if distance <= self._tolerance_s else ""


def _manual(order: DayOrder) -> Cause:
    return Cause("manual", f"manual order of {order.reason}" if order.reason else "manual order")


def _closing(cause: Cause) -> Cause:
    return Cause(cause.part, f"closes what differed: {cause.reason}")


def _item(cause: Cause, won: Decimal, live: DayOrder | None, backtest: DayOrder | None) -> Item:
    order = live or backtest
    assert order is not None  # noqa: S101 - one of a pair is there
    return Item(
        part=cause.part,
        won=clean(won),
        reason=cause.reason,
        strategy=order.strategy,
        symbol=order.symbol,
        side=order.side,
        at=datetime.fromtimestamp(order.decided_at, UTC),
        live_quantity=live.filled if live else None,
        live_price=live.price if live else None,
        backtest_quantity=backtest.filled if backtest else None,
        backtest_price=backtest.price if backtest else None,
    )


def _scaled(value: Decimal, numerator: Decimal, denominator: Decimal) -> Decimal:
    """Return a share of a value, rounded to whole won where the value has no fraction."""
    unit = Decimal(1) if value == value.to_integral_value() else _SMALLEST
    return (value * numerator / denominator).quantize(unit)


def _size_cause(live: DayOrder, backtest: DayOrder) -> Cause:
    text = f"the run ordered {plain(live.quantity)}, the backtest {plain(backtest.quantity)}"
    if live.asked != backtest.asked:
        asked = f"{live.asked or 'the most'}, in the backtest {backtest.asked or 'the most'}"
        return Cause("signal", f"{text}: the signals asked for {asked}")
    return Cause("gate", f"{text}: sized or cut by a limit, equity, cash or what is held")


def _filled_text(live: DayOrder, backtest: DayOrder) -> str:
    def text(order: DayOrder) -> str:
        if not order.fills:
            text = f"nothing of {plain(order.quantity)}"
            return f"{text} ({order.ended})" if order.ended else text
        price = (order.price or ZERO).quantize(Decimal("0.01"))
        return f"{plain(order.filled)} of {plain(order.quantity)} at {plain(price)}"

    return f"filled {text(live)}, in the backtest {text(backtest)}"
