"""A process that moves or handles events of one bus, to be killed.

Its only argument is an Order in JSON; it prints `ready` when it runs. SIGTERM lets it finish.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import msgspec
import uvloop

from qts.database import Database, DatabaseConfig
from qts.domain import Secret
from qts.outbox import KafkaBusConfig, NatsBusConfig, OutboxConfig, StreamConfig, open_relayed_bus
from tests.outbox.kit import QUICK
from tests.outbox.program import Effects


class Order(msgspec.Struct):
    database: str
    role: str  # relay, effect, hold: a handler's kind
    stream: str
    nats: str | None = None
    kafka: dict[str, str] | None = None
    max_attempts: int = 10


def settings_of(order: Order) -> OutboxConfig:
    stream = StreamConfig(ordered=True, max_attempts=order.max_attempts, **QUICK)
    streams = {order.stream.removeprefix("everbit.").replace(".", "_"): stream}
    if order.kafka is not None:
        return OutboxConfig(bus="kafka", kafka=KafkaBusConfig(**order.kafka), **streams)  # type: ignore[arg-type]
    nats = NatsBusConfig(url=Secret(order.nats or ""))
    return OutboxConfig(bus="nats", nats=nats, **streams)  # type: ignore[arg-type]


async def serve(order: Order) -> None:
    async with (
        Database.open(Secret(order.database), DatabaseConfig(pool_min=1, pool_max=12)) as database,
        open_relayed_bus(database, settings_of(order)) as bus,
    ):
        work = (
            bus.relay()
            if order.role == "relay"
            else bus.consumer(order.stream, Effects(database, order.role))
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.stop)
        print("ready", flush=True)
        await work.run()


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=Order)))
