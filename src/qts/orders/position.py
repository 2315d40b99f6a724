"""Position arithmetic: quantity, average price and realised profit after fills, and mismatches.

Cost is averaged. A fill that reduces realises (its price - average) x quantity; one that goes
through zero closes all of the old side and opens the new one at its own price. Fees are
separate: profit here is before fees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal

import msgspec

from qts.database import Row
from qts.domain import Account, Fill

ZERO = Decimal(0)
_PLACES = Decimal(1).scaleb(-18)  # as the database stores them
_EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN)


class PositionState(msgspec.Struct, frozen=True, kw_only=True):
    """A position after some fills."""

    quantity: Decimal = ZERO
    average_price: Decimal = ZERO
    realised_pnl: Decimal = ZERO
    fees: Decimal = ZERO
    opened_at: datetime | None = None

    def apply(self, fill: Fill) -> PositionState:
        delta = fill.quantity * fill.side.sign
        quantity = self.quantity + delta
        fees = self.fees + fill.fee
        if not self.quantity:
            return PositionState(
                quantity=quantity,
                average_price=_cut(fill.price),
                realised_pnl=self.realised_pnl,
                fees=fees,
                opened_at=fill.at,
            )
        if self.quantity * delta >= 0:  # adds to the same side
            cost = _EXACT.add(
                _EXACT.multiply(abs(self.quantity), self.average_price),
                _EXACT.multiply(fill.quantity, fill.price),
            )
            return PositionState(
                quantity=quantity,
                average_price=_cut(_EXACT.divide(cost, abs(quantity))),
                realised_pnl=self.realised_pnl,
                fees=fees,
                opened_at=self.opened_at,
            )
        closed = min(abs(self.quantity), fill.quantity)
        direction = 1 if self.quantity > 0 else -1
        gain = _cut(_EXACT.multiply(fill.price - self.average_price, closed * direction))
        flips = quantity * direction < 0
        return PositionState(
            quantity=quantity,
            average_price=fill.price if flips else self.average_price if quantity else ZERO,
            realised_pnl=self.realised_pnl + gain,
            fees=fees,
            opened_at=fill.at if flips else self.opened_at if quantity else None,
        )

    @staticmethod
    def average(entry: Decimal) -> Decimal:
        """Return the average price of a position that one purchase opened."""
        return _cut(entry)

    @staticmethod
    def gain(entry: Decimal, price: Decimal, quantity: Decimal) -> Decimal:
        """Return what selling all of a position realises that one purchase opened."""
        return _cut(_EXACT.multiply(price - _cut(entry), quantity))


def apply_fills(
    fills: Iterable[Fill], start: PositionState | None = None
) -> tuple[PositionState, list[Decimal]]:
    """Return the position after all fills, in order, and what each realised."""
    book, gains = start or PositionState(), []
    for fill in fills:
        after = book.apply(fill)
        gains.append(after.realised_pnl - book.realised_pnl)
        book = after
    return book, gains


def _cut(value: Decimal) -> Decimal:
    return value.quantize(_PLACES, context=_EXACT)


def quantities_between(now: Decimal, fills: Sequence[Decimal], before: Decimal) -> set[Decimal]:
    """Return a position's quantities from `before` until now; `fills` are the newest first."""
    found = {now}
    for fill in fills:
        if now == before:
            break
        now -= fill
        found.add(now)
    return found


class PositionMismatch(msgspec.Struct, frozen=True):
    """A symbol whose holding at the venue is not our position and the baseline."""

    symbol: str
    ours: Decimal  # position and baseline
    venue: Decimal


def find_mismatches(
    account: Account, positions: Sequence[Row], baseline: Mapping[str, Decimal]
) -> tuple[PositionMismatch, ...]:
    """Return the symbols whose holding at the venue is not our position and the baseline."""
    venue = {holding.symbol: holding.quantity for holding in account.holdings}
    ours = dict(baseline)
    for row in positions:
        ours[row["symbol"]] = ours.get(row["symbol"], ZERO) + row["quantity"]
    pairs = [(s, ours.get(s, ZERO), venue.get(s, ZERO)) for s in sorted({*ours, *venue})]
    return tuple(PositionMismatch(s, here, there) for s, here, there in pairs if here != there)
