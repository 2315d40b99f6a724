"""A feed, fills and readers that go on while something breaks, and judge every answer.

The feed and the readers are two caches on one Redis, as two processes would be. A price is
right when it hangs together and is young enough; a position is right when it is no older than
what the readers had been told of before they asked.
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
from qts.cache.breaker import CircuitBreaker
from qts.domain import CacheStaleDataError, PriceDataUnavailableError
from tests.cache import samples
from tests.cache.conftest import until
from tests.cache.loader import TableTruth

T = TypeVar("T")

SYMBOLS = ("005930", "000660", "KRW-BTC")
SLACK_S = 2.0  # this machine runs other tests as well; a call without a limit takes five


class Watch:
    """`answers` counts how each kind of question went: "price", "price refused", "position"."""

    def __init__(self, feed: Cache, reader: Cache, truth: TableTruth) -> None:
        self.feed = feed
        self.reader = reader
        self.truth = truth
        self.answers: Counter[str] = Counter()
        self.longest_s = 0.0
        self._told = dict.fromkeys(SYMBOLS, 0)

    @classmethod
    @asynccontextmanager
    async def over(
        cls, feed: Cache, reader: Cache, truth: TableTruth, recovers_s: float = 30.0
    ) -> AsyncIterator[Watch]:
        watch = cls(feed, reader, truth)
        await truth.keep(samples.risk())
        for symbol in SYMBOLS:
            await watch._fill(symbol, 1)
        work: list[Callable[[], Awaitable[None]]] = [
            watch._feed,
            watch._fills,
            watch._prechecks,
            watch._prices,
            watch._positions,
        ]
        stop = asyncio.Event()
        tasks = [asyncio.create_task(cls._repeat(each, stop)) for each in work]
        try:
            await until(lambda: watch.answers["price"] > 5)
            yield watch
            await watch.recovered(recovers_s)
        finally:
            stop.set()
            await asyncio.gather(*tasks)  # a wrong answer comes out here
        limit_s = (reader._levels.config.read_ms + reader._levels.config.load_timeout_ms) / 1000
        assert watch.longest_s < limit_s + SLACK_S

    async def during(self, seconds: float) -> None:
        """Let it go on for so long while something is broken."""
        await asyncio.sleep(seconds)

    async def recovered(self, within_s: float = 30.0) -> None:
        """Redis serves the readers again, without a restart of anything of ours."""
        for cache in (self.feed, self.reader):
            breaker = cache._levels.guard.breaker
            await until(functools.partial(_is_closed, breaker), within_s=within_s)
        before = self.reader.prices.tally.redis
        served = self.answers.copy()
        await until(lambda: self.reader.prices.tally.redis > before + 3, within_s=within_s)
        for symbol in SYMBOLS:
            more = functools.partial(self._served_more, symbol, served[f"price {symbol}"])
            await until(more, within_s=within_s)

    def _served_more(self, symbol: str, before: int) -> bool:
        return self.answers[f"price {symbol}"] > before

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await work()
            await asyncio.sleep(0.005)

    async def _feed(self) -> None:
        for n, symbol in enumerate(SYMBOLS):
            self.feed.prices.push(samples.price(symbol, 10_000 * (n + 1)))
        await asyncio.sleep(0.01)

    async def _fills(self) -> None:
        for symbol in SYMBOLS:
            await self._fill(symbol, self._told[symbol] + 1)
        await asyncio.sleep(0.05)

    async def _fill(self, symbol: str, ver: int) -> None:
        await self.truth.keep(samples.position(symbol, qty=ver, ver=ver))
        await self.reader.invalidate(Invalidation("position", symbol))
        self._told[symbol] = ver

    async def _prechecks(self) -> None:
        for symbol in SYMBOLS:
            known = self._told[symbol]
            if (found := await self._timed("precheck", self.reader.precheck(symbol))) is not None:
                self._judge_price(symbol, found.price)
                assert found.position is not None
                assert found.position.symbol == symbol
                assert found.position.ver >= known
                assert found.risk.account == "account"

    async def _prices(self) -> None:
        for symbol in SYMBOLS:
            price = await self._timed("price", self.reader.prices.get(symbol))
            if price is not None:
                self._judge_price(symbol, price)
                self.answers[f"price {symbol}"] += 1

    async def _positions(self) -> None:
        for symbol in SYMBOLS:
            known = self._told[symbol]
            found = await self._timed("position", self.reader.positions.get(symbol))
            assert found is not None, "PostgreSQL is there, so there is an answer"
            assert found.symbol == symbol
            assert found.qty == found.ver >= known

    async def _timed(self, what: str, asking: Awaitable[T]) -> T | None:
        """The answer, or None when it was refused; no other error is one a trader can act on."""
        began = time.monotonic()
        try:
            answer = await asking
        except (CacheStaleDataError, PriceDataUnavailableError):
            self.answers[f"{what} refused"] += 1
            return None
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.answers[what] += 1
        return answer

    def _judge_price(self, symbol: str, price: CachedPrice) -> None:
        last = Decimal(10_000 * (SYMBOLS.index(symbol) + 1))
        assert (price.symbol, price.last) == (symbol, last)
        assert price.ask - price.bid == 100
        assert samples.now_ms() - price.received_at <= 100 + SLACK_S * 1000


def _is_closed(breaker: CircuitBreaker) -> bool:
    return breaker.state == "closed"
