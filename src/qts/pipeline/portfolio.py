"""The portfolio: cash, positions and the last tick of every symbol.

Ticks come from lane threads, positions from the loop; a view is a copy of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from qts.domain import Account, Clock, Holding, Position, Tick
from qts.events import Event
from qts.orders import FillApplied
from qts.strategies import View


def tick_from_event(event: Event) -> Tick:
    """Return the tick of a PRICE_TICK event."""
    payload = event.payload
    return Tick(
        payload.symbol,
        payload.price,
        payload.volume,
        payload.bid or payload.price,
        payload.ask or payload.price,
        event.timestamp,
    )


class Portfolio:
    """What a strategy sees through a `View`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticks: dict[str, Tick] = {}
        self._received_ns: dict[str, int] = {}
        self._positions: dict[str, Position] = {}
        self._cash = Decimal(0)
        self.owners: dict[str, str] = {}  # symbol to the strategy that holds or buys it

    def apply_tick(self, tick: Tick) -> None:
        self._ticks[tick.symbol] = tick
        self._received_ns[tick.symbol] = self._clock.monotonic_ns()

    def last_tick(self, symbol: str) -> Tick | None:
        return self._ticks.get(symbol)

    def age_ms(self, tick: Tick) -> float:
        """Return the age of a tick; after a clock that was set back it is infinite."""
        received_ns = self._received_ns.get(tick.symbol)
        wall_ms = (self._clock.now().timestamp() - tick.at) * 1000
        if received_ns is None or wall_ms < 0:
            return math.inf
        return max(wall_ms, (self._clock.monotonic_ns() - received_ns) / 1e6)

    def load(self, cash: Decimal, positions: Iterable[Position]) -> None:
        """Replace cash and positions, from the ledger."""
        self._cash = cash
        self._positions = {each.symbol: each for each in positions if each.quantity}

    def set_cash(self, cash: Decimal) -> None:
        """Replace the cash by the venue's."""
        if cash != self._cash:
            self.load(cash, self._positions.values())

    def apply_fill(self, change: FillApplied) -> None:
        fill = change.fill
        cash = self._cash - (fill.side.sign * fill.quantity * fill.price + fill.fee)
        self._set_position(Position(fill.symbol, change.position, change.average_price), cash)

    def _set_position(self, position: Position, cash: Decimal) -> None:
        self._cash = cash
        if position.quantity:
            self._positions[position.symbol] = position
        else:
            self._positions.pop(position.symbol, None)
            self.owners.pop(position.symbol, None)

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        """Record the strategy that holds or buys the symbol; an empty key: none does."""
        if strategy_key:
            self.owners[symbol] = strategy_key
        else:
            self.owners.pop(symbol, None)

    @property
    def version(self) -> int:
        """Number of changes, where they are journaled."""
        return 0

    @property
    def cash(self) -> Decimal:
        return self._cash

    @property
    def positions(self) -> dict[str, Position]:
        return dict(self._positions)

    def price(self, position: Position) -> Decimal:
        tick = self._ticks.get(position.symbol)
        return Decimal(str(tick.price)) if tick else position.average_price

    @property
    def equity(self) -> Decimal:
        held = list(self._positions.values())
        return self._cash + sum((self.price(each) * each.quantity for each in held), Decimal(0))

    @property
    def unrealised(self) -> Decimal:
        held = list(self._positions.values())
        return sum(
            ((self.price(each) - each.average_price) * each.quantity for each in held), Decimal(0)
        )

    def view(self) -> View:
        positions = self.positions
        holdings = tuple(
            Holding(symbol=p.symbol, quantity=p.quantity, average_price=p.average_price)
            for p in positions.values()
        )
        return View(
            self._clock.now(),
            self._ticks.copy(),
            positions,
            Account(cash=self._cash, holdings=holdings),
            self.equity,
        )
