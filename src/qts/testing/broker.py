"""Suite of every broker, checked against the venue's own record; the market that it moves."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from qts.brokers import Broker, ExecutionReport, StreamGap
from qts.domain import (
    BrokerOrder,
    Fill,
    ManualClock,
    OrderRequest,
    OrderState,
    OrderType,
    Side,
    TimeInForce,
)
from qts.venues import VenueRejectedError


class BrokerRecord(NamedTuple):
    """Order as its venue recorded it."""

    quantity: Decimal
    filled: Decimal
    paid: Decimal
    is_open: bool


class BrokerMarket(ABC):
    """A market under control, with a broker on it and the venue's own record of orders."""

    symbol: str
    quantity: Decimal  # of an order; the best levels of the book hold it several times
    start_cash: Decimal  # enough for a hundred orders
    tolerance = Decimal("0.00001")  # of cash, where venue and broker round separately

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.began = clock.now()
        self._numbers = iter(range(1, 10_000))

    @abstractmethod
    def quote(self) -> tuple[Decimal, Decimal]:
        """Return the best bid and ask."""

    @abstractmethod
    def tick(self) -> Decimal:
        """Return the tick size at the current price."""

    @abstractmethod
    def more_than_shown(self) -> Decimal:
        """Return a quantity that the best ask cannot fill at once."""

    @abstractmethod
    async def move(self, percent: float) -> None:
        """Move the price by `percent` within seconds."""

    @abstractmethod
    async def record(self) -> dict[str, BrokerRecord]:
        """Return the orders by id, as the venue recorded them."""

    @abstractmethod
    async def cash(self) -> Decimal:
        """Return the cash that the venue recorded."""

    def request(self, side: Side = Side.BUY, **changes: Any) -> OrderRequest:
        """Build a market order, or a limit order if a price is given."""
        values: dict[str, Any] = {
            "client_order_id": f"qts-{next(self._numbers)}",
            "symbol": self.symbol,
            "side": side,
            "type": OrderType.LIMIT if "price" in changes else OrderType.MARKET,
            "quantity": self.quantity,
        }
        return OrderRequest(**(values | changes))

    def resting(self, side: Side = Side.BUY, **changes: Any) -> OrderRequest:
        """Build a limit order five ticks away from the market."""
        bid, ask = self.quote()
        price = bid - 5 * self.tick() if side is Side.BUY else ask + 5 * self.tick()
        return self.request(side, price=price, **changes)

    async def until_closed(self, order_id: str, seconds: int = 240) -> None:
        """Advance the market until the order is closed at the venue."""
        for _ in range(seconds):
            if not (await self.record())[order_id].is_open:
                return
            await self.go()
        raise AssertionError(f"{order_id} is open after {seconds} s of the market")

    async def go(self) -> None:
        """Advance the market by a second."""
        await self.clock.advance(1.0)


