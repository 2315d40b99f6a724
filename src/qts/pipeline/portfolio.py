"""The portfolio of an account: cash, positions and the last tick of every symbol.

Ticks are written by the feed's thread alone, without a lock. Cash, positions, owners and open
orders change as one immutable state of all accounts, on the thread of lane P0 and on the event
loop, one change at a time. A reader takes the state and the ticks as they are, and waits for
nobody.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple, TypeVar

import msgspec

from qts.domain import (
    MANUAL,
    Account,
    Clock,
    Fill,
    Holding,
    Instruments,
    OrderBook,
    OrderSnapshot,
    Position,
    Tick,
    exact_decimal,
)
from qts.pipeline.decision_journal import FillEntry, OrderEntry, OwnerEntry, StartEntry
from qts.strategies import View

V = TypeVar("V")
_ZERO = Decimal(0)
AccountChange = FillEntry | StartEntry | OwnerEntry | OrderEntry


def cash_change(fill: Fill) -> Decimal:
    """Return what a fill adds to the cash; negative for a purchase."""
    return -(fill.side.sign * fill.quantity * fill.price + fill.fee)


class PortfolioState(NamedTuple):
    """What fills and orders made of an account; its parts are replaced, never changed."""

    cash: Decimal = Decimal(0)
    positions: Mapping[str, Position] = {}
    owners: Mapping[str, str] = {}  # symbol to the strategy that holds or buys it
    orders: Mapping[str, OrderSnapshot] = {}  # by intent, those that may still be filled

    def after(self, change: AccountChange) -> PortfolioState:
        match change:
            case FillEntry():
                symbol, owners = change.symbol, self.owners
                held = Position(symbol, change.quantity, change.average_price)
                if change.quantity:
                    positions = _with(self.positions, symbol, held)
                else:
                    positions = _with(self.positions, symbol, None)
                    owners = _with(owners, symbol, None)
                return PortfolioState(change.cash, positions, owners, self.orders)
            case StartEntry():
                held_by = {each.symbol: each for each in change.positions if each.quantity}
                return self._replace(cash=change.cash, positions=held_by)
            case OwnerEntry():
                owner = change.strategy_key or None
                owners = _with(self.owners, change.symbol, owner)
                return PortfolioState(self.cash, self.positions, owners, self.orders)
            case OrderEntry(order, is_open):
                kept = order if is_open else None
                orders = _with(self.orders, order.intent_id, kept)
                return PortfolioState(self.cash, self.positions, self.owners, orders)


class RunState(NamedTuple):
    """The states of all accounts of a run."""

    accounts: tuple[PortfolioState, ...]
    number: int = 0  # of changes so far

    def after(self, change: AccountChange) -> RunState:
        accounts, number = self.accounts, change.account
        changed = accounts[number].after(change)
        return RunState((*accounts[:number], changed, *accounts[number + 1 :]), self.number + 1)

    @property
    def merged(self) -> PortfolioState:
        """All accounts as one: cash added up; a symbol is at one venue."""
        if len(self.accounts) == 1:
            return self.accounts[0]
        positions: dict[str, Position] = {}
        owners: dict[str, str] = {}
        orders: dict[str, OrderSnapshot] = {}
        for each in self.accounts:
            positions |= each.positions
            owners |= each.owners
            orders |= each.orders
        cash = sum((each.cash for each in self.accounts), Decimal(0))
        return PortfolioState(cash, positions, owners, orders)


class PortfolioStore:
    """Ticks, order books and account states, which the portfolios of a run share."""

    def __init__(self, clock: Clock, accounts: int = 1) -> None:
        self.clock = clock
        self.ticks: dict[str, Tick] = {}
        self.books: dict[str, OrderBook] = {}
        self.received_ns: dict[str, int] = {}
        self.state = RunState((PortfolioState(),) * accounts)
        self._changing = threading.Lock()  # never held on the path of a tick

    def apply_tick(self, tick: Tick) -> None:
        self.ticks[tick.symbol] = tick
        self.received_ns[tick.symbol] = self.clock.monotonic_ns()

    def apply_book(self, book: OrderBook) -> None:
        """Keep the order book; two lane workers may deliver two books out of order."""
        last = self.books.get(book.symbol)
        if last is None or last.at <= book.at:
            self.books[book.symbol] = book

    def change(self, account: int, make: Callable[[PortfolioState], AccountChange]) -> None:
        with self._changing:
            change = make(self.state.accounts[account])
            self._commit(change, self.state.after(change))

    def replace(self, account: int, state: PortfolioState) -> None:
        """Replace the state of an account by that of the process that trades it."""
        with self._changing:
            accounts = list(self.state.accounts)
            accounts[account] = state
            self.state = RunState(tuple(accounts), self.state.number + 1)

    def _commit(self, _change: AccountChange, state: RunState) -> None:
        self.state = state

    def owners_at(self, account: int) -> tuple[Mapping[str, str], int]:
        """Return the owners of symbols, and their version where changes are journaled."""
        return self.state.accounts[account].owners, 0

    def view(self, account: int | None = None) -> View:
        """Return the view of an account, or of all of them together."""
        return self.view_of(self.state, account)

    def view_of(self, run: RunState, account: int | None) -> View:
        state = run.merged if account is None else run.accounts[account]
        return View(
            self.clock.now(),
            self.ticks.copy(),
            state.positions,
            account_of(state),
            equity_of(state, self.ticks.get),
            books=self.books,
            orders=tuple(state.orders.values()),
        )


class Valuation(msgspec.Struct, frozen=True):
    """Money of an account, and the last prices of its positions behind it."""

    cash: Decimal
    equity: Decimal
    unrealised: Decimal
    prices: Mapping[str, Decimal]


class Portfolio:
    """One account as its strategies, stops and gate see it, and the instruments it is made of."""

    def __init__(
        self,
        clock: Clock,
        instruments: Instruments,
        store: PortfolioStore | None = None,
        account: int = 0,
    ) -> None:
        self.instruments = instruments
        self.account = account
        self._store = store = store or PortfolioStore(clock)
        self._clock = clock
        self._ticks = store.ticks
        self.apply_tick, self.apply_book = store.apply_tick, store.apply_book

    @property
    def books(self) -> Mapping[str, OrderBook]:
        """The latest order book of each symbol, which changes while it is read."""
        return self._store.books

    def last_tick(self, symbol: str) -> Tick | None:
        return self._ticks.get(symbol)

    def age_ms(self, tick: Tick) -> float:
        """Return the age of a tick; after a clock that was set back it is infinite."""
        received_ns = self._store.received_ns.get(tick.symbol)
        wall_ms = (self._clock.now().timestamp() - tick.at) * 1000
        if received_ns is None or wall_ms < 0:
            return math.inf
        return max(wall_ms, (self._clock.monotonic_ns() - received_ns) / 1e6)

    # --- changes, from any thread ---------------------------------------------------------------

    def load(self, cash: Decimal, positions: Iterable[Position]) -> None:
        """Replace cash and positions, from the ledger."""
        held, number = tuple(each for each in positions if each.quantity), self.account
        self._change(lambda _state: StartEntry(cash, held, number))

    def reload(self, positions: Iterable[Position], cash_change: Decimal) -> None:
        """Replace the positions by the ledger's and add what fills did to the cash."""
        held, number = tuple(each for each in positions if each.quantity), self.account
        self._change(lambda state: StartEntry(state.cash + cash_change, held, number))

    def set_cash(self, cash: Decimal) -> None:
        """Replace the cash by the venue's."""
        if cash != self.cash:
            self._change(
                lambda state: StartEntry(cash, tuple(state.positions.values()), self.account)
            )

    def apply_position(self, position: Position, cash_change: Decimal) -> None:
        """Set a position as a fill left it, and add what the fill did to the cash."""
        symbol, quantity, average = position.symbol, position.quantity, position.average_price
        self._change(
            lambda state: FillEntry(
                symbol, quantity, average, state.cash + cash_change, self.account
            )
        )

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        """Record the strategy that holds or buys the symbol; an empty key: none does."""
        self._change(lambda _state: OwnerEntry(symbol, strategy_key, self.account))

    def set_order(self, order: OrderSnapshot, *, is_open: bool) -> None:
        """Record an order as it is now; one that has ended is removed."""
        if is_open or order.intent_id in self._state.orders:
            self._change(lambda _state: OrderEntry(order, is_open, self.account))

    def _change(self, make: Callable[[PortfolioState], AccountChange]) -> None:
        self._store.change(self.account, make)

    # --- reading --------------------------------------------------------------------------------

    @property
    def _state(self) -> PortfolioState:
        return self._store.state.accounts[self.account]

    def owners_at(self) -> tuple[Mapping[str, str], int]:
        """Return the owners of symbols, and their version where changes are journaled."""
        return self._store.owners_at(self.account)

    @property
    def owners(self) -> Mapping[str, str]:
        return self._state.owners

    @property
    def orders(self) -> Mapping[str, OrderSnapshot]:
        """The orders that may still be filled, by intent."""
        return self._state.orders

    @property
    def cash(self) -> Decimal:
        return self._state.cash

    @property
    def positions(self) -> Mapping[str, Position]:
        return self._state.positions

    def price(self, position: Position) -> Decimal:
        return _price(position, self.last_tick)

    @property
    def equity(self) -> Decimal:
        return equity_of(self._state, self.last_tick)

    def valuation(self) -> Valuation:
        """Return the money of one state at the last prices."""
        state, prices = self._state, dict[str, Decimal]()
        value = unrealised = _ZERO
        for symbol, each in state.positions.items():
            price = prices[symbol] = _price(each, self.last_tick)
            value += price * each.quantity
            unrealised += (price - each.average_price) * each.quantity
        equity = state.cash + value if prices else state.cash
        return Valuation(state.cash, equity, unrealised, prices)

    @property
    def unrealised(self) -> Decimal:
        return self.valuation().unrealised

    def view(self) -> View:
        return self._store.view(self.account)


