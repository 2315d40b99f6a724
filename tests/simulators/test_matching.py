"""The matching engine: no fill without an order, and every share accounted for."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import at
from qts.simulators.matching import (
    Lifetime,
    MatchingEngine,
    Side,
    SimulatedAccount,
    SimulatedFill,
    SimulatedOrder,
)

BELL = at(date(2026, 11, 16), 9)
CASH = 50_000_000


def market(start: int = BELL) -> StockMarket:
    made = StockMarket(start, 7, 4, surges_per_hour=60, suspended=0)
    for _ in made.advance(start):
        pass
    return made


class Trading(RuleBasedStateMachine):
    """Any orders, cancels and seconds: engine, market and account agree."""

    def __init__(self) -> None:
        super().__init__()
        self.market = market(BELL - 20)
        self.engine = MatchingEngine(self.market)
        self.account = SimulatedAccount(CASH, buy_ppm=140, sell_ppm=1_640)
        self.orders: list[SimulatedOrder] = []
        self.fills: list[SimulatedFill] = []
        self.reported = 0
        self.fees = 0

    @rule(
        side=st.sampled_from(["buy", "sell"]),
        index=st.integers(0, 3),
        quantity=st.integers(1, 3000),
        offset=st.none() | st.integers(-6, 6),
        lifetime=st.sampled_from(["day", "ioc", "fok"]),
    )
    def place(
        self, side: Side, index: int, quantity: int, offset: int | None, lifetime: Lifetime
    ) -> None:
        price = int(self.market.price[index])
        limit = None if offset is None else price + offset * self.market.table.tick(price)
        order = SimulatedOrder(len(self.orders) + 1, index, side, quantity, limit, lifetime)
        if not self.account.reserve(order, limit or int(self.market.upper[index])):
            return
        self.orders.append(order)
        self._settle(self.engine.submit(order))
        self.account.refresh(order)
        if lifetime == "fok":
            assert order.filled in (0, quantity)
        if lifetime != "day":
            assert not order.open

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.orders))
        before = order.remaining
        part = data.draw(st.none() | st.integers(1, 500))
        gone = self.engine.cancel(order, part)
        self.account.refresh(order)
        assert gone == (before if part is None else min(part, before))
        assert order.remaining == before - gone

    @rule(index=st.integers(0, 3), percent=st.floats(-6, 6), over_s=st.integers(1, 20))
    def surge(self, index: int, percent: float, over_s: int) -> None:
        self.market.inject_surge(index, percent, over_s)

    @rule(seconds=st.integers(1, 30))
    def pass_time(self, seconds: int) -> None:
        for _ in self.market.advance(self.market.time + seconds):
            fills = self.engine.step()
            for side in ("buy", "sell"):
                for index in range(4):
                    taken = sum(
                        f.quantity for f in fills if f.order.side == side and f.order.index == index
                    )
                    trade = self.market.last_trade(index)
                    assert taken <= (trade.quantity if trade else 0)
            self._settle(fills)

    def _settle(self, fills: list[SimulatedFill]) -> None:
        for fill in fills:
            self.account.settle(fill)
            self.account.refresh(fill.order)
            self.fees += self.account.fee(fill.order.side, fill.price * fill.quantity)
        self.fills += fills

    @invariant()
    def every_share_is_accounted_for(self) -> None:
        for order in self.orders:
            assert order.filled == sum(f.quantity for f in self.fills if f.order is order)
            assert order.paid == sum(f.price * f.quantity for f in self.fills if f.order is order)
            assert order.filled + order.cancelled + order.remaining == order.quantity
            assert order.remaining >= 0
            assert order.open == (order.remaining > 0)
        assert {f.number for f in self.fills} == set(range(1, len(self.fills) + 1))

    @invariant()
    def no_fill_is_worse_than_its_limit(self) -> None:
        assert all(f.order.accepts(f.price) for f in self.fills)

    @invariant()
    def cash_and_holdings_add_up(self) -> None:
        spent = sum(f.price * f.quantity * (1 if f.order.side == "buy" else -1) for f in self.fills)
        assert self.account.cash == CASH - spent - self.fees
        assert self.account.available >= 0
        for index, held in self.account.holdings.items():
            signed = sum(
                f.quantity * (1 if f.order.side == "buy" else -1)
                for f in self.fills
                if f.order.index == index
            )
            assert held.quantity == signed >= held.locked >= 0

    @invariant()
    def open_orders_hold_what_they_may_cost_and_no_more(self) -> None:
        buys = [o for o in self.orders if o.open and o.side == "buy"]
        assert self.account.locked == sum(
            self.account.cost(o.limit or int(self.market.upper[o.index]), o.remaining) for o in buys
        )
        for index, held in self.account.holdings.items():
            sales = [o for o in self.orders if o.open and o.side == "sell" and o.index == index]
            assert held.locked == sum(o.remaining for o in sales)


TestTrading = Trading.TestCase
TestTrading.settings = settings(max_examples=25, stateful_step_count=25)


def place(engine: MatchingEngine, side: Side, quantity: int, limit: int | None) -> SimulatedOrder:
    order = SimulatedOrder(1, 0, side, quantity, limit)
    engine.submit(order)
    return order


def test_a_market_order_walks_the_book() -> None:
    made = market()
    engine, book = MatchingEngine(made), made.book(0)
    two = book.asks[0].quantity + 5
    order = place(engine, "buy", two, None)
    assert [(f.price, f.quantity) for f in order.fills] == [
        (book.asks[0].price, book.asks[0].quantity),
        (book.asks[1].price, 5),
    ]


def test_two_orders_cannot_match_the_same_quantity_in_a_second() -> None:
    made = market()
    engine, book = MatchingEngine(made), made.book(0)
    place(engine, "buy", book.asks[0].quantity, book.asks[0].price)
    second = place(engine, "buy", 10, book.asks[0].price)
    assert second.filled == 0
    assert second.open


def test_an_order_waits_behind_the_queue_of_its_price() -> None:
    made = market()
    engine, book = MatchingEngine(made), made.book(0)
    order = place(engine, "buy", 1, book.bids[0].price)
    assert order.ahead == book.bids[0].quantity


def test_orders_that_rest_together_share_what_trades() -> None:
    made = market()
    engine = MatchingEngine(made)
    price = made.book(0).bids[2].price
    orders = [place(engine, "buy", 10_000, price) for _ in range(3)]
    made.inject_surge(0, -2.5, over_s=2)
    for _ in range(20):
        before = made.volume[0]
        for _ in made.advance(made.time + 1):
            fills = engine.step()
        assert sum(fill.quantity for fill in fills) <= made.volume[0] - before
    assert orders[0].filled > 0
    assert all(fill.price == price for order in orders for fill in order.fills)


@pytest.mark.parametrize("limit", [None, 10**6])
def test_an_auction_fills_at_its_single_price(limit: int | None) -> None:
    made = market(BELL - 15)
    engine = MatchingEngine(made)
    order = place(engine, "buy", 3, int(made.upper[0]) if limit else None)
    assert order.fills == []
    for _ in made.advance(BELL):
        engine.step()
    assert [(f.price, f.quantity) for f in order.fills] == [(int(made.open[0]), 3)]


def test_an_interrupted_symbol_is_not_matched() -> None:
    made = market()
    engine = MatchingEngine(made)
    made.inject_halt(0, 30)
    order = place(engine, "buy", 3, None)
    for _ in made.advance(made.time + 29):
        engine.step()
        assert order.filled == 0
    for _ in made.advance(made.time + 2):
        engine.step()
    assert order.filled == 3


def test_day_orders_end_with_the_day() -> None:
    made = market()
    engine = MatchingEngine(made)
    order = place(engine, "buy", 3, int(made.lower[0]))
    assert engine.end_of_day() == [order]
    assert (order.open, order.cancelled, engine.open_orders) == (False, 3, [])
