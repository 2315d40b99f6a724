"""Values of the ledger: SQL statements, rows, position arithmetic, and the updates that follow.

The statements are in `queries.sql`.

Cost is averaged. A fill that reduces realises (its price - average) x quantity; one that goes
through zero closes all of the old side and opens the new one at its own price. Fees are
separate: profit here is before fees.

Updates are published in this process after their commit, in the order of the commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Protocol
from uuid import UUID

import msgspec

from qts.database import Row, load_queries
from qts.domain import Account, AttemptState, Fill, OrderState, Side

SQL = load_queries("qts.orders")

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


TradeKey = tuple[datetime, str]
_KNOWN = (
    "order_attempt_id",
    "origin",
    "symbol",
    "side",
    "quantity",
    "filled",
    "applied",
    "state",
)


class LedgerOrder(msgspec.Struct, frozen=True):
    """The row of an order after an update."""

    attempt_id: UUID | None
    origin: str
    symbol: str
    side: str
    quantity: Decimal | None
    filled: Decimal
    applied: Decimal
    state: str


def known_order(row: Row | None) -> LedgerOrder:
    if row is None:
        raise AssertionError("an upsert returns its row")
    return LedgerOrder(*(row[name] for name in _KNOWN))


def trade_key(fill: Fill) -> TradeKey:
    return fill.at, fill.trade_id


def last_trade_key(at: datetime | None, trade_id: str | None) -> TradeKey | None:
    return None if at is None or trade_id is None else (at, trade_id)


def applicable_fills(waiting: list[Fill], row: Row) -> list[Fill]:
    """Return the fills that keep a long-only position at zero or above; the newest sells wait."""
    if row["allows_short"]:
        return waiting
    left = row["quantity"] + sum((fill.quantity * fill.side.sign for fill in waiting), ZERO)
    applicable = list(waiting)
    for fill in reversed(waiting):
        if left >= 0:
            break
        if fill.side is Side.SELL:
            applicable.remove(fill)
            left += fill.quantity
    return applicable


def position_state(row: Row) -> PositionState:
    return PositionState(
        quantity=row["quantity"],
        average_price=row["average_price"],
        realised_pnl=row["realised_pnl"],
        fees=row["fees"],
        opened_at=row["opened_at"],
    )


def fill_of(row: Row) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["broker_order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=row["quantity"],
        price=row["price"],
        fee=row["fee"],
        at=row["traded_at"],
    )


class AttemptChanged(msgspec.Struct, frozen=True, kw_only=True):
    intent_id: UUID
    attempt_id: UUID
    strategy_key: str
    symbol: str
    side: Side
    quantity: Decimal
    state: AttemptState
    order_id: str | None = None
    code: str = ""
    reason: str = ""
    price: Decimal | None = None  # its limit, if it has one
    is_last: bool = False  # not placed, and no attempt follows


class IntentRef(msgspec.Struct, frozen=True):
    """The intent that an order belongs to."""

    intent_id: UUID
    strategy_key: str


class OrderChanged(msgspec.Struct, frozen=True, kw_only=True):
    """An order after a report; `closed` is the intent that this change ended, if it did."""

    order_id: str
    symbol: str
    side: Side
    state: OrderState
    quantity: Decimal | None  # None while only a fill is known
    filled: Decimal
    attempt_id: UUID | None
    closed: IntentRef | None = None


class FillReported(msgspec.Struct, frozen=True):
    """A fill as its venue reported it, before the ledger has it; perhaps not for the first time."""

    fill: Fill


class FillApplied(msgspec.Struct, frozen=True, kw_only=True):
    """A fill, and the position with it; `counted` is false for orders that are not ours."""

    fill: Fill
    attempt_id: UUID | None
    counted: bool
    position: Decimal
    average_price: Decimal
    realised_pnl: Decimal
    opened_at: datetime | None = None  # since when the position is not flat, on its side
    intent: IntentRef | None = None  # None: no order of ours
    remaining: Decimal = Decimal(0)  # of its order, after this fill


class SuspensionChanged(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str  # * is the whole venue
    suspended: bool
    code: str = ""


OrderUpdate = AttemptChanged | OrderChanged | FillReported | FillApplied | SuspensionChanged
OrderListener = Callable[[OrderUpdate], None]


class AccountListener(Protocol):
    """Takes the venue's cash from the readings of the reconciliation."""

    def reading_began(self) -> int:
        """Return a mark that every fill changes."""
        ...

    def account_read(self, began: int, cash: Decimal, positions: Mapping[str, Decimal]) -> None:
        """Take the cash of a reading that agrees with the ledger, whose positions are given.

        `began` is the mark from before the reading.
        """
        ...
