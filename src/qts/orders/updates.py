"""Order updates: published in this process after their commit, in the order of the commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Protocol
from uuid import UUID

import msgspec

from qts.domain import AttemptState, Fill, OrderState, Side


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
