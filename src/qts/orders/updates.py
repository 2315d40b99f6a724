"""Order updates: published in this process after their commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Protocol
from uuid import UUID

import msgspec

from qts.domain import AttemptState, Fill, OrderState


class AttemptChanged(msgspec.Struct, frozen=True, kw_only=True):
    intent_id: UUID
    attempt_id: UUID
    symbol: str
    state: AttemptState
    order_id: str | None = None
    code: str = ""
    reason: str = ""


class OrderChanged(msgspec.Struct, frozen=True, kw_only=True):
    order_id: str
    symbol: str
    state: OrderState
    quantity: Decimal | None  # None while only a fill is known
    filled: Decimal
    attempt_id: UUID | None


class FillApplied(msgspec.Struct, frozen=True, kw_only=True):
    """A fill, and the position with it; `counted` is false for orders that are not ours."""

    fill: Fill
    attempt_id: UUID | None
    counted: bool
    position: Decimal
    average_price: Decimal
    realised_pnl: Decimal
    opened_at: datetime | None = None  # since when the position is not flat, on its side


class SuspensionChanged(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str  # * is the whole venue
    suspended: bool
    code: str = ""


OrderUpdate = AttemptChanged | OrderChanged | FillApplied | SuspensionChanged
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


def ignore_update(_change: OrderUpdate) -> None:
    """Listener for callers without one."""
