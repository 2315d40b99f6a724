"""Workers to be killed: forks as many as requested and replaces each that exits.

Its argument is JSON: url, stream, config, handler, workers. It prints `pid N` for each worker it
starts. SIGTERM lets the workers finish, then it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec
import uvloop

from qts.database import Database, DatabaseConfig
from qts.domain import Secret
from qts.outbox import Delivery, PostgresBus, StreamConfig, mark_handled


class Order(msgspec.Struct):
    url: str
    stream: str
    config: StreamConfig
    handler: str = "effect"
    workers: int = 2


class Effects:
    """Handlers whose effects are rows; `hold` first records its start and waits."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database = database
        self._kind = kind

    async def dispatch(self, delivery: Delivery) -> None:
        if self._kind == "hold":
            await self._database.execute("INSERT INTO began VALUES ($1)", os.getpid())
            await asyncio.sleep(0.5)
        if delivery.envelope.type == "Exit":
            os._exit(9)
        if delivery.envelope.type == "Hang":
            while True:  # not even the event loop runs on
                pass
        number = msgspec.json.decode(delivery.envelope.payload)["number"]
        async with self._database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id):
                await tx.execute(
                    "INSERT INTO effect (event_id, line, number) VALUES ($1, $2, $3)",
                    delivery.event_id,
                    delivery.aggregate_id,
                    number,
                )
        if self._kind == "hold":
            await self._database.execute("INSERT INTO ended VALUES ($1)", os.getpid())


async def work(order: Order) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=8)
    async with Database.open(Secret(order.url), config) as database:
        bus = PostgresBus(database, {order.stream: order.config})
        worker = bus.consumer(order.stream, Effects(database, order.handler))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def start(order: Order) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        uvloop.run(work(order))
        os._exit(0)
    print(f"pid {pid}", flush=True)
    return pid


def main(text: str) -> None:
    order = msgspec.json.decode(text, type=Order)
    children: set[int] = set()
    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True
        for pid in children:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    children.update(start(order) for _ in range(order.workers))
    while children:
        pid, _status = os.wait()
        children.discard(pid)
        if not stopping:
            children.add(start(order))


if __name__ == "__main__":
    main(sys.argv[1])
