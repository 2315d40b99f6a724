"""A market under the control of a test, and the collector of a broker's reports."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from typing import Any, NamedTuple

from qts.brokers import Broker, ExecutionReport
from qts.domain import Fill, ManualClock, OrderRequest, OrderType, Side


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
