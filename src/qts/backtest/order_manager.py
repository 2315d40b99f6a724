"""Order manager of a backtest: approved orders go to the matching engine, fills to the portfolio.

It keeps its positions in memory, with the arithmetic of the ledger.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from decimal import Decimal
from heapq import heappop, heappush

import msgspec

from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, day_end
from qts.backtest.trades import OpenTrade, Trade
from qts.brokers import PaperMatchingEngine
from qts.domain import (
    Fill,
    Market,
    OrderRequest,
    Position,
    QtsError,
    Side,
    Tick,
    good_until,
    market_for_symbol,
)
from qts.orders import AccountState, FillApplied, OpenOrder, PositionState
from qts.risk import ApprovedOrder, OrderProposal, RiskLimits

MINUTE_S = 60.0
DUPLICATE = "this signal was acted on before"


class BacktestOrder(msgspec.Struct):
    """Open order at the venue."""

    order_id: str
    proposal: OrderProposal
    at: float
    remaining: Decimal


class BacktestOrderManager:
    """Sends orders and applies their fills; calls `on_change` with the symbol that changed."""

    def __init__(
        self,
        matching: PaperMatchingEngine,
        portfolio: BacktestPortfolio,
        clock: BacktestClock,
        limits: RiskLimits,
        on_change: Callable[[str], None],
    ) -> None:
        self._matching = matching
        self._portfolio = portfolio
        self._clock = clock
        self._limits = limits
        self._on_change = on_change
        self._positions: dict[str, PositionState] = {}
        self._open_trades: dict[str, OpenTrade] = {}
        self._submitted: set[tuple[object, str]] = set()
        self._order_times: list[float] = []  # of the current day
        self._realised = Decimal(0)  # PnL of the current day, after fees
        self.open: dict[str, dict[str, BacktestOrder]] = {}  # by symbol, by order id
        self._deadlines: list[tuple[float, str, str]] = []  # time, order id, symbol; a heap
        self.orders = 0
        self.fills: list[Fill] = []
        self.trades: list[Trade] = []

    def on_tick(self, tick: Tick) -> None:
        self._expire()
        fills = self._matching.on_tick(
            tick.symbol, tick.price, tick.bid, tick.ask, tick.volume, self._clock.monotonic_ns()
        )
        if fills:
            self._apply(fills)
        if self._matching.cancelled:
            self._remove_cancelled()

    def start_day(self) -> None:
        """Cancel the open KRX orders of the day before, whatever their time in force."""
        for symbol, orders in list(self.open.items()):
            if market_for_symbol(symbol) is not Market.KRX:
                continue
            for order_id in list(orders):
                self._matching.cancel(order_id)
                self._remove(symbol, order_id)
        self._order_times.clear()
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
        at_ns = self._clock.monotonic_ns()
        try:
            order = self._matching.prepare(order_id, request, at_ns)
        except QtsError as error:
            return str(error)
        self.open.setdefault(proposal.symbol, {})[order_id] = BacktestOrder(
            order_id, proposal, self._clock.at, proposal.quantity
        )
        until = good_until(proposal.time_in_force, self._clock.now())
        if until is not None:
            heappush(self._deadlines, (until.timestamp(), order_id, proposal.symbol))
        if not proposal.intent_type.is_exit:
            self._portfolio.owners[proposal.symbol] = proposal.strategy_key
        self._on_change(proposal.symbol)
        self._apply(self._matching.start(order, at_ns))
        self._remove_cancelled()
        return ""

    def has_recent_order(self, symbol: str, max_age_s: float) -> bool:
        """Return whether the symbol has an open order that a live cycle would still wait for."""
        orders = self.open.get(symbol, {}).values()
        return any(self._clock.at - order.at < max_age_s for order in orders)

    def _expire(self) -> None:
        """Cancel the orders whose time in force is over."""
        while self._deadlines and self._deadlines[0][0] <= self._clock.at:
            _, order_id, symbol = heappop(self._deadlines)
            if order_id in self.open.get(symbol, ()):
                self._matching.cancel(order_id)
                self._remove(symbol, order_id)

    def _remove_cancelled(self) -> None:
        for order_id in self._matching.cancelled:
            symbols = [symbol for symbol, orders in self.open.items() if order_id in orders]
            self._remove(symbols[0], order_id)
        self._matching.cancelled.clear()

    def _remove(self, symbol: str, order_id: str) -> None:
        del self.open[symbol][order_id]
        if not self.open[symbol]:
            del self.open[symbol]
            if symbol not in self._positions:  # another strategy may trade it
                self._portfolio.owners.pop(symbol, None)
        self._on_change(symbol)

    def _apply(self, fills: Iterable[Fill]) -> None:
        for fill in fills:
            order = self.open[fill.symbol][fill.broker_order_id]
            order.remaining -= fill.quantity
            if not order.remaining:
                del self.open[fill.symbol][fill.broker_order_id]
                if not self.open[fill.symbol]:
                    del self.open[fill.symbol]
            self._record(fill, order.proposal)
            self._on_change(fill.symbol)

    def _record(self, fill: Fill, proposal: OrderProposal) -> None:
        before = self._positions.get(fill.symbol, PositionState())
        after = before.apply(fill)
        realised = after.realised_pnl - before.realised_pnl
        self.fills.append(fill)
        self._realised += realised - fill.fee
        self._open_trades.setdefault(fill.symbol, OpenTrade()).add(fill, proposal)
        if after.quantity:
            self._positions[fill.symbol] = after
        else:
            self._positions.pop(fill.symbol, None)
            self.trades.append(self._open_trades.pop(fill.symbol).to_trade())
        self._portfolio.apply_fill(
            FillApplied(
                fill=fill,
                attempt_id=None,
                counted=True,
                position=after.quantity,
                average_price=after.average_price,
                realised_pnl=realised,
            )
        )

    def account_state(self) -> AccountState:
        self._expire()
        now = self._clock.at
        return AccountState(
            {
                symbol: Position(symbol, each.quantity, each.average_price)
                for symbol, each in self._positions.items()
            },
            tuple(
                OpenOrder(
                    symbol, each.proposal.side, each.remaining, each.proposal.price, unknown=False
                )
                for symbol, orders in self.open.items()
                for each in orders.values()
            ),
            len(self._order_times),
            len(self._order_times) - bisect_right(self._order_times, now, key=_minute_later),
            self._realised,
            frozenset(),
        )

    def entry_block(self) -> tuple[float, str]:
        """Return until when the gate refuses every entry into a new symbol, and its code.

        The answer is the gate's, without a call per signal.
        """
        self._expire()
        limits, times = self._limits, self._order_times
        if len(times) >= limits.orders_per_day:
            return day_end(self._clock.at), "G_DAILY_ORDERS"
        buying = {
            symbol
            for symbol, orders in self.open.items()
            if any(each.proposal.side is Side.BUY for each in orders.values())
        }
        if len(self._positions.keys() | buying) >= limits.max_open_symbols:
            return math.inf, "G_OPEN_SYMBOLS"
        if len(times) >= limits.orders_per_minute:
            return _minute_later(times[-limits.orders_per_minute]), "G_ORDER_RATE"
        return -math.inf, ""

    @property
    def open_trades(self) -> list[Trade]:
        """Trades whose position is still open, as if they ended now."""
        return [trade.to_trade() for trade in self._open_trades.values()]


def _minute_later(at: float) -> float:
    return at + MINUTE_S
