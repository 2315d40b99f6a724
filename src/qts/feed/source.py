"""Where quotes come from: the port that the poller asks, and what the feed needs of each venue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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

_NO_SUCH_MARKET = "404"  # Upbit's own name for the error
_PARTS = 32  # requests of one search for an unknown market; the next round goes on with it

log = telemetry.logger("feed")

Choose = Callable[[], Sequence[str]]
Client = KisClient | UpbitClient


class QuoteSource(Protocol):
    @property
    def per_call(self) -> int:
        """Symbols one request can ask for."""
        ...

    async def quotes(self, choose: Choose, priority: RequestPriority) -> list[Quote]:
        """One request; `choose` names its symbols once the budget has granted it."""
        ...


class TickStream(Protocol):
    """Live ticks of a few symbols; they arrive by the callback it was made with."""

    @property
    def live(self) -> bool: ...
    @property
    def free(self) -> int: ...
    def subscribe(self, symbol: str) -> None: ...
    def unsubscribe(self, symbol: str) -> None: ...


class UpbitQuoteSource:
    """Upbit gives any number of markets in one request; an address has room for some hundred.

    For one market that it does not know it answers none of them: it is found by halves, and left
    out from then on.
    """

    per_call = 200

    def __init__(self, client: UpbitClient) -> None:
        self._client = client
        self._unknown: set[str] = set()

    async def quotes(self, choose: Choose, priority: RequestPriority) -> list[Quote]:
        markets = [market for market in choose() if market not in self._unknown]
        if not markets:  # to name none is to ask for all
            async with self._client.budgets["quotes"].request(priority):  # a lane keeps its pace
                return []
        found: list[Quote] = []
        parts = [markets]
        for _ in range(_PARTS):
            part = parts.pop()
            try:
                found += await self._client.tickers(part, priority)
            except VenueRejectedError as error:
                if error.code != _NO_SUCH_MARKET:
                    raise
                parts += self._halves(part)
                priority = min(priority, RequestPriority.BURST)  # no pace: the others wait for it
            if not parts:
                break
        return found

    def _halves(self, markets: list[str]) -> list[list[str]]:
        middle = len(markets) // 2
        if middle:
            return [markets[:middle], markets[middle:]]
        self._unknown.update(markets)
        log.error("Upbit does not know this market; left out until the restart", symbol=markets[0])
        return []


class UpbitTickStream:
    """A Stream of Upbit: it takes the whole set of markets anew whenever one is added or left."""

    room = 100

    def __init__(self, client: UpbitClient, clock: Clock, take: Callable[[Quote], None]) -> None:
        self._stream = UpbitStream(client, clock, take)
        self._markets: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def live(self) -> bool:
        return self._stream.live

    @property
    def free(self) -> int:
        return self.room - len(self._markets)

    def subscribe(self, symbol: str) -> None:
        self._markets.add(symbol)
        self._changed.set()

    def unsubscribe(self, symbol: str) -> None:
        self._markets.discard(symbol)
        self._changed.set()

    async def run(self) -> None:
        following = asyncio.create_task(self._follow())
        try:
            await self._stream.run()
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            # A connection that is lost meanwhile asks for all of them when it is made again.
            with suppress(aiohttp.ClientError, OSError):
                await self._stream.watch(sorted(self._markets))


class FeedVenue(msgspec.Struct, frozen=True, kw_only=True):
    """A venue as the feed has it."""

    source: QuoteSource
    budget: RateLimiter
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
            budget=client.budget,
            market=Market.KRX,
            mode="PAPER" if kis.paper else "PROD" if kis.url is None else "SIMULATION",
            secrets=_set(kis.app_key, kis.app_secret, kis.account, kis.hts_id),
            always_open=False,
        )


def _upbit(client: UpbitClient) -> FeedVenue:
    upbit = client.config
    return FeedVenue(
        source=UpbitQuoteSource(client),
        budget=client.budgets["quotes"],
        market=Market.UPBIT,
        mode="PROD" if upbit.url == type(upbit)().url else "SIMULATION",
        secrets=_set(upbit.access_key, upbit.secret_key),
        always_open=True,
    )


def _set(*secrets: Secret | None) -> tuple[Secret, ...]:
    return tuple(secret for secret in secrets if secret)
