"""Stop orders of a backtest: they wait outside of the venue until a price reaches them.

Over ticks an order waits from its signal on, and is sent at the tick that triggers it. Over bars it
waits from the next open of its symbol on, and is sent inside the bar: at the open where the bar
opens at its price or beyond, else at its price, rounded to the worse tick.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from msgspec.structs import replace

from qts.backtest.order_rows import UpdateTakers
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, Place
from qts.domain import OrderSnapshot, OrderTerms, Side, Tick
from qts.pipeline import NOT_TRIGGERED, StopOrder, StopOrderBook, StrategyUpdate, waits_until
from qts.risk import OrderProposal
from qts.strategies import Signal


class BacktestStopOrders:
    """Stop orders of all strategies; `on_change` takes the symbol of each that comes or goes.

    `sent` takes the signals of those that were triggered.
    """

    def __init__(
        self,
        portfolio: BacktestPortfolio,
        clock: BacktestClock,
        takers: UpdateTakers,
        on_change: Callable[[str], None],
        sent: set[UUID],
    ) -> None:
        self._portfolio = portfolio
        self._clock = clock
        self._takers = takers
        self._on_change = on_change
        self._sent = sent
        self._book = StopOrderBook()
        self._arriving = StopOrderBook()  # wait for the next open of their symbol
        self.due = math.inf  # when the time of the first is over
        self._triggered: dict[tuple[object, ...], StopOrder] = {}  # the latest of each signal
        self.ended: Counter[str] = Counter()  # by reason

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._book.by_symbol or symbol in self._arriving.by_symbol

    def place(self, proposal: OrderProposal) -> bool:
        """Let an order wait; return False where its signal waits already."""
        id_ = proposal.signal_id
        if self._book.get(id_) or self._arriving.get(id_):
            return False
        if self._clock.place is Place.TICK:
            self._wait(StopOrder(proposal, None), -math.inf)
        else:
            self._arriving.add(StopOrder(proposal, None))
        self._report(StopOrder(proposal, None), "WAITING", is_open=True)
        return True

    def on_open(self, symbol: str, closes_at: float) -> None:
        """Let the orders that arrived wait from this open on, at least until the bar closes."""
        for order in self._arriving.of(symbol):
            self._arriving.remove(order)
            self._wait(order, math.nextafter(closes_at, math.inf))

    def _wait(self, order: StopOrder, earliest: float) -> None:
        until = waits_until(order.proposal.time_in_force, self._clock.now())
        if until is not None and until.timestamp() < earliest:
            until = datetime.fromtimestamp(earliest, UTC)
        self._book.add(replace(order, until=until))
        if until is not None:
            self.due = min(self.due, until.timestamp())

    def _expire(self) -> None:
        """End the orders whose time is over."""
        for order in self._book.overdue(self._clock.now()):
            self._book.remove(order)
            self.ended[NOT_TRIGGERED] += 1
            self._report(order, "CANCELLED", "time in force over")
        untils = [each.until.timestamp() for each in self._book if each.until is not None]
        self.due = min(untils, default=math.inf)

    def triggered(self, tick: Tick) -> Sequence[tuple[str, Signal]]:
        """Remove the orders that a price reaches; return their strategies and signals."""
        if self._clock.at >= self.due:
            self._expire()
        if tick.symbol not in self._book.by_symbol:
            return ()
        found = []
        for order in self._book.reached(tick.symbol, tick.price):
            self._book.remove(order)
            self._sent.add(order.id)
            self._triggered[_name(order.strategy_key, order.proposal)] = order
            self._report(order, "TRIGGERED")
            instrument = self._portfolio.instruments[tick.symbol]
            found.append((order.strategy_key, order.signal(self._clock.now(), instrument)))
        return found

    def refused(self, key: str, signal: Signal | OrderProposal, reason: str) -> None:
        """Report the end of a triggered order whose signal was refused."""
        if self._triggered and (order := self._triggered.pop(_name(key, signal), None)):
            self._report(order, "REJECTED", reason)

    def cancel(self, order: OrderSnapshot, strategy_key: str) -> tuple[Decimal, OrderTerms] | None:
        """Cancel an order of a strategy; return what was filled, and its terms; None: no such."""
        for book in (self._book, self._arriving):
            for each in book.of(order.symbol):
                if str(each.id) == order.intent_id and each.strategy_key == strategy_key:
                    book.remove(each)
                    self._report(each, "CANCELLED", "cancelled")
                    return Decimal(0), each.terms
        return None

    def levels(self, symbol: str, *, falls: bool) -> list[Decimal]:
        """Return the prices at which a move of the price triggers orders of a symbol."""
        side = Side.SELL if falls else Side.BUY
        orders = [each.proposal for each in self._book.of(symbol)]
        return [each.trigger for each in orders if each.side is side and each.trigger is not None]

    def finish(self) -> list[OrderProposal]:
        """Return the orders that the end of the data leaves."""
        left = [each.proposal for book in (self._book, self._arriving) for each in book]
        if left:
            self.ended[NOT_TRIGGERED] += len(left)
        return left

    def _report(
        self, order: StopOrder, state: str, reason: str = "", *, is_open: bool = False
    ) -> None:
        snapshot = order.snapshot(state, reason)
        self._portfolio.set_order(snapshot, is_open=is_open)
        self._on_change(order.proposal.symbol)
        if take := self._takers.get(order.strategy_key):
            take(StrategyUpdate(None, snapshot))


def _name(key: str, signal: Signal | OrderProposal) -> tuple[object, ...]:
    """Return what makes a signal the same one."""
    at = signal.at if isinstance(signal, Signal) else signal.decided_at.timestamp()
    return key, signal.symbol, signal.side, at
