"""Main of a feed process for measurements: `python -m qts.verify.tick_source RATE`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Collection, Sequence

from qts.domain import Secret, Tick
from qts.feed import FeedStatus
from qts.outbox import NatsBusConfig
from qts.roles import NO_FEED_STATUS, FeedPublisher, RoleConnection
from qts.verify.role_ticks import URL, VENUE

SYMBOLS = tuple(f"{number:06}" for number in range(500))
STEP_S = 0.0005


class _Feed:
    """A feed that watches nothing."""

    def watch(self, symbols: Sequence[str], on_order: Collection[str]) -> None:
        pass

    def price_age_s(self, symbol: str) -> float | None:  # noqa: ARG002 - the port
        return None

    def base_price(self, symbol: str) -> float:  # noqa: ARG002 - the port
        return 0.0

    def status(self) -> FeedStatus:
        return NO_FEED_STATUS


async def publish(url: Secret, rate: int) -> None:
    """Publish so many ticks a second until killed, each with the time at which it was made."""
    async with RoleConnection.open(NatsBusConfig(url=url), "verify feed") as connection:
        publisher = FeedPublisher(connection, VENUE)
        running = asyncio.create_task(publisher.run(_Feed()))
        made, began_s = 0, time.monotonic()
        while not running.done():
            for number in range(made, int((time.monotonic() - began_s) * rate)):
                symbol = SYMBOLS[number % len(SYMBOLS)]
                publisher.on_tick(Tick(symbol, 10_000.0 + number % 100, 1.0, at=time.time()))
                made = number + 1
            await asyncio.sleep(STEP_S)
        await running


if __name__ == "__main__":
    asyncio.run(publish(Secret(os.environ[URL]), int(sys.argv[1])))
