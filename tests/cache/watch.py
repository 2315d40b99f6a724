"""Feed, fills and readers that run while something breaks, and check every result.

The feed and the readers are two caches on one Redis, as two processes would be. A price is
correct when it is consistent and fresh; a position is correct when it is no older than the last
invalidation before the read.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import TypeVar

from qts.cache import Cache, CachedPrice, Invalidation
from qts.cache.call_policy import CircuitBreaker
from qts.domain import CacheStaleDataError, PriceDataUnavailableError
from tests.cache import samples
from tests.cache.conftest import until
from tests.cache.loader import TableLoader

T = TypeVar("T")

SYMBOLS = ("005930", "000660", "KRW-BTC")
TOLERANCE_S = 2.0  # for a busy machine; a call without a timeout takes five


class Watch:
    """Load and checks; `results` counts outcomes: "price", "price refused", "position"."""

    def __init__(self, feed: Cache, reader: Cache, loader: TableLoader) -> None:
        self.feed = feed
        self.reader = reader
        self.loader = loader
        self.results: Counter[str] = Counter()
        self.longest_s = 0.0
        self._invalidated = dict.fromkeys(SYMBOLS, 0)

    @classmethod
    @asynccontextmanager
    async def over(
        cls, feed: Cache, reader: Cache, loader: TableLoader, recovers_s: float = 30.0
    ) -> AsyncIterator[Watch]:
        watch = cls(feed, reader, loader)
        await loader.store(samples.risk())
        for symbol in SYMBOLS:
            await watch._fill(symbol, 1)
        loops: list[Callable[[], Awaitable[None]]] = [
            watch._feed,
            watch._fills,
            watch._prechecks,
            watch._prices,
            watch._positions,
        ]
        stop = asyncio.Event()
        tasks = [asyncio.create_task(cls._repeat(each, stop)) for each in loops]
        try:
            await until(lambda: watch.results["price"] > 5)
            yield watch
            await watch.recovered(recovers_s)
        finally:
            stop.set()
            await asyncio.gather(*tasks)  # a wrong result raises here
        limit_s = (reader._tiers.config.read_ms + reader._tiers.config.load_timeout_ms) / 1000
        assert watch.longest_s < limit_s + TOLERANCE_S

    async def during(self, seconds: float) -> None:
        """Keep running while something is broken."""
        await asyncio.sleep(seconds)

    async def recovered(self, within_s: float = 30.0) -> None:
        """Wait until Redis serves the readers again, without a restart."""
        for cache in (self.feed, self.reader):
            breaker = cache._tiers.policy.breaker
            await until(functools.partial(_is_closed, breaker), within_s=within_s)
        before = self.reader.prices.hits.redis
        served = self.results.copy()
        await until(lambda: self.reader.prices.hits.redis > before + 3, within_s=within_s)
        for symbol in SYMBOLS:
            more = functools.partial(self._served_more, symbol, served[f"price {symbol}"])
            await until(more, within_s=within_s)

    def _served_more(self, symbol: str, before: int) -> bool:
        return self.results[f"price {symbol}"] > before

    @staticmethod
    async def _repeat(loops: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await loops()
            await asyncio.sleep(0.005)

    async def _feed(self) -> None:
        for n, symbol in enumerate(SYMBOLS):
            self.feed.prices.push(samples.price(symbol, 10_000 * (n + 1)))
        await asyncio.sleep(0.01)

    async def _fills(self) -> None:
        for symbol in SYMBOLS:
            await self._fill(symbol, self._invalidated[symbol] + 1)
        await asyncio.sleep(0.05)

    async def _fill(self, symbol: str, ver: int) -> None:
        await self.loader.store(samples.position(symbol, qty=ver, ver=ver))
        await self.reader.invalidate(Invalidation("position", symbol))
        self._invalidated[symbol] = ver

    async def _prechecks(self) -> None:
        for symbol in SYMBOLS:
            known = self._invalidated[symbol]
            if (found := await self._timed("precheck", self.reader.precheck(symbol))) is not None:
                self._check_price(symbol, found.price)
                assert found.position is not None
                assert found.position.symbol == symbol
                assert found.position.ver >= known
                assert found.risk.account == "account"

    async def _prices(self) -> None:
        for symbol in SYMBOLS:
            price = await self._timed("price", self.reader.prices.get(symbol))
            if price is not None:
                self._check_price(symbol, price)
                self.results[f"price {symbol}"] += 1

    async def _positions(self) -> None:
        for symbol in SYMBOLS:
            known = self._invalidated[symbol]
            found = await self._timed("position", self.reader.positions.get(symbol))
            assert found is not None, "PostgreSQL is up, so there is a result"
            assert found.symbol == symbol
            assert found.qty == found.ver >= known

    async def _timed(self, what: str, request: Awaitable[T]) -> T | None:
        """Return the result, or None if it was refused; other errors propagate."""
        started = time.monotonic()
        try:
            result = await request
        except (CacheStaleDataError, PriceDataUnavailableError):
            self.results[f"{what} refused"] += 1
            return None
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - started)
        self.results[what] += 1
        return result

    def _check_price(self, symbol: str, price: CachedPrice) -> None:
        last = Decimal(10_000 * (SYMBOLS.index(symbol) + 1))
        assert (price.symbol, price.last) == (symbol, last)
        assert price.ask - price.bid == 100
        assert samples.now_ms() - price.received_at <= 100 + TOLERANCE_S * 1000


def _is_closed(breaker: CircuitBreaker) -> bool:
    return breaker.state == "closed"
