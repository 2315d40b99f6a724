"""Round trips: from the first fill of a symbol that we have nothing of until nothing is left."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import msgspec

from qts.domain import Fill, Side
from qts.risk import OrderProposal


class Trade(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str
    opened_at: datetime
    closed_at: datetime
    quantity: Decimal  # bought (or sold short) in all
    entry: Decimal  # average prices
    exit: Decimal
    fees: Decimal
    profit: Decimal  # after fees and taxes
    reason: str  # of the last exit

    @property
    def gain(self) -> float:
        """As a part of what was paid."""
        return float(self.profit / (self.entry * self.quantity))


class OpenTrade:
    """A trade while it goes on."""

    def __init__(self) -> None:
        self._fills: list[Fill] = []
        self._reason = ""

    def add(self, fill: Fill, proposal: OrderProposal) -> None:
        self._fills.append(fill)
        self._reason = proposal.intent_type

    def ended(self) -> Trade:
        first, last = self._fills[0], self._fills[-1]
        came = [fill for fill in self._fills if fill.side is first.side]
        left = [fill for fill in self._fills if fill.side is not first.side]
        fees = sum((fill.fee for fill in self._fills), Decimal(0))
        quantity, paid = _sum(came)
        sold, got = _sum(left)
        sign = 1 if first.side is Side.BUY else -1
        return Trade(
            symbol=first.symbol,
            opened_at=first.at,
            closed_at=last.at,
            quantity=quantity,
            entry=paid / quantity,
            exit=got / sold if sold else Decimal(0),
            fees=fees,
            profit=(got - paid) * sign - fees,
            reason=self._reason,
        )


def _sum(fills: list[Fill]) -> tuple[Decimal, Decimal]:
    quantity = sum((fill.quantity for fill in fills), Decimal(0))
    return quantity, sum((fill.quantity * fill.price for fill in fills), Decimal(0))
