"""Orders, as QTS sends them to the exchange in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal

from memory_venue.exchange import Exchange
from qts.brokers import ExecutionReport, OrderMatches, StreamGap
from qts.domain import Account, AccountKey, BrokerOrder, Fill, Holding, OrderRequest

SETTLE_S = 1.0


class MemoryBroker:
    """Broker: the exchange keeps our client order ids and numbers its trades."""

    name = "memory"

    def __init__(self, exchange: Exchange, key: AccountKey) -> None:
        self._exchange = exchange
        self.key = key

    async def place(self, request: OrderRequest) -> str:
        return self._exchange.place(request)

    async def cancel(self, broker_order_id: str) -> None:
        self._exchange.cancel(broker_order_id)

    async def find_order(
        self,
        request: OrderRequest,
        sent_at: datetime,  # noqa: ARG002 - the id is enough
        known: frozenset[str],
    ) -> OrderMatches:
        found = [
            order.report()
            for order in self._exchange.orders.values()
            if order.request.client_order_id == request.client_order_id
            and order.number not in known
        ]
        return OrderMatches(tuple(found))

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        orders = self._exchange.orders.values()
        return [each.report() for each in orders if each.is_open or each.placed_at >= since]

    async def fills(self, since: datetime) -> Sequence[Fill]:
        found = (fill for fill in self._exchange.fills() if fill.at >= since)
        return sorted(found, key=lambda fill: fill.at)

    async def account(self) -> Account:
        exchange = self._exchange
        holdings = (
            Holding(
                symbol=symbol,
                quantity=quantity,
                average_price=exchange.paid[symbol] / quantity,
            )
            for symbol, quantity in exchange.held.items()
            if quantity
        )
        return Account(cash=exchange.cash, holdings=tuple(holdings))

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        """Yield reports; orders that wait meet the book of every second meanwhile."""
        reports: asyncio.Queue[Fill | BrokerOrder] = asyncio.Queue()
        settling = asyncio.create_task(self._settle())
        self._exchange.listeners.append(reports)
        try:
            yield StreamGap("connected")
            while True:
                yield await reports.get()
        finally:
            self._exchange.listeners.remove(reports)
            settling.cancel()

    async def _settle(self) -> None:
        while True:
            await self._exchange.clock.sleep(SETTLE_S)
            self._exchange.settle()


class MemoryOrderPreview:
    """OrderPreview: what the exchange says of an order before it is placed."""

    can_test = True

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def buying_power(self, request: OrderRequest) -> Decimal:  # noqa: ARG002 - cash buys anything
        return self._exchange.cash

    async def test(self, request: OrderRequest) -> None:
        self._exchange.check(request)
