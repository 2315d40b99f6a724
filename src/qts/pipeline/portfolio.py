"""The latest tick of every symbol and what is held: the world a strategy sees.

Ticks come on lane threads, positions on the loop; a view is a copy of both.
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
    """The tick that a PRICE_TICK event tells of."""
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
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticks: dict[str, Tick] = {}
        self._heard_ns: dict[str, int] = {}
        self._positions: dict[str, Position] = {}
        self._cash = Decimal(0)
        self.owners: dict[str, str] = {}  # symbol to the strategy that holds it or is buying it

    def apply_tick(self, tick: Tick) -> None:
        self._ticks[tick.symbol] = tick
        self._heard_ns[tick.symbol] = self._clock.monotonic_ns()

    def last_tick(self, symbol: str) -> Tick | None:
        return self._ticks.get(symbol)

    def age_ms(self, tick: Tick) -> float:
        """Since the latest tick of its symbol; a clock that is set back makes it old, not young."""
        heard_ns = self._heard_ns.get(tick.symbol)
        wall_ms = (self._clock.now().timestamp() - tick.at) * 1000
        if heard_ns is None or wall_ms < 0:
            return math.inf
        return max(wall_ms, (self._clock.monotonic_ns() - heard_ns) / 1e6)

    def load(self, cash: Decimal, positions: Iterable[Position]) -> None:
        """What the books say, at the start and after each comparison with the broker."""
        self._cash = cash
        self._positions = {each.symbol: each for each in positions if each.quantity}

    def apply_fill(self, change: FillApplied) -> None:
        fill = change.fill
        cash = self._cash - (fill.side.sign * fill.quantity * fill.price + fill.fee)
        self._hold(Position(fill.symbol, change.position, change.average_price), cash)

    def _hold(self, position: Position, cash: Decimal) -> None:
        self._cash = cash
        if position.quantity:
            self._positions[position.symbol] = position
        else:
            self._positions.pop(position.symbol, None)
            self.owners.pop(position.symbol, None)

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        """This strategy holds it, or is buying it."""
        self.owners[symbol] = strategy_key

    @property
    def version(self) -> int:
        """How many changes there were, where they are counted."""
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
