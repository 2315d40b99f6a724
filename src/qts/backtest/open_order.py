"""Open order of a backtest, and who takes what happens to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

import msgspec

from qts.domain import OrderSnapshot, Side
from qts.pipeline import StrategyUpdate, sides_in_flight
from qts.risk import OrderProposal

UpdateTakers = Mapping[str, Callable[[StrategyUpdate], None]]  # by the key of their strategy


class BacktestOrder(msgspec.Struct):
    """Open order at the venue."""

    order_id: str
    proposal: OrderProposal
    at: float
    remaining: Decimal

    def snapshot(self, state: str, reason: str = "") -> OrderSnapshot:
        return OrderSnapshot(
            intent_id=self.order_id,
            symbol=self.proposal.symbol,
            side=self.proposal.side,
            state=state,
            filled=self.proposal.quantity - self.remaining,
            remaining=self.remaining,
            reason=reason,
            price=self.proposal.price,
            strategy_key=self.proposal.strategy_key,
        )

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides that it occupies while it is in flight: a market order both."""
        return sides_in_flight(self.proposal)
