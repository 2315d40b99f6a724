"""Place orders and send notifications on PostgreSQL, NATS or Kafka, as the settings file says.

Run it: python examples/outbox_three_ways/main.py examples/outbox_three_ways/nats.toml
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from qts.app import open_database
from qts.config import load
from qts.database import Database, migrate
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EVENT,
    Delivery,
    Dispatcher,
    EventBus,
    OutboxEvent,
    RetryableError,
    mark_handled,
    open_bus,
)

MARKETS = ("KRW-BTC", "KRW-ETH", "KRW-XRP")
ORDERS = 4  # of each market


class PlaceOrder(msgspec.Struct):
    market: str
    number: int


class OrderAccepted(msgspec.Struct):
    market: str
    number: int


class OrderService:
    """Handlers that depend on the port EventBus only."""

    def __init__(self, database: Database, bus: EventBus) -> None:
        self._database = database
        self._bus = bus
        self.notified: dict[str, list[int]] = {}
        self.all_notified = asyncio.Event()
        self.handlers = Dispatcher()
        self.handlers.on(TRADE_COMMAND, PlaceOrder)(self.place)
        self.handlers.on(TRADE_EVENT, OrderAccepted)(self.notify)

    async def place(self, order: PlaceOrder, delivery: Delivery) -> None:
        if order.number == 1 and delivery.attempt == 1:
            raise RetryableError("the venue is busy")  # later orders of its market wait
        accepted = OrderAccepted(order.market, order.number)
        async with self._database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id, "place"):
                await self._bus.publish(
                    tx, OutboxEvent.of(TRADE_EVENT, accepted, ("Order", order.market))
                )

    async def notify(self, order: OrderAccepted, delivery: Delivery) -> None:
        async with self._database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id, "notify"):
                self.notified.setdefault(order.market, []).append(order.number)
        if sum(map(len, self.notified.values())) == ORDERS * len(MARKETS):
            self.all_notified.set()


async def main(settings: Path, environment: Mapping[str, str]) -> dict[str, list[int]]:
    config = load(settings, environment)
    async with open_database(config) as database:
        await migrate(database)
        async with open_bus(database, config.outbox) as bus:
            service = OrderService(database, bus)
            consumers = [
                bus.consumer(name, service.handlers) for name in (TRADE_COMMAND, TRADE_EVENT)
            ]
            serving = [asyncio.create_task(consumer.run()) for consumer in consumers]
            async with database.transaction() as tx:
                for number in range(ORDERS):
                    for market in MARKETS:
                        order = PlaceOrder(market, number)
                        await bus.publish(
                            tx, OutboxEvent.of(TRADE_COMMAND, order, ("Market", market))
                        )
            await service.all_notified.wait()
            for consumer in consumers:
                consumer.stop()
            await asyncio.gather(*serving)
    return service.notified


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1]), os.environ)))