class ReportListener:
    """Collector of a broker's execution reports."""

    def __init__(self) -> None:
        self.reports: list[ExecutionReport] = []
        self._changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def on(cls, broker: Broker) -> AsyncIterator[ReportListener]:
        """Enter once the stream has sent its first report, a StreamGap."""
        listener = cls()
        task = asyncio.create_task(listener._listen(broker))
        try:
            await listener.until(lambda: len(listener.reports) > 0)
            yield listener
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _listen(self, broker: Broker) -> None:
        async with aclosing(broker.execution_reports()) as reports:  # type: ignore[type-var]
            async for report in reports:
                self.reports.append(report)
                self._changed.set()

    @property
    def fills(self) -> list[Fill]:
        """Fills among the reports."""
        return [report for report in self.reports if isinstance(report, Fill)]

    def filled(self) -> Decimal:
        """Sum the quantities of distinct trades."""
        by_trade_id = {fill.trade_id: fill.quantity for fill in self.fills}
        return sum(by_trade_id.values(), Decimal(0))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds after a report, at most 15 s."""
        async with asyncio.timeout(15):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


NOTHING_KNOWN: frozenset[str] = frozenset()


async def the_order(market: BrokerMarket, order_id: str) -> BrokerOrder:
    """Return the one order of an id that the broker lists."""
    orders = await market.broker.orders(market.began)
    (found,) = [order for order in orders if order.broker_order_id == order_id]
    return found


class BrokerSuite:
    """Orders, fills, reports and the account of a broker; a subclass defines `market`."""

    @pytest.fixture
    def market(self) -> BrokerMarket:
        """The market with the broker under test."""
        raise NotImplementedError("define a fixture `market` that yields a BrokerMarket")

    async def test_a_placed_order_is_listed_as_it_was_asked_for(self, market: BrokerMarket) -> None:
        request = market.resting()
        order_id = await market.broker.place(request)
        order = await the_order(market, order_id)
        assert set(await market.record()) == {order_id}
        assert (order.symbol, order.side, order.type) == (
            request.symbol,
            request.side,
            request.type,
        )
        assert (order.quantity, order.price, order.filled) == (
            request.quantity,
            request.price,
            Decimal(0),
        )
        assert order.state is OrderState.OPEN
        assert abs(order.placed_at - market.clock.now()) < timedelta(seconds=2)

    async def test_a_limit_order_rests_and_fills_when_the_price_comes_through(
        self, market: BrokerMarket
    ) -> None:
        order_id = await market.broker.place(market.resting())
        assert (await market.record())[order_id].is_open
        assert await market.broker.fills(market.began) == []
        await market.move(-2.0)
        await market.until_closed(order_id)
        order = await the_order(market, order_id)
        assert (order.state, order.filled) == (OrderState.FILLED, order.quantity)
        fills = await market.broker.fills(market.began)
        assert order.price is not None
        assert all(fill.price <= order.price for fill in fills)
        assert sum(fill.quantity for fill in fills) == order.quantity

    async def test_an_ioc_order_that_meets_nothing_ends_at_once(self, market: BrokerMarket) -> None:
        order_id = await market.broker.place(market.resting(time_in_force=TimeInForce.IOC))
        await market.go()
        assert not (await market.record())[order_id].is_open
        order = await the_order(market, order_id)
        assert (order.state, order.filled) == (OrderState.CANCELLED, Decimal(0))
        with pytest.raises(VenueRejectedError):
            await market.broker.cancel(order_id)

    async def test_an_ioc_order_fills_what_it_can_and_ends(self, market: BrokerMarket) -> None:
        _, ask = market.quote()
        quantity = market.more_than_shown()
        request = market.request(price=ask, quantity=quantity, time_in_force=TimeInForce.IOC)
        order_id = await market.broker.place(request)
        await market.go()
        record = (await market.record())[order_id]
        assert not record.is_open
        assert 0 < record.filled < quantity
        order = await the_order(market, order_id)
        assert (order.state, order.filled) == (OrderState.CANCELLED, record.filled)

    async def test_a_fok_order_fills_as_a_whole_or_not_at_all(self, market: BrokerMarket) -> None:
        _, ask = market.quote()
        fok: Any = {"price": ask, "time_in_force": TimeInForce.FOK}
        too_large = market.request(quantity=market.more_than_shown(), **fok)
        orders = [await market.broker.place(each) for each in (too_large, market.request(**fok))]
        await market.go()
        killed, filled = [await the_order(market, each) for each in orders]
        assert (killed.state, killed.filled) == (OrderState.CANCELLED, Decimal(0))
        assert (filled.state, filled.filled) == (OrderState.FILLED, market.quantity)

    @pytest.mark.parametrize("side", Side)
    async def test_a_market_order_fills_at_once(self, market: BrokerMarket, side: Side) -> None:
        if side is Side.SELL:
            await market.broker.place(market.request(Side.BUY))
            await market.go()
        order_id = await market.broker.place(market.request(side))
        await market.go()
        order = await the_order(market, order_id)
        assert (order.state, order.side) == (OrderState.FILLED, side)
        assert (await market.record())[order_id].filled == market.quantity

    async def test_partial_fills_add_up(self, market: BrokerMarket) -> None:
        _, ask = market.quote()
        async with ReportListener.on(market.broker) as listener:
            order_id = await market.broker.place(
                market.request(price=ask, quantity=market.more_than_shown())
            )
            await listener.until(lambda: listener.filled() > 0)
            await market.broker.fills(market.began)
            first = await the_order(market, order_id)
            assert first.state is OrderState.OPEN
            assert 0 < first.filled < first.quantity
            await market.move(-2.0)
            await market.until_closed(order_id)
            fills = await market.broker.fills(market.began)
            record = (await market.record())[order_id]
        assert len(fills) >= 2
        assert sum(fill.quantity for fill in fills) == record.filled == record.quantity
        paid = sum((fill.quantity * fill.price for fill in fills), Decimal(0))
        assert abs(paid - record.paid) < Decimal("0.0001")

    async def test_fills_and_execution_reports_agree_by_trade_id(
        self, market: BrokerMarket
    ) -> None:
        async with ReportListener.on(market.broker) as listener:
            for _ in range(3):
                await market.broker.place(market.request())
                await market.go()
            await listener.until(lambda: listener.filled() == 3 * market.quantity)
            reported = {
                fill.trade_id: (fill.broker_order_id, fill.quantity, fill.price, fill.fee)
                for fill in listener.fills
            }
            listed = {
                fill.trade_id: (fill.broker_order_id, fill.quantity, fill.price, fill.fee)
                for fill in await market.broker.fills(market.began)
            }
        assert reported == listed

    async def test_a_filled_order_is_reported(self, market: BrokerMarket) -> None:
        async with ReportListener.on(market.broker) as listener:
            order_id = await market.broker.place(market.request())

            def is_reported() -> bool:
                return any(
                    isinstance(n, BrokerOrder)
                    and (n.broker_order_id, n.state) == (order_id, OrderState.FILLED)
                    for n in listener.reports
                )

            await market.go()
            await listener.until(lambda: is_reported() and listener.filled() >= market.quantity)
            record = (await market.record())[order_id]
        assert not record.is_open
        assert record.filled == record.quantity
        assert listener.filled() == record.filled

    async def test_every_stream_begins_with_a_gap(self, market: BrokerMarket) -> None:
        async with ReportListener.on(market.broker) as listener:
            assert isinstance(listener.reports[0], StreamGap)

    async def test_a_cancelled_order_is_cancelled_and_reported(self, market: BrokerMarket) -> None:
        async with ReportListener.on(market.broker) as listener:
            order_id = await market.broker.place(market.resting())
            await market.broker.cancel(order_id)
            assert not (await market.record())[order_id].is_open
            order = await the_order(market, order_id)
            assert (order.state, order.filled) == (OrderState.CANCELLED, Decimal(0))
            await listener.until(
                lambda: any(
                    isinstance(n, BrokerOrder)
                    and (n.broker_order_id, n.state) == (order_id, OrderState.CANCELLED)
                    for n in listener.reports
                )
            )

    async def test_cancelling_a_filled_order_is_rejected(self, market: BrokerMarket) -> None:
        order_id = await market.broker.place(market.request())
        await market.go()
        with pytest.raises(VenueRejectedError):
            await market.broker.cancel(order_id)
        assert (await the_order(market, order_id)).state is OrderState.FILLED

    async def test_cancelling_twice_is_rejected(self, market: BrokerMarket) -> None:
        order_id = await market.broker.place(market.resting())
        await market.broker.cancel(order_id)
        with pytest.raises(VenueRejectedError):
            await market.broker.cancel(order_id)

    async def test_more_than_the_account_has_is_rejected_and_leaves_nothing(
        self, market: BrokerMarket
    ) -> None:
        bid, _ = market.quote()
        too_much = (market.start_cash / bid).quantize(Decimal(1)) * 3
        with pytest.raises(VenueRejectedError) as buying:
            await market.broker.place(market.request(price=bid, quantity=too_much))
        with pytest.raises(VenueRejectedError):
            await market.broker.place(market.request(Side.SELL))
        assert buying.value.code
        assert await market.record() == {}
        assert (await market.broker.account()).cash == market.start_cash

    async def test_a_price_off_the_tick_is_rejected(self, market: BrokerMarket) -> None:
        bid, _ = market.quote()
        with pytest.raises(VenueRejectedError):
            await market.broker.place(market.request(price=bid + market.tick() / 2))
        assert await market.record() == {}

    async def test_the_account_is_the_sum_of_its_fills(self, market: BrokerMarket) -> None:
        await market.broker.place(market.request())
        await market.go()
        await market.broker.fills(market.began)
        await market.broker.place(market.request(quantity=market.quantity * 2))
        await market.go()
        await market.broker.fills(market.began)
        await market.broker.place(market.request(Side.SELL))
        await market.go()
        fills = await market.broker.fills(market.began)
        account = await market.broker.account()
        spent = sum((f.side.sign * f.quantity * f.price + f.fee for f in fills), Decimal(0))
        assert abs(account.cash - (market.start_cash - spent)) <= market.tolerance
        assert abs(account.cash - await market.cash()) <= Decimal("0.00001")
        (holding,) = account.holdings
        assert (holding.symbol, holding.quantity) == (market.symbol, 2 * market.quantity)
        assert holding.quantity == sum(f.side.sign * f.quantity for f in fills)
        assert all(fill.fee > 0 for fill in fills)

    async def test_an_order_is_found_after_it_was_placed(self, market: BrokerMarket) -> None:
        request, sent_at = market.resting(), market.clock.now()
        order_id = await market.broker.place(request)
        found = await market.broker.find_order(request, sent_at, NOTHING_KNOWN)
        assert [order.broker_order_id for order in found.candidates] == [order_id]

    async def test_orders_of_other_attempts_are_no_candidates(self, market: BrokerMarket) -> None:
        request, sent_at = market.resting(), market.clock.now()
        order_id = await market.broker.place(request)
        found = await market.broker.find_order(request, sent_at, frozenset({order_id}))
        assert found.candidates == ()

    async def test_every_account_has_a_name_and_a_key(self, market: BrokerMarket) -> None:
        assert market.broker.name
        assert market.broker.key.broker == market.broker.name
