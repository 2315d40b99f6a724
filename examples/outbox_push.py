"""Send exactly one push notification per accepted order, even after crashes.

Run it with DATABASE_URL set: python examples/outbox_push.py
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from qts.database import Database, DatabaseConfig, migrate
from qts.domain import Secret
from qts.outbox import (
    TRADE_EVENT,
    Delivery,
    Dispatcher,
    OutboxConfig,
    OutboxEvent,
    PostgresBus,
    RetryableError,
    mark_handled,
)


class OrderAccepted(msgspec.Struct):
    market: str
    side: str


async def main(url: Secret) -> list[str]:
    sent: list[str] = []
    pushed = asyncio.Event()
    dispatcher = Dispatcher()
    async with Database.open(url, DatabaseConfig()) as database:
        await migrate(database)

        @dispatcher.on(TRADE_EVENT, OrderAccepted)
        async def push(payload: OrderAccepted, delivery: Delivery) -> None:
            if delivery.attempt == 1:
                raise RetryableError("the push service is busy", code="HTTP_503")
            async with database.transaction() as tx:
                if await mark_handled(tx, delivery.event_id, "push"):
                    sent.append(f"{payload.side} {payload.market} accepted")
            pushed.set()

        async with PostgresBus.open(database, OutboxConfig().streams) as bus:
            worker = bus.consumer(TRADE_EVENT, dispatcher)
            serving = asyncio.create_task(worker.run())
            event = OutboxEvent.of(TRADE_EVENT, OrderAccepted("KRW-BTC", "BUY"), ("Order", "42"))
            async with database.transaction() as tx:
                # ... store the order here: both are committed, or neither ...
                await bus.publish(tx, event)
                if await bus.publish(tx, event):
                    raise AssertionError("the same event was published twice")
            await pushed.wait()
            worker.stop()
            await serving
    return sent


if __name__ == "__main__":
    print(asyncio.run(main(Secret(os.environ["DATABASE_URL"]))))
