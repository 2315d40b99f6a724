"""Sources of quotes: the port of the poller, and what the feed needs of each venue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

import aiohttp
import msgspec

from qts import telemetry
from qts.domain import Clock, Market, Secret
from qts.venues import (
    KisClient,
    KisQuotes,
    Quote,
    RateLimiter,
    RequestPriority,
    UpbitClient,
    UpbitStream,
    VenueRejectedError,
)

_UNKNOWN_MARKET = "404"  # Upbit's error name
_MAX_PARTS = 32  # requests per search for an unknown market; the next scan continues it

log = telemetry.logger("feed")

Choose = Callable[[], Sequence[str]]
Client = KisClient | UpbitClient


class QuoteSource(Protocol):
    @property
    def per_call(self) -> int:
        """Symbols per request."""
        ...

    async def quotes(self, choose: Choose, priority: RequestPriority) -> list[Quote]:
        """Send one request; `choose` returns its symbols once the limiter has granted it."""
        ...


class TickStream(Protocol):
    """Live ticks of a few symbols, delivered to the callback it was created with.

    A symbol that the venue refuses leaves `symbols`.
    """

    capacity: int

    @property
    def live(self) -> bool: ...
    @property
    def symbols(self) -> Collection[str]: ...
    @property
    def silence_s(self) -> float:
        """Seconds since the last message of the connection."""
        ...

    def registered_at(self, symbol: str) -> float | None:
        """Return when the venue accepted the symbol on this connection, None if it has not."""
        ...

    def subscribe(self, symbol: str) -> None: ...
    def unsubscribe(self, symbol: str) -> None: ...


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
        markets = [market for market in choose() if market not in self._unknown]
        if not markets:  # an empty list would request all
            async with self._client.limiters["quotes"].request(priority):  # keeps the pace
                return []
        found: list[Quote] = []
        parts = [markets]
        for _ in range(_MAX_PARTS):
            part = parts.pop()
            try:
                found += await self._client.tickers(part, priority)
            except VenueRejectedError as error:
                if error.code != _UNKNOWN_MARKET:
                    raise
                parts += self._split(part)
                priority = min(priority, RequestPriority.BURST)  # not paced: the others wait for it
            if not parts:
                break
        return found

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
        self, client: UpbitClient, clock: Clock, on_quote: Callable[[Quote], None]
    ) -> None:
        self._stream = UpbitStream(client, clock, on_quote)
        self._markets: set[str] = set()
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
                await self._stream.subscribe(sorted(self._markets))


class FeedVenue(msgspec.Struct, frozen=True, kw_only=True):
    """Venue as the feed uses it."""

    source: QuoteSource
    limiter: RateLimiter
    market: Market
    mode: str
    secrets: tuple[Secret, ...]
    always_open: bool

    @classmethod
    def of(cls, client: Client, *, multi: bool) -> FeedVenue:
        if isinstance(client, UpbitClient):
            return _upbit(client)
        kis = client.config
        return cls(
            source=KisQuotes(client, multi=multi),
            limiter=client.limiter,
            market=Market.KRX,
            mode="PAPER" if kis.paper else "PROD" if kis.url is None else "SIMULATION",
            secrets=_present(kis.app_key, kis.app_secret, kis.account, kis.hts_id),
            always_open=False,
        )


def _upbit(client: UpbitClient) -> FeedVenue:
    upbit = client.config
    return FeedVenue(
        source=UpbitQuoteSource(client),
        limiter=client.limiters["quotes"],
        market=Market.UPBIT,
        mode="PROD" if upbit.url == type(upbit)().url else "SIMULATION",
        secrets=_present(upbit.access_key, upbit.secret_key),
        always_open=True,
    )


def _present(*secrets: Secret | None) -> tuple[Secret, ...]:
    return tuple(secret for secret in secrets if secret)
