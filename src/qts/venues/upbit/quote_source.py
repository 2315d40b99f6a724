"""Market data of Upbit: quotes of many markets per request, and the stream as a TickStream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import aiohttp

from qts import telemetry
from qts.domain import Clock, Market, OrderBook
from qts.venues.config import UpbitConfig
from qts.venues.errors import VenueRejectedError
from qts.venues.market_data import Choose, MarketData, VenueLimits
from qts.venues.quote import Quote
from qts.venues.ratelimit.limits import RequestPriority
from qts.venues.upbit.client import UpbitClient, quote_limits
from qts.venues.upbit.stream import UpbitStream

SCAN_S = 1.0  # Upbit quotes all markets in few requests
_UNKNOWN_MARKET = "404"  # Upbit's error name
_MAX_PARTS = 32  # requests per search for an unknown market; the next scan continues it

log = telemetry.logger("venues")


class _NothingChosenError(Exception):
    """The permit is returned unused, which keeps the pace."""


class UpbitQuoteSource:
    """Quotes of Upbit, which takes any number of markets per request; the URL fits a few hundred.

    A request with one unknown market fails as a whole: bisection finds the market, and it is
    skipped from then on.
    """

    per_call = 200

    def __init__(self, client: UpbitClient) -> None:
        self._client = client
        self._unknown: set[str] = set()

    async def quotes(self, choose: Choose, priority: RequestPriority) -> list[Quote]:
        chosen: list[str] = []

        def known() -> list[str]:
            chosen[:] = [market for market in choose() if market not in self._unknown]
            if not chosen:  # an empty list would request all
                raise _NothingChosenError
            return chosen

        found: list[Quote] = []
        parts: list[list[str] | Callable[[], list[str]]] = [known]
        for _ in range(_MAX_PARTS):
            part = parts.pop()
            try:
                found += await self._client.tickers(part, priority)
            except _NothingChosenError:
                return []
            except VenueRejectedError as error:
                if error.code != _UNKNOWN_MARKET:
                    raise
                parts += self._split(list(chosen) if callable(part) else part)
                priority = min(priority, RequestPriority.BURST)  # not paced: the others wait for it
            if not parts:
                break
        return found

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        return await self._client.order_book(symbol, priority)

    def _split(self, markets: list[str]) -> list[list[str]]:
        middle = len(markets) // 2
        if middle:
            return [markets[:middle], markets[middle:]]
        self._unknown.update(markets)
        log.error("unknown Upbit symbol; skipped until restart", symbol=markets[0])
        return []


class UpbitTickStream:
    """TickStream of Upbit, which takes the whole set of markets with every change."""

    capacity = 100

    def __init__(
        self,
        client: UpbitClient,
        clock: Clock,
        on_quote: Callable[[Quote], None],
        on_book: Callable[[OrderBook], None],
    ) -> None:
        self._stream = UpbitStream(client, clock, on_quote, on_book=on_book)
        self._markets: set[str] = set()
        self.books: tuple[str, ...] = ()
        self._changed = asyncio.Event()

    @property
    def live(self) -> bool:
        return self._stream.live

    @property
    def symbols(self) -> Collection[str]:
        return self._markets

    @property
    def silence_s(self) -> float:
        return self._stream.silence_s

    def registered_at(self, symbol: str) -> float | None:
        return self._stream.registered_at(symbol)

    def subscribe(self, symbol: str) -> None:
        self._markets.add(symbol)
        self._changed.set()

    def unsubscribe(self, symbol: str) -> None:
        self._markets.discard(symbol)
        self._changed.set()

    def set_books(self, symbols: Sequence[str]) -> None:
        if set(symbols) != set(self.books):
            self.books = tuple(symbols)
            self._changed.set()

    async def run(self) -> None:
        task = asyncio.create_task(self._resubscribe())
        try:
            await self._stream.run()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _resubscribe(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            # A new connection subscribes to all of them again.
            with suppress(aiohttp.ClientError, OSError):
                await self._stream.subscribe(sorted(self._markets), self.books)


def upbit_limits(config: UpbitConfig) -> VenueLimits:
    """Return what Upbit allows for quotes; it has no index prices."""
    return VenueLimits(
        rates=quote_limits(config),
        per_call=UpbitQuoteSource.per_call,
        scan_s=SCAN_S,
        streamed=UpbitTickStream.capacity,
        no_indices="Upbit has none",
    )


def upbit_market_data(client: UpbitClient, clock: Clock) -> MarketData:
    """Return the market data of a connected client; won markets never close."""
    config = client.config
    return MarketData(
        source=UpbitQuoteSource(client),
        limiter=client.limiters["quotes"],
        limits=upbit_limits(config),
        market=Market.UPBIT,
        mode="PROD" if config.url == type(config)().url else "SIMULATION",
        calendar=None,
        secrets=tuple(filter(None, (config.access_key, config.secret_key))),
        open_stream=lambda on_quote, on_book: UpbitTickStream(client, clock, on_quote, on_book),
    )
