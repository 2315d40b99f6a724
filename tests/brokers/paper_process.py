"""Process with a paper broker, for tests to kill: trades at random and prints each result.

python -m tests.brokers.paper_process DATABASE_URL SEED
"""

from __future__ import annotations

import asyncio
import random
import sys
from decimal import Decimal

from qts.brokers import FeesConfig, PaperBroker, PaperConfig
from qts.database import Database, DatabaseConfig
from qts.domain import OrderRequest, OrderType, Secret, Side, SystemClock, Tick
from qts.venues import VenueRejectedError
from tests.instruments import LISTED

CONFIG = PaperConfig(volume_share=0.5)
SYMBOL = "005930"


async def live(url: str, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - reproducible on purpose
    pool = DatabaseConfig(pool_min=1, pool_max=3)
    async with (
        Database.open(Secret(url), pool) as database,
        PaperBroker.open(database, CONFIG, FeesConfig(), LISTED, SystemClock()) as broker,
    ):
        for number in range(100_000):
            price = 70_000 + 100 * rng.randrange(-5, 6)
            broker.on_tick(Tick(SYMBOL, price, 20, price, price + 100))
            request = OrderRequest(
                client_order_id=f"{seed}-{number}",
                symbol=SYMBOL,
                side=rng.choice(list(Side)),
                type=OrderType.LIMIT,
                quantity=Decimal(rng.randrange(1, 30)),
                price=Decimal(70_000 + 100 * rng.randrange(-5, 6)),
            )
            try:
                print("placed", await broker.place(request), flush=True)
            except VenueRejectedError:
                print("rejected", request.client_order_id, flush=True)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], int(sys.argv[2])))
