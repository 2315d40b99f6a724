"""Orders of one day, of the run or of its backtest, in one shape."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext
from uuid import UUID

import msgspec

from qts.domain import Fill, Side
from qts.pipeline import SignalOutcome

ZERO = Decimal(0)
_PRICE = Decimal("0.00000001")
_DIGITS = 120


def exact() -> AbstractContextManager[Context]:
    """Return a context in which sums and products of stored numbers are exact."""
    return localcontext(prec=_DIGITS)


def clean(value: Decimal) -> Decimal:
    """Return the number without trailing zeros."""
    with exact():
        return Decimal(f"{value.normalize():f}")


def plain(value: Decimal) -> str:
    """Format a number without trailing zeros."""
    return f"{clean(value):,f}"


class DayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order with its fills; times are seconds since 1970."""

    strategy: str
    symbol: str
    side: Side
    decided_at: float  # of the tick or bar behind its signal
    reached_at: float  # when the venue had it
    quantity: Decimal
    asked: str = ""  # by the signal; empty: as large as one order may be
    limit: Decimal | None = None
    signal_id: UUID | None = None
    fills: tuple[Fill, ...] = ()
    ended: str = ""  # why it ended without its whole fill, if that is known
    reason: str = ""  # of the signal
    is_earlier: bool = False  # from before the first run

    @property
    def filled(self) -> Decimal:
        return sum((fill.quantity for fill in self.fills), ZERO)

    @property
    def value(self) -> Decimal:
        return sum((fill.quantity * fill.price for fill in self.fills), ZERO)

    @property
    def fees(self) -> Decimal:
        return sum((fill.fee for fill in self.fills), ZERO)

    @property
    def price(self) -> Decimal | None:
        """Average price of its fills."""
        return (self.value / self.filled).quantize(_PRICE) if self.fills else None

    @property
    def traded_at(self) -> float:
        """When it first traded; not before the venue had it, by whatever clock."""
        if not self.fills:
            return self.reached_at
        return max(self.reached_at, min(fill.at for fill in self.fills).timestamp())


class DayLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Orders of a day on one side, and the signals that did not become one."""

    orders: Sequence[DayOrder] = ()
    refused: Sequence[SignalOutcome] = ()

    @property
    def fees(self) -> Decimal:
        return sum((order.fees for order in self.orders), ZERO)

    @property
    def fills(self) -> int:
        return sum(len(order.fills) for order in self.orders)
