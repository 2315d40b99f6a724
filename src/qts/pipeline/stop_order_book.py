"""Stop orders that wait for their price, live and in a backtest alike.

    signal with a trigger ─▶ sized by the steps ─▶ WAITING ─┬─ a trade reaches it ─▶ TRIGGERED
                                                            ├─ cancelled, or its time is over
                                                            └─ a signal without it ─▶ five steps

The signal of a triggered order has the time of the one that placed it, and so its id: however often
it is triggered, it leads to one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

import msgspec

from qts.domain import (
    FILL_AT_ONCE,
    Instrument,
    OrderSnapshot,
    OrderTerms,
    TimeInForce,
    good_until,
)
from qts.risk import OrderProposal
from qts.strategies import Signal

TRIGGERED = "TRIGGERED"
_MIN_LIFETIME_S = 0.001


class StopOrder(msgspec.Struct, frozen=True):
    """A stop order; its proposal is sized by the price of the trigger."""

    proposal: OrderProposal
    until: datetime | None  # then it has ended; None: never

    @property
    def id(self) -> UUID:
        return self.proposal.signal_id

    @property
    def strategy_key(self) -> str:
        return self.proposal.strategy_key

    @property
    def level(self) -> float:
        return float(self.proposal.trigger or 0)

    def is_reached(self, price: float) -> bool:
        return (price - self.level) * self.proposal.side.sign >= 0

    def snapshot(self, state: str, reason: str = "") -> OrderSnapshot:
        proposal = self.proposal
        return OrderSnapshot(
            intent_id=str(self.id),
            symbol=proposal.symbol,
            side=proposal.side,
            state=state,
            filled=proposal.quantity * 0,
            remaining=proposal.quantity,
            reason=reason,
            price=proposal.price,
            strategy_key=proposal.strategy_key,
            trigger=proposal.trigger,
        )

    @property
    def terms(self) -> OrderTerms:
        """What a replacement takes over."""
        proposal = self.proposal
        return OrderTerms(
            proposal.strategy_key,
            proposal.intent_type,
            proposal.time_in_force,
            proposal.reason,
            proposal.exits,
        )

    def signal(self, now: datetime, instrument: Instrument) -> Signal:
        """Return the signal for the order that it becomes."""
        proposal, exits = self.proposal, self.proposal.exits
        return Signal(
            symbol=proposal.symbol,
            side=proposal.side,
            at=proposal.decided_at.timestamp(),
            quantity=proposal.quantity,
            type=proposal.type,
            price=proposal.price,
            intent_type=proposal.intent_type,
            reason=proposal.reason,
            time_in_force=self._lifetime(now, instrument),
            stop=exits.stop if exits else None,
            target=exits.target if exits else None,
            trail=exits.trail if exits else None,
        )

    def _lifetime(self, now: datetime, instrument: Instrument) -> TimeInForce | float:
        """Return how long the order may rest: what the wait has left of its seconds."""
        given = self.proposal.time_in_force
        if isinstance(given, TimeInForce):
            is_day = given is TimeInForce.GTC and instrument.orders_end_with_day
            return TimeInForce.DAY if is_day else given
        left_s = (self.until - now).total_seconds() if self.until is not None else given
        return max(left_s, _MIN_LIFETIME_S)


def waits_until(time_in_force: TimeInForce | float, at: datetime) -> datetime | None:
    """Return how long a stop order waits; what must fill at once waits for the rest of the day."""
    return good_until(TimeInForce.DAY if time_in_force in FILL_AT_ONCE else time_in_force, at)


class StopOrderBook:
    """Stop orders that wait, by symbol; each in the order of its arrival."""

    def __init__(self) -> None:
        self.by_symbol: dict[str, dict[UUID, StopOrder]] = {}

    def __contains__(self, symbol: object) -> bool:
        return symbol in self.by_symbol

    def __iter__(self) -> Iterator[StopOrder]:
        for orders in self.by_symbol.values():
            yield from orders.values()

    def of(self, symbol: str) -> tuple[StopOrder, ...]:
        return tuple(self.by_symbol.get(symbol, {}).values())

    def get(self, id_: UUID) -> StopOrder | None:
        return next((each for each in self if each.id == id_), None)

    def add(self, order: StopOrder) -> None:
        self.by_symbol.setdefault(order.proposal.symbol, {})[order.id] = order

    def remove(self, order: StopOrder) -> None:
        symbol = order.proposal.symbol
        del self.by_symbol[symbol][order.id]
        if not self.by_symbol[symbol]:
            del self.by_symbol[symbol]

    def reached(self, symbol: str, price: float) -> list[StopOrder]:
        """Return the orders of a symbol that a trade at this price triggers."""
        return [each for each in self.of(symbol) if each.is_reached(price)]

    def overdue(self, now: datetime) -> list[StopOrder]:
        return [each for each in self if each.until is not None and each.until <= now]
