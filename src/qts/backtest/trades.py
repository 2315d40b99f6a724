"""Trades: round trips from the fill that opens a position to the fill that closes it."""

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
    quantity: Decimal  # total bought, or sold short
    entry: Decimal  # average prices
    exit: Decimal
    fees: Decimal
    profit: Decimal  # after fees and taxes
    reason: str  # of the last exit

    @property
    def gain(self) -> float:
        """Return the profit as a fraction of the entry value."""
        return float(self.profit / (self.entry * self.quantity))


class OpenTrade:
    """Fills of a trade so far."""

    def __init__(self) -> None:
        self._fills: list[Fill] = []
        self._reason = ""

    def add(self, fill: Fill, proposal: OrderProposal) -> None:
        self._fills.append(fill)
        self._reason = proposal.intent_type

    def to_trade(self) -> Trade:
        first, last = self._fills[0], self._fills[-1]
        entries = [fill for fill in self._fills if fill.side is first.side]
        exits = [fill for fill in self._fills if fill.side is not first.side]
        fees = sum((fill.fee for fill in self._fills), Decimal(0))
        quantity, entry_value = _totals(entries)
        closed, exit_value = _totals(exits)
        sign = 1 if first.side is Side.BUY else -1
        return Trade(
            symbol=first.symbol,
            opened_at=first.at,
            closed_at=last.at,
            quantity=quantity,
            entry=entry_value / quantity,
            exit=exit_value / closed if closed else Decimal(0),
            fees=fees,
            profit=(exit_value - entry_value) * sign - fees,
            reason=self._reason,
        )


def _totals(fills: list[Fill]) -> tuple[Decimal, Decimal]:
    quantity = sum((fill.quantity for fill in fills), Decimal(0))
    return quantity, sum((fill.quantity * fill.price for fill in fills), Decimal(0))
