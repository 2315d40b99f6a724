"""Order manager of a backtest: approved orders go to the matching engine, fills to the portfolio.

It keeps its positions in memory, with the arithmetic of the ledger. Over a tape of bars, an order
reaches the venue at the open of the next bar of its symbol: what is decided on a close, or inside a
bar, never trades at a price of that bar. Only stops and stop orders trade inside a bar.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from heapq import heappop, heappush
from uuid import UUID

from qts.backtest.order_rows import BacktestOrder, UpdateTakers, fill_rows, trade_rows
from qts.backtest.performance import OpenTrade, Trade
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, Place, day_end
from qts.brokers import PaperMatchingEngine, PaperOrder
from qts.domain import (
    STOPS,
    Fill,
    IntentType,
    OrderRequest,
    OrderSnapshot,
    OrderTerms,
    Position,
    QtsError,
    Side,
    Tick,
    TimeInForce,
    exact_decimal,
    good_until,
)
from qts.orders import AccountState, FillOwners, OpenOrder, PositionState, StrategyFigures
from qts.pipeline import StrategyUpdate, cash_change, sides_in_flight, symbol_values
from qts.risk import ApprovedOrder, OrderProposal, RiskLimits
from qts.strategies import Signal

MINUTE_S = 60.0
_FLAT = PositionState()
_FAR_ABOVE = 10  # smallest orders: it would have to lose nine tenths without a fill
# Why orders ended without a fill, or with a part of it.
DAY_ENDED, TIME_OVER, IOC_ENDED = "the day ended", "its time in force ended", "IOC found no price"
FOK_ENDED = "FOK found too little at once"
REPLACED, NO_MORE_DATA = "a stop took its place", "the data ended"
BY_STRATEGY = "its strategy cancelled it"
DUPLICATE = "this signal was acted on before"


class BacktestOrderManager:
    """Sends orders, applies fills and calls `on_change` with the symbol; `takers` get updates."""

    def __init__(
        self,
        matching: PaperMatchingEngine,
        portfolio: BacktestPortfolio,
        clock: BacktestClock,
        limits: RiskLimits,
        on_change: Callable[[str], None],
        takers: UpdateTakers,
    ) -> None:
        self._matching = matching
        self._portfolio = portfolio
        self._clock = clock
        self._limits = limits
        self._on_change = on_change
        self._takers = takers
        self._positions: dict[str, PositionState] = {}
        self._open_trades: dict[str, OpenTrade] = {}
        self._submitted: set[tuple[object, str]] = set()
        self._order_times: list[float] = []  # of the current day
        self._orders_of: Counter[str] = Counter()  # of the current day, by strategy
        self._realised = Decimal(0)  # PnL of the current day, after fees
        self.open: dict[str, dict[str, BacktestOrder]] = {}  # by symbol, by order id
        self._arriving: dict[str, list[tuple[PaperOrder, BacktestOrder]]] = {}  # by symbol
        self._deadlines: list[tuple[float, str, str]] = []  # time, order id, symbol; a heap
        self.next_deadline = math.inf
        self.triggered: set[UUID] = set()  # signals of stop orders: they trade inside a bar
        self.orders = 0
        self.expired: Counter[str] = Counter()  # orders that ended unfilled, by reason
        self.fills = fill_rows()
        self.filled: Counter[str] = Counter()  # number of fills by strategy
        self.figures = defaultdict[str, StrategyFigures](StrategyFigures)  # by owner of the fill
        self._fill_owners = FillOwners()
        self.trades = trade_rows()

    def start(self) -> None:
        """Take the positions from before the backtest."""
        for symbol, held in self._portfolio.positions.items():
            quantity, average = held.quantity, held.average_price
            self._positions[symbol] = PositionState(quantity=quantity, average_price=average)
            owner = self._portfolio.owners.get(symbol, "")
            self._open_trades[symbol] = OpenTrade.of(held, owner, self._clock.now())
            self._fill_owners.owner(symbol, owner, IntentType.ENTRY, is_flat=False)

    def on_tick(self, tick: Tick) -> None:
        """Match the orders of a symbol with its last tick, which the portfolio has."""
        if self.next_deadline <= self._clock.at:
            self._expire()
        if tick.symbol in self.open:
            self._apply(self._matching.on_tick(tick, self._clock.monotonic_ns()))
            self._remove_cancelled()

    def on_open(self, tick: Tick, low: float, high: float, closes_at: float) -> None:
        """Begin a bar: match its open with the orders that rest and with those that wait for it.

        What arrives stays at least until the bar closes: a bar does not tell when it traded where.
        """
        self._expire()
        at_ns, symbol = self._clock.monotonic_ns(), tick.symbol
        reach = exact_decimal(low), exact_decimal(high)
        self._apply(self._matching.on_open(tick, reach, at_ns))
        for order, opened in self._arriving.pop(symbol, ()):
            self._set_deadline(opened, math.nextafter(closes_at, math.inf))
            self._apply(self._matching.start(order, at_ns))
        self._remove_cancelled()

    def start_day(self) -> None:
        """Cancel the orders of the day before that end with it, whatever their time in force."""
        for symbol, orders in list(self.open.items()):
            if not self._portfolio.instruments[symbol].orders_end_with_day:
                continue
            arriving = {opened.order_id for _, opened in self._arriving.get(symbol, ())}
            for order_id in [each for each in orders if each not in arriving]:
                if order_id in self.open.get(symbol, ()):  # its time in force may end with it
                    self._cancel(symbol, order_id, DAY_ENDED)
        self._begin_day()

    def _begin_day(self) -> None:
        self._order_times.clear()
        self._orders_of.clear()
        self._realised = Decimal(0)

    def submit(self, approved: ApprovedOrder) -> str:
        """Send an order; return why it was not sent, or an empty text."""
        proposal = approved.proposal
        key = (proposal.signal_id, proposal.intent_type)
        if key in self._submitted:
            return DUPLICATE
        self._submitted.add(key)
        self.orders += 1
        self._order_times.append(self._clock.at)
        self._orders_of[proposal.strategy_key] += 1
        order_id = f"B{self.orders}"
        request = OrderRequest(
            client_order_id=order_id,
            symbol=proposal.symbol,
            side=proposal.side,
            type=proposal.type,
            quantity=proposal.quantity,
            price=proposal.price,
            time_in_force=proposal.time_in_force,
        )
        self._portfolio.keep_latest(proposal.symbol)
        at_ns = self._clock.monotonic_ns()
        opened = BacktestOrder(order_id, proposal, self._clock.at, proposal.quantity)
        self._report(opened, "SENT")
        try:
            order = self._matching.prepare(order_id, request, at_ns)
        except QtsError as error:
            self._report(opened, "REJECTED", str(error))
            return str(error)
        self._report(opened, "ACKED")
        self.open.setdefault(proposal.symbol, {})[order_id] = opened
        self._portfolio.set_order(opened.snapshot("ACKED"), is_open=True)
        if not proposal.intent_type.is_exit:
            self._portfolio.set_owner(proposal.symbol, proposal.strategy_key)
            self._set_exits(proposal)
        if self._waits_for_open(proposal):
            self._arriving.setdefault(proposal.symbol, []).append((order, opened))
            self._on_change(proposal.symbol)
            return ""
        self._set_deadline(opened, -math.inf)
        self._on_change(proposal.symbol)
        self._apply(self._matching.start(order, at_ns))
        self._remove_cancelled()
        return ""

    def _set_exits(self, proposal: OrderProposal) -> None:
        held = self._portfolio.position(proposal.symbol)
        if held is not None and held.quantity * proposal.side.sign < 0:
            return
        if proposal.exits is None:
            self._portfolio.exits.pop(proposal.symbol, None)
        else:
            self._portfolio.exits[proposal.symbol] = proposal.exits

    def _set_deadline(self, order: BacktestOrder, earliest: float) -> None:
        """Let the time in force begin now; it does not end before `earliest`."""
        lifetime, at = order.proposal.time_in_force, self._clock.at
        if lifetime is TimeInForce.DAY:
            until = day_end(at)
        else:
            end = good_until(lifetime, self._clock.now())
            until = math.inf if end is None else end.timestamp()
        if until < math.inf:
            deadline = max(until, earliest)
            heappush(self._deadlines, (deadline, order.order_id, order.proposal.symbol))
            self.next_deadline = self._deadlines[0][0]

    def _waits_for_open(self, proposal: OrderProposal) -> bool:
        place = self._clock.place
        if place is Place.INSIDE_BAR:
            return proposal.strategy_key != STOPS and proposal.signal_id not in self.triggered
        return place is Place.BAR_CLOSE

    def make_room(self, proposal: OrderProposal) -> None:
        """Inside a bar, cancel what rests on the side of a stop's exit: the stop comes first."""
        if proposal.strategy_key == STOPS and self._clock.place is Place.INSIDE_BAR:
            for order in list(self.open.get(proposal.symbol, {}).values()):
                if order.proposal.side is proposal.side:
                    self._cancel(proposal.symbol, order.order_id, REPLACED)

    def cancel(self, order: OrderSnapshot, strategy_key: str) -> tuple[Decimal, OrderTerms] | None:
        """Cancel an order of a strategy; return what was filled, and its terms; None: it ended."""
        opened = self.open.get(order.symbol, {}).get(order.intent_id)
        if opened is None or opened.proposal.strategy_key != strategy_key:
            return None
        self._cancel(order.symbol, order.intent_id, BY_STRATEGY)
        proposal = opened.proposal
        terms = OrderTerms(
            strategy_key,
            proposal.intent_type,
            proposal.time_in_force,
            proposal.reason,
            proposal.exits,
        )
        return proposal.quantity - opened.remaining, terms

    def finish(self) -> None:
        """Count the orders that the end of the data leaves open."""
        self.expired[NO_MORE_DATA] += sum(len(orders) for orders in self.open.values())

    def limits_of(self, symbol: str) -> list[Decimal]:
        """Return the limit prices of the orders of a symbol."""
        orders = self.open.get(symbol, {}).values()
        return [each.proposal.price for each in orders if each.proposal.price is not None]

    def has_recent_order(self, signal: Signal, max_age_s: float) -> bool:
        """Return whether a live cycle would still wait for an order on a side of the signal."""
        orders = self.open.get(signal.symbol)
        if not orders:
            return False
        sides = sides_in_flight(signal)
        return any(
            self._clock.at - order.at < max_age_s and not set(order.sides).isdisjoint(sides)
            for order in orders.values()
        )

    def _expire(self) -> None:
        """Cancel the orders whose time in force is over."""
        while self.next_deadline <= self._clock.at:
            _, order_id, symbol = heappop(self._deadlines)
            self.next_deadline = self._deadlines[0][0] if self._deadlines else math.inf
            if order_id in self.open.get(symbol, ()):
                self._cancel(symbol, order_id, TIME_OVER)

    def _cancel(self, symbol: str, order_id: str, reason: str) -> None:
        arriving = self._arriving.get(symbol, [])
        for pair in [each for each in arriving if each[1].order_id == order_id]:
            arriving.remove(pair)
            self._matching.drop(pair[0])
        self._matching.cancel(order_id)
        self._remove(symbol, order_id, reason)

    def _remove_cancelled(self) -> None:
        if not self._matching.cancelled:
            return
        for order_id in self._matching.cancelled:
            symbols = [symbol for symbol, orders in self.open.items() if order_id in orders]
            lifetime = self.open[symbols[0]][order_id].proposal.time_in_force
            reason = FOK_ENDED if lifetime is TimeInForce.FOK else IOC_ENDED
            self._remove(symbols[0], order_id, reason)
        self._matching.cancelled.clear()

    def _remove(self, symbol: str, order_id: str, reason: str) -> None:
        order = self.open[symbol].pop(order_id)
        self._portfolio.end_order(order_id)
        self.expired[reason] += 1
        if not self.open[symbol]:
            del self.open[symbol]
            if symbol not in self._positions:  # another strategy may trade it
                self._portfolio.set_owner(symbol, "")
        self._on_change(symbol)
        is_partial = order.remaining < order.proposal.quantity
        self._report(order, "CANCELLED", "the rest was cancelled" if is_partial else "cancelled")

    def _report(self, order: BacktestOrder, state: str, reason: str = "") -> None:
        if take := self._takers.get(order.proposal.strategy_key):
            take(StrategyUpdate(None, order.snapshot(state, reason)))

    def _apply(self, fills: Iterable[Fill]) -> None:
        for fill in fills:
            symbol, order_id = fill.symbol, fill.broker_order_id
            orders = self.open[symbol]
            order = orders[order_id]
            order.remaining -= fill.quantity
            if order.remaining:
                self._portfolio.set_order(order.snapshot("ACKED"), is_open=True)
            else:
                self._portfolio.end_order(order_id)
                del orders[order_id]
                if not orders:
                    del self.open[symbol]
            self._record(fill, order.proposal)
            self._on_change(symbol)
            if take := self._takers.get(order.proposal.strategy_key):
                take(StrategyUpdate(fill, None if order.remaining else order.snapshot("FILLED")))

    def _record(self, fill: Fill, proposal: OrderProposal) -> None:
        symbol, key, kind = fill.symbol, proposal.strategy_key, proposal.intent_type
        before = self._positions.get(symbol, _FLAT)
        after = before.apply(fill)
        realised = after.realised_pnl - before.realised_pnl
        self.fills.append(fill)
        self.filled[key] += 1
        self._realised += realised - fill.fee
        owner = self._fill_owners.owner(symbol, key, kind, is_flat=not after.quantity)
        self.figures[owner].add(realised, fill.fee)
        trade = self._open_trades.get(symbol)
        if trade is None:
            trade = self._open_trades[symbol] = OpenTrade(key)
        trade.add(fill, kind)
        if after.quantity:
            self._positions[symbol] = after
        else:
            self._positions.pop(symbol, None)
            self.trades.append(self._open_trades.pop(symbol).to_trade())
        position = Position(symbol, after.quantity, after.average_price)
        self._portfolio.apply_position(position, cash_change(fill))

    def account_state(self) -> AccountState:
        self._expire()
        now, times, last_minute = self._clock.at, self._order_times, 0
        if times and _minute_later(times[-1]) > now:
            last_minute = len(times) - bisect_right(times, now, key=_minute_later)
        pending = [
            OpenOrder(symbol, each.proposal.side, each.remaining, each.proposal.price, False)
            for symbol, orders in self.open.items()
            for each in orders.values()
        ]
        return AccountState(
            self._portfolio.positions,
            tuple(pending),
            len(times),
            last_minute,
            self._realised,
            frozenset(),
            orders_of=self._orders_of,
        )

    def entry_block(self) -> tuple[float, str]:
        """Return until when the gate refuses every entry into a new symbol, and its code.

        The answer is the gate's, without a call per signal.
        """
        self._expire()
        limits, times = self._limits, self._order_times
        if len(times) >= limits.orders_per_day:
            return day_end(self._clock.at), "G_DAILY_ORDERS"
        most, buying = limits.max_open_symbols, set[str]()
        if len(self._positions) + len(self.open) >= most:
            buying = {
                symbol
                for symbol, orders in self.open.items()
                if any(each.proposal.side is Side.BUY for each in orders.values())
            }
        if len(self._positions.keys() | buying) >= most:
            # A purchase whose time is over leaves room, without a price of its symbol.
            first = self.next_deadline if buying else math.inf
            if self._is_worth(limits.max_open_symbols):
                return first, "G_OPEN_SYMBOLS"
        if len(times) >= limits.orders_per_minute:
            return _minute_later(times[-limits.orders_per_minute]), "G_ORDER_RATE"
        return -math.inf, ""

    def _is_worth(self, symbols: int) -> bool:
        """Return whether so many symbols stay open whatever a tick brings.

        The gate does not count a symbol whose value is below the smallest order.
        """
        instruments = self._portfolio.instruments
        values = symbol_values(self.account_state(), self._portfolio)
        worth = sum(
            value >= _FAR_ABOVE * instruments[symbol].min_order_value
            for symbol, value in values.items()
        )
        return worth >= symbols

    @property
    def open_trades(self) -> list[Trade]:
        """Trades whose position is still open, as if they ended now."""
        return [trade.to_trade() for trade in self._open_trades.values()]


def _minute_later(at: float) -> float:
    return at + MINUTE_S
