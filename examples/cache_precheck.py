"""A feed pushes prices, a gate reads a PreCheck before an order; no Redis needed.

Run it: python examples/cache_precheck.py
"""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal

from qts.cache import Cache, CacheConfig, CachedPosition, CachedPrice, CachedRisk, CacheEntry
from qts.cache.store import MemoryStore
from qts.domain import CacheStaleDataError

NOW = int(time.time() * 1000)

ROWS: dict[tuple[str, str], CacheEntry] = {
    ("position", "005930"): CachedPosition(
        symbol="005930",
        qty=Decimal(100),
        avg_price=Decimal(74500),
        unrealized_pnl=Decimal(55000),
        exposure_pct=Decimal("0.05"),
        updated_at=NOW,
        ver=1,
    ),
    ("risk", "account"): CachedRisk(
        exposure_used=Decimal("0.45"),
        daily_pnl=Decimal(125000),
        trade_count=15,
        remaining_limit=Decimal("0.55"),
        max_exposure_pct=Decimal("0.8"),
        daily_loss_limit=Decimal(-500000),
        updated_at=NOW,
        ver=1,
    ),
}


class TableLoader:
    """CacheLoader in place of a database."""

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        return ROWS.get((kind, name))


def tick(last: int) -> CachedPrice:
    return CachedPrice(
        symbol="005930",
        bid=Decimal(last - 50),
        ask=Decimal(last + 50),
        last=Decimal(last),
        volume=Decimal(1234567),
        timestamp=int(time.time() * 1000),
    )


async def main() -> None:
    async with Cache.open(MemoryStore(), TableLoader(), CacheConfig()) as cache:
        cache.prices.push(tick(75050))
        found = await cache.precheck("005930")
        quantity = found.position.qty if found.position else 0
        print(f"last {found.price.last}, position {quantity}, limit {found.risk.remaining_limit}")

        await asyncio.sleep(0.15)  # the feed sends nothing
        try:
            await cache.precheck("005930")
        except CacheStaleDataError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    asyncio.run(main())
