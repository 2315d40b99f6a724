"""Portfolio and clock of a backtest; events move the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

from qts.backtest.late_values import PlayedTicks, TickWriter
from qts.domain import (
    Account,
    ExitLevels,
    Holding,
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
_MAX_WORTH = 1_000  # prices at which the equity of one state is kept


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
        self.known_at, self.known = 0.0, _EPOCH  # the last time as a datetime, also of a core
        self._step_s, self._step = 0.0, timedelta()  # whole seconds, of the last change

    def now(self) -> datetime:
        if (at := self.at) != self.known_at:
            step_s, self.known_at = at - self.known_at, at
            if step_s == self._step_s:
                self.known += self._step
            else:
                self.known = datetime.fromtimestamp(at, UTC)
                if step_s.is_integer():
                    self._step_s, self._step = step_s, timedelta(seconds=step_s)
        return self.known

    def monotonic_ns(self) -> int:
        return round(self.at * 1e9)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a backtest must not sleep ({seconds} s)")


class Opening(NamedTuple):
    """Account that a backtest begins with; its open orders play no part."""

    account: PortfolioState
    exits: Mapping[str, ExitLevels] = {}  # of its positions, by symbol


class Worth:
    """Equity of a state at some prices; a decimal becomes a float once, where it is needed."""

    __slots__ = ("_floats", "equity", "state")

    def __init__(
        self, state: PortfolioState, equity: Decimal, floats: tuple[float, float] | None = None
    ) -> None:
        self.state = state
        self.equity = equity
        self._floats = floats

    @property
    def floats(self) -> tuple[float, float]:
        """The equity, and the value of the positions in it."""
        if self._floats is None:
            self._floats = float(self.equity), float(self.equity - self.state.cash)
        return self._floats


class BacktestPortfolio(Portfolio):
    """Portfolio used by one thread; a view refers to the live ticks and copies nothing.

    Every fill replaces cash and positions, which views refer to. Owners and orders change in place.
    """

    _state = PortfolioState()

    def __init__(self, clock: BacktestClock, instruments: Instruments) -> None:
        super().__init__(clock, instruments)
        self.clock = clock
        self._owners: dict[str, str] = {}
        self._orders: dict[str, OrderSnapshot] = {}
        self._account: tuple[object, Account] | None = None  # the state that it is of
        self._holdings: tuple[object, dict[str, Holding]] = None, {}  # by symbol, of a state
        self._worth: Worth | None = None  # of the current state and ticks
        self._keeps_worth = True  # no: ticks change without a call
        # Of a state, by the price of its only position: prices repeat, and decimals are slow.
        self._known_worth: tuple[object, dict[float, Worth]] = None, {}
        self._views: dict[str, tuple[object, View]] = {}  # the last of a strategy, and its state
        self._latest: Mapping[str, Tick] = self._ticks
        self._shown: Mapping[str, Tick] = self._ticks  # in the views of strategies
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
        before, symbol = self._state, position.symbol
        positions, holdings = dict(before.positions), self._holdings_of(before)
        if position.quantity:
            positions[symbol] = position
            quantity, average = position.quantity, position.average_price
            holdings[symbol] = Holding(symbol=symbol, quantity=quantity, average_price=average)
        else:
            positions.pop(symbol, None)
            holdings.pop(symbol, None)
            self._owners.pop(symbol, None)
        self._state = PortfolioState(before.cash + cash_change, positions)
        self._holdings = self._state, holdings

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
        self._worth = None

    def keep_ticks(self, ticks: Iterable[Tick]) -> None:
        """Set the prices of several symbols."""
        for tick in ticks:
            self._ticks[tick.symbol] = tick
        self._worth = None

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
        self._latest, self._worth, self._keeps_worth = latest, None, False
        self.show_ticks(latest)

    def use_core(self, core: TickWriter) -> None:
        """Read last ticks from what a core writes to `ticks` on a read."""
        drop = core.drop_tick

        def apply_tick(tick: Tick) -> None:
            drop(tick.symbol)
            self._keep_tick(tick)

        self._latest = PlayedTicks(self._ticks, core.write_ticks, core.write_tick)
        self.apply_tick = apply_tick
        self.show_ticks(self._latest)

    def show_ticks(self, shown: Mapping[str, Tick]) -> None:
        """Let strategies read last ticks from this mapping from now on."""
        self._shown = shown
        self._views.clear()

    def last_tick(self, symbol: str) -> Tick | None:
        return self._latest.get(symbol)

    def position(self, symbol: str) -> Position | None:
        return self._state.positions.get(symbol)

    @property
    def equity(self) -> Decimal:
        return self.worth().equity

    def worth(self) -> Worth:
        """Return the equity at the last prices."""
        worth, state = self._worth, self._state
        if worth is not None and worth.state is state:
            return worth
        positions, price = state.positions, 0.0
        if len(positions) > 1:
            worth = Worth(state, equity_of(state, self._latest.get))
        else:
            for symbol in positions:
                tick = self._latest.get(symbol)
                price = tick.price if tick is not None else 0.0
            worth = self._worth_at(state, price)
        if self._keeps_worth:
            self._worth = worth
        return worth

    def floats(self) -> tuple[float, float]:
        """Return the equity, and the value of the positions in it."""
        return self.worth().floats

    def reprice(self) -> tuple[Decimal, float, float]:
        """Return the equity after a change of `ticks`, also as a float, and the invested part."""
        self.forget_worth()
        worth = self.worth()
        equity, invested = worth.floats
        return worth.equity, equity, invested

    def set_worth(self, found: tuple[Decimal, float, float] | None) -> None:
        """Take what `reprice` returns for the current state and prices; None: they have changed."""
        if found is None:
            self._worth = None
        else:
            equity, *floats = found
            self._worth = Worth(self._state, equity, (floats[0], floats[1]))

    def forget_worth(self) -> None:
        """Note that `ticks` were changed elsewhere."""
        self._worth = None

    def _worth_at(self, state: PortfolioState, price: float) -> Worth:
        """Return the equity with the only position at a price; 0: there is none, or at cost."""
        before, known = self._known_worth
        if before is not state or len(known) >= _MAX_WORTH:
            known = {}
            self._known_worth = state, known
        worth = known.get(price)
        if worth is None:
            worth = known[price] = Worth(state, equity_of(state, self._latest.get))
        return worth

    def view(self) -> View:
        state, orders = self._state, tuple(self._orders.values())
        now, account, held = self._clock.now(), self._account_of(state), state.positions
        return View(now, self._latest, held, account, self.equity, orders=orders)

    def view_of(
        self, strategy_key: str, bars: StrategyBars | None, *, is_priced: bool = True
    ) -> View:
        """Return the view of a strategy, with its own bars and orders.

        Not priced, its equity is only that of an account without positions.
        """
        now, state = self._clock.now(), self._state
        equity = self.worth().equity if is_priced or not state.positions else state.cash
        before, view = self._views.get(strategy_key, _NO_VIEW)
        if view is None or before is not state:
            own = self._orders_of(strategy_key) if self._orders else ()
            account, held = self._account_of(state), state.positions
        elif view.now is now and view.equity is equity:
            return view
        else:
            own, account, held = view.orders, view.account, view.positions
        view = View(now, self._shown, held, account, equity, 0, _NO_BOOKS, bars, own)
        self._views[strategy_key] = state, view
        return view

    def _orders_of(self, strategy_key: str) -> tuple[OrderSnapshot, ...]:
        orders = self._orders.values()
        return tuple([each for each in orders if each.strategy_key == strategy_key])

    def _account_of(self, state: PortfolioState) -> Account:
        if self._account is None or self._account[0] is not state:
            holdings = tuple(self._holdings_of(state).values())
            self._account = state, Account(cash=state.cash, holdings=holdings)
        return self._account[1]

    def _holdings_of(self, state: PortfolioState) -> dict[str, Holding]:
        """Return the holdings of a state; a fill changes one of them."""
        before, holdings = self._holdings
        if before is not state:
            holdings = {each.symbol: each for each in account_of(state).holdings}
            self._holdings = state, holdings
        return holdings
