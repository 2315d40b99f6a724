"""The desk of a backtest: what the gate approved goes to the matching, and fills into the books.

No database and no bus stand between, and nothing is lost; the arithmetic is that of the live books.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from decimal import Decimal

import msgspec

from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, day_end
from qts.backtest.trades import OpenTrade, Trade
from qts.brokers import PaperMatchingEngine
from qts.domain import Fill, Market, OrderRequest, QtsError, Side, Tick, market_for_symbol
from qts.orders import AccountState, FillApplied, Held, OpenOrder, PositionState
from qts.risk import ApprovedOrder, OrderProposal, RiskLimits

MINUTE_S = 60.0
ACTED_ON = "this signal was acted on before"


class BacktestOrder(msgspec.Struct):
    """An order at the venue; gone from the desk when it is filled or cancelled."""

    order_id: str
    proposal: OrderProposal
    at: float
    remaining: Decimal


class BacktestOrderManager:
    """`changed` is told the symbol whose orders or holdings are others now."""

    def __init__(
        self,
        matching: PaperMatchingEngine,
        world: BacktestPortfolio,
        clock: BacktestClock,
        limits: RiskLimits,
    ) -> None:
        self._matching = matching
        self._world = world
        self._clock = clock
        self._limits = limits
        self._books: dict[str, PositionState] = {}
        self._trips: dict[str, OpenTrade] = {}
        self._acted_on: set[tuple[object, str]] = set()
        self._times: list[float] = []  # of the day's orders
        self._earned = Decimal(0)
        self.open: dict[str, dict[str, BacktestOrder]] = {}  # by symbol, by order
        self.orders = 0
        self.fills: list[Fill] = []
        self.trades: list[Trade] = []
        self.changed: Callable[[str], None] = lambda _symbol: None

    # --- the market -----------------------------------------------------------------------------

    def tick(self, tick: Tick) -> None:
        fills = self._matching.on_tick(
            tick.symbol, tick.price, tick.bid, tick.ask, tick.volume, self._clock.monotonic_ns()
        )
        if fills:
            self._apply(fills)

    def new_day(self) -> None:
        """What is still open at the KRX was of yesterday, and ended; coins know no bell."""
        for symbol, orders in list(self.open.items()):
            if market_for_symbol(symbol) is not Market.KRX:
                continue
            for order_id in list(orders):
                self._matching.cancel(order_id)
            del self.open[symbol]
            self.changed(symbol)
        self._times.clear()
        self._earned = Decimal(0)

    # --- orders ---------------------------------------------------------------------------------

    def submit(self, approved: ApprovedOrder) -> str:
        """Send it; why not, or nothing when it is with the venue."""
        proposal = approved.proposal
        name = (proposal.signal_id, proposal.intent_type)
        if name in self._acted_on:
            return ACTED_ON
        self._acted_on.add(name)
        self.orders += 1
        self._times.append(self._clock.at)
        order_id = f"B{self.orders}"
        request = OrderRequest(
            client_order_id=order_id,
            symbol=proposal.symbol,
            side=proposal.side,
            type=proposal.type,
            quantity=proposal.quantity,
            price=proposal.price,
        )
        at_ns = self._clock.monotonic_ns()
        try:
            order = self._matching.prepare(order_id, request, at_ns)
        except QtsError as error:
            return str(error)
        self.open.setdefault(proposal.symbol, {})[order_id] = BacktestOrder(
            order_id, proposal, self._clock.at, proposal.quantity
        )
        if not proposal.intent_type.is_exit:
            self._world.owners[proposal.symbol] = proposal.strategy_key
        self.changed(proposal.symbol)
        self._apply(self._matching.start(order, at_ns))
        return ""

    def busy(self, symbol: str, wait_s: float) -> bool:
        """Whether an order is so young that its cycle would still wait for it."""
        orders = self.open.get(symbol, {}).values()
        return any(self._clock.at - order.at < wait_s for order in orders)

    def _apply(self, fills: Iterable[Fill]) -> None:
        for fill in fills:
            order = self.open[fill.symbol][fill.broker_order_id]
            order.remaining -= fill.quantity
            if not order.remaining:
                del self.open[fill.symbol][fill.broker_order_id]
                if not self.open[fill.symbol]:
                    del self.open[fill.symbol]
            self._count(fill, order.proposal)
            self.changed(fill.symbol)

    def _count(self, fill: Fill, proposal: OrderProposal) -> None:
        before = self._books.get(fill.symbol, PositionState())
        after = before.apply(fill)
        realised = after.realised_pnl - before.realised_pnl
        self.fills.append(fill)
        self._earned += realised - fill.fee
        self._trips.setdefault(fill.symbol, OpenTrade()).add(fill, proposal)
        if after.quantity:
            self._books[fill.symbol] = after
        else:
            self._books.pop(fill.symbol, None)
            self.trades.append(self._trips.pop(fill.symbol).ended())
        self._world.apply_fill(
            FillApplied(
                fill=fill,
                attempt_id=None,
                counted=True,
                position=after.quantity,
                average_price=after.average_price,
                realised_pnl=realised,
            )
        )

    # --- how we stand ---------------------------------------------------------------------------

    def standing(self) -> AccountState:
        now = self._clock.at
        return AccountState(
            {name: Held(book.quantity, book.average_price) for name, book in self._books.items()},
            tuple(
                OpenOrder(
                    symbol, each.proposal.side, each.remaining, each.proposal.price, unknown=False
                )
                for symbol, orders in self.open.items()
                for each in orders.values()
            ),
            len(self._times),
            len(self._times) - bisect_right(self._times, now, key=_a_minute_later),
            self._earned,
            frozenset(),
        )

    def closed(self) -> tuple[float, str]:
        """Until when the gate refuses every entry into a symbol we have nothing of, and its code.

        It says only what the gate would say, without asking it each time.
        """
        limits, times = self._limits, self._times
        if len(times) >= limits.orders_per_day:
            return day_end(self._clock.at), "G_DAILY_ORDERS"
        buying = {
            symbol
            for symbol, orders in self.open.items()
            if any(each.proposal.side is Side.BUY for each in orders.values())
        }
        if len(self._books.keys() | buying) >= limits.max_open_symbols:
            return math.inf, "G_OPEN_SYMBOLS"
        if len(times) >= limits.orders_per_minute:
            return _a_minute_later(times[-limits.orders_per_minute]), "G_ORDER_RATE"
        return -math.inf, ""

    @property
    def open_trips(self) -> list[Trade]:
        """What is still held at the end, as trades that have not ended."""
        return [trip.ended() for trip in self._trips.values()]


def _a_minute_later(at: float) -> float:
    return at + MINUTE_S