class HeldValue(NamedTuple):
    """Positions of one strategy at the last prices."""

    unrealised: Decimal = Decimal(0)
    exposure: Decimal = Decimal(0)  # unsigned value


def held_by(portfolio: Portfolio) -> dict[str, HeldValue]:
    """Return what each strategy holds; positions without one are the operator's."""
    found: dict[str, HeldValue] = {}
    owners = portfolio.owners
    for each in portfolio.positions.values():
        name, price = owners.get(each.symbol) or MANUAL, portfolio.price(each)
        before = found.get(name, HeldValue())
        found[name] = HeldValue(
            before.unrealised + (price - each.average_price) * each.quantity,
            before.exposure + abs(price * each.quantity),
        )
    return found


LastTick = Callable[[str], Tick | None]


def _price(position: Position, last_tick: LastTick) -> Decimal:
    tick = last_tick(position.symbol)
    return exact_decimal(tick.price) if tick else position.average_price


def equity_of(state: PortfolioState, last_tick: LastTick) -> Decimal:
    """Return the cash and the positions at their last prices, or at cost without one."""
    if not state.positions:
        return state.cash
    value = _ZERO
    for symbol, each in state.positions.items():  # as _price does, without a call for each
        tick = last_tick(symbol)
        value += (exact_decimal(tick.price) if tick else each.average_price) * each.quantity
    return state.cash + value


def account_of(state: PortfolioState) -> Account:
    holdings = [
        Holding(symbol=each.symbol, quantity=each.quantity, average_price=each.average_price)
        for each in state.positions.values()
    ]
    return Account(cash=state.cash, holdings=tuple(holdings))


def _with(values: Mapping[str, V], name: str, value: V | None) -> Mapping[str, V]:
    """Return a copy with this value; None: without the name."""
    copy = dict(values)
    if value is None:
        copy.pop(name, None)
    else:
        copy[name] = value
    return copy
