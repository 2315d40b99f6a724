"""Portfolio and clock of a backtest; events move the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from qts.domain import (
    Account,
    ExitLevels,
    Instruments,
    OrderBook,
    OrderSnapshot,
    Position,
    Tick,
)
from qts.pipeline import Portfolio, PortfolioState, account_of, equity_of
from qts.strategies import StrategyBars, View

SEOUL_S = 9 * 3600
DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_BOOKS: Mapping[str, OrderBook] = {}
_NO_VIEW: tuple[None, None] = None, None


def day_of(at: float) -> int:
    """Return the day number of a time; days begin at midnight in Seoul (no daylight saving)."""
    return int((at + SEOUL_S) // DAY_S)


def day_end(at: float) -> float:
    return ((at + SEOUL_S) // DAY_S + 1) * DAY_S - SEOUL_S


class Place(Enum):
    """Where in its bar the current event is."""

    TICK = 0  # the tape has no bars
    INSIDE_BAR = 1  # at its open or later
    BAR_CLOSE = 2


class BacktestClock:
    """Clock at the time of the last event, with its place in a bar."""

    def __init__(self) -> None:
        self.at = 0.0
        self.place = Place.TICK
        self._now_at, self._now = 0.0, _EPOCH
        self._step_s, self._step = 0.0, timedelta()  # whole seconds, of the last change

    def now(self) -> datetime:
        if (at := self.at) != self._now_at:
            step_s, self._now_at = at - self._now_at, at
            if step_s == self._step_s:
                self._now += self._step
            else:
                self._now = datetime.fromtimestamp(at, UTC)
                if step_s.is_integer():
                    self._step_s, self._step = step_s, timedelta(seconds=step_s)
        return self._now

    def monotonic_ns(self) -> int:
        return round(self.at * 1e9)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a backtest must not sleep ({seconds} s)")


class Opening(NamedTuple):
    """Account that a backtest begins with; its open orders play no part."""

    account: PortfolioState
    exits: Mapping[str, ExitLevels] = {}  # of its positions, by symbol


class BacktestPortfolio(Portfolio):
    """Portfolio used by one thread; a view refers to the live ticks and copies nothing.

    Every fill replaces cash and positions, which views refer to. Owners and orders change in place.
    """

    _state = PortfolioState()

    def __init__(self, clock: BacktestClock, instruments: Instruments) -> None:
        super().__init__(clock, instruments)
        self._owners: dict[str, str] = {}
        self._orders: dict[str, OrderSnapshot] = {}
        self._account: tuple[object, Account] | None = None  # the state that it is of
        self._equity: tuple[object, Decimal] | None = None  # likewise, until the next tick
        self._views: dict[str, tuple[object, View]] = {}  # the last of a strategy, and its state
        self._latest: Mapping[str, Tick] = self._ticks
        self.apply_tick = self._keep_tick
        self.exits: dict[str, ExitLevels] = {}  # of the latest entry of a symbol

    def open_with(self, opening: Opening) -> None:
        """Take cash, positions, their owners and exits as they are before the first event."""
        account = opening.account
        self.load(account.cash, account.positions.values())
        for symbol in account.owners.keys() & account.positions.keys():
            self.set_owner(symbol, account.owners[symbol])
        self.exits |= opening.exits

    @property
    def owners(self) -> Mapping[str, str]:
        return self._owners

    @property
    def orders(self) -> Mapping[str, OrderSnapshot]:
        return self._orders

    def _change(self, make: Callable[[PortfolioState], Any]) -> None:
        self._state = self._state.after(make(self._state))

    def apply_position(self, position: Position, cash_change: Decimal) -> None:
        symbol, positions = position.symbol, dict(self._state.positions)
        if position.quantity:
            positions[symbol] = position
        else:
            positions.pop(symbol, None)
            self._owners.pop(symbol, None)
        self._state = PortfolioState(self._state.cash + cash_change, positions)

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        if strategy_key:
            self._owners[symbol] = strategy_key
        else:
            self._owners.pop(symbol, None)

    def set_order(self, order: OrderSnapshot, *, is_open: bool) -> None:
        if is_open:
            self._orders[order.intent_id] = order
            self._views.clear()
        else:
            self.end_order(order.intent_id)

    def end_order(self, intent_id: str) -> None:
        """Remove an order that has ended."""
        self._orders.pop(intent_id, None)
        self._views.clear()

    def _keep_tick(self, tick: Tick) -> None:
        self._ticks[tick.symbol] = tick
        self._equity = None

    def keep_ticks(self, ticks: Iterable[tuple[str, Tick]]) -> None:
        """Set the prices of several symbols."""
        self._ticks.update(ticks)
        self._equity = None

    @property
    def ticks(self) -> dict[str, Tick]:
        """The last tick of every symbol that was applied."""
        return self._ticks

    def keep_latest(self, symbol: str) -> None:
        """Have the last tick of a symbol among `ticks`: a player may keep it elsewhere."""
        if self._latest is not self._ticks:
            tick = self._latest.get(symbol)
            if tick is not None and tick != self._ticks.get(symbol):
                self._ticks[symbol] = tick

    def use_ticks(self, latest: Mapping[str, Tick]) -> None:
        """Read last ticks from this mapping from now on."""
        self._latest, self._equity = latest, None
        self._views.clear()

    def last_tick(self, symbol: str) -> Tick | None:
        return self._latest.get(symbol)

    def position(self, symbol: str) -> Position | None:
        return self._state.positions.get(symbol)

    @property
    def equity(self) -> Decimal:
        state = self._state
        if not state.positions:
            return state.cash
        if self._equity is not None and self._equity[0] is state:
            return self._equity[1]
        equity = equity_of(state, self._latest.get)
        if self._latest is self._ticks:  # a player that keeps ticks elsewhere changes them there
            self._equity = state, equity
        return equity

    def view(self) -> View:
        state, orders = self._state, tuple(self._orders.values())
        if self._account is None or self._account[0] is not state:
            self._account = state, account_of(state)
        now, account, held = self._clock.now(), self._account[1], state.positions
        return View(now, self._latest, held, account, self.equity, orders=orders)

    def view_of(self, strategy_key: str, bars: StrategyBars | None) -> View:
        """Return the view of a strategy, with its own bars and orders."""
        state, equity, now = self._state, self.equity, self._clock.now()
        before, view = self._views.get(strategy_key, _NO_VIEW)
        if view is not None and view.now is now and before is state and view.equity is equity:
            return view
        own: tuple[OrderSnapshot, ...] = ()
        if self._orders:
            orders = self._orders.values()
            own = tuple(each for each in orders if each.strategy_key == strategy_key)
        if self._account is None or self._account[0] is not state:
            self._account = state, account_of(state)
        account, held = self._account[1], state.positions
        view = View(now, self._latest, held, account, equity, 0, _NO_BOOKS, bars, own)
        self._views[strategy_key] = state, view
        return view


class LatestTicks(Mapping[str, Tick]):
    """Mapping of last ticks over rows of price, volume, bid, ask and time."""

    def __init__(self, indices: Mapping[str, int], rows: npt.NDArray[np.float64]) -> None:
        self._indices = indices
        self._rows = rows

    def __getitem__(self, symbol: str) -> Tick:
        if (tick := self.get(symbol)) is None:
            raise KeyError(symbol)
        return cast(Tick, tick)

    def get(self, symbol: str, default: Any = None) -> Any:
        index = self._indices.get(symbol)
        if index is None:
            return default
        price, volume, bid, ask, at = self._rows[index].tolist()
        return Tick(symbol, price, volume, bid, ask, at) if price else default

    def __contains__(self, symbol: object) -> bool:
        index = self._indices.get(symbol) if isinstance(symbol, str) else None
        return index is not None and bool(self._rows[index, 0])

    def __iter__(self) -> Iterator[str]:
        return (symbol for symbol, index in self._indices.items() if self._rows[index, 0])

    def __len__(self) -> int:
        return int(np.count_nonzero(self._rows[:, 0]))


class ScannedTicks(LatestTicks):
    """Last ticks of a compiled scan; those that were read are kept until `clear`."""

    def __init__(self, indices: Mapping[str, int], rows: npt.NDArray[np.float64]) -> None:
        super().__init__(indices, rows)
        self._made: dict[str, Tick] = {}
        self.clear = self._made.clear

    def get(self, symbol: str, default: Any = None) -> Any:
        tick = self._made.get(symbol)
        if tick is None:
            tick = super().get(symbol)
            if tick is None:
                return default
            self._made[symbol] = tick
        return tick
