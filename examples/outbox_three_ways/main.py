"""Orders are placed and their owners told, on PostgreSQL, NATS or Kafka: a settings file decides.

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


class Desk:
    """Knows the bus by its port only."""

    def __init__(self, database: Database, bus: EventBus) -> None:
        self._database = database
        self._bus = bus
        self.told: dict[str, list[int]] = {}
        self.all_told = asyncio.Event()
        self.handlers = Dispatcher()
        self.handlers.on(TRADE_COMMAND, PlaceOrder)(self.place)
        self.handlers.on(TRADE_EVENT, OrderAccepted)(self.tell)

    async def place(self, order: PlaceOrder, delivery: Delivery) -> None:
        if order.number == 1 and delivery.attempt == 1:
            raise RetryableError("the venue is busy")  # those of its market wait for it
        accepted = OrderAccepted(order.market, order.number)
        async with self._database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id, "place"):
                await self._bus.publish(
                    tx, OutboxEvent.of(TRADE_EVENT, accepted, ("Order", order.market))
                )

    async def tell(self, order: OrderAccepted, delivery: Delivery) -> None:
        async with self._database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id, "tell"):
                self.told.setdefault(order.market, []).append(order.number)
        if sum(map(len, self.told.values())) == ORDERS * len(MARKETS):
            self.all_told.set()


async def main(settings: Path, environment: Mapping[str, str]) -> dict[str, list[int]]:
    config = load(settings, environment)
    async with open_database(config) as database:
        await migrate(database)
        async with open_bus(database, config.outbox) as bus:
            desk = Desk(database, bus)
            consumers = [bus.consumer(name, desk.handlers) for name in (TRADE_COMMAND, TRADE_EVENT)]
            serving = [asyncio.create_task(consumer.run()) for consumer in consumers]
            async with database.transaction() as tx:
                for number in range(ORDERS):
                    for market in MARKETS:
                        order = PlaceOrder(market, number)
                        await bus.publish(
                            tx, OutboxEvent.of(TRADE_COMMAND, order, ("Market", market))
                        )
            await desk.all_told.wait()
            for consumer in consumers:
                consumer.stop()
            await asyncio.gather(*serving)
    return desk.told


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1]), os.environ)))
