"""Market data of Upbit: quotes, the stream as a TickStream, candles, and the list of markets.

Candles come in pages of 200, newest first, back from a moment that is excluded. A candle exists
only where something traded, so that pages are continued at their oldest candle.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from qts import telemetry
from qts.domain import (
    Bar,
    Clock,
    Instrument,
    Market,
    OrderBook,
    Timeframe,
    UnreachableError,
    upbit_instrument,
)
from qts.venues.config import RequestPriority, UpbitConfig, is_loopback
from qts.venues.errors import VenueRejectedError
from qts.venues.market_data import (
    SETTLE_S,
    BarPage,
    Choose,
    EarliestBars,
    MarketData,
    Quote,
    VenueLimits,
    check_clock,
)
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


MAX_CANDLES = 200
_OPENED = datetime(2017, 9, 25, tzinfo=UTC).timestamp()  # the first candle of Upbit
_PATHS = {Timeframe.M1: "/v1/candles/minutes/1", Timeframe.D1: "/v1/candles/days"}


class UpbitHistoryRules:
    """Candles since Upbit opened; a day begins at midnight UTC."""

    market = Market.UPBIT
    zone = UTC

    def __init__(self, config: UpbitConfig) -> None:
        self.simulated = is_loopback(config.url)
        self.per_second = float(config.quotes_per_second)

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:  # noqa: ARG002 - as the port has it
        return EarliestBars(_OPENED, "Upbit has no older candles")

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        return end - bars * timeframe.seconds

    def latest(self, timeframe: Timeframe, now: float) -> float:
        return (now - SETTLE_S) // timeframe.seconds * timeframe.seconds

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        return math.ceil((end - start) / timeframe.seconds / MAX_CANDLES)


class UpbitHistory:
    """BarHistory of Upbit."""

    def __init__(self, client: UpbitClient) -> None:
        self._client = client

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        before = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = [("market", symbol), ("to", before), ("count", str(MAX_CANDLES))]
        rows = await self._client.call(
            "GET", _PATHS[timeframe], values, "quotes", RequestPriority.HISTORY
        )
        check_clock("Upbit", self._client.skew)
        try:
            bars = sorted((_bar(symbol, timeframe, row) for row in rows), key=lambda bar: bar.at)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreachableError(f"Upbit sent candles that cannot be parsed: {error}") from None
        oldest = bars[0].at - timeframe.seconds if bars else start
        return BarPage([bar for bar in bars if start < bar.at <= end], max(start, oldest))

    async def symbols(self) -> list[str] | None:
        """Return the symbols that Upbit lists."""
        rows = await self._client.call(
            "GET", "/v1/market/all", [], "quotes", RequestPriority.HISTORY
        )
        return [str(row["market"]) for row in rows]


def _bar(symbol: str, timeframe: Timeframe, row: dict[str, Any]) -> Bar:
    opened = datetime.fromisoformat(row["candle_date_time_utc"]).replace(tzinfo=UTC).timestamp()
    return Bar(
        symbol,
        timeframe,
        opened + timeframe.seconds,
        float(row["opening_price"]),
        float(row["high_price"]),
        float(row["low_price"]),
        float(row["trade_price"]),
        float(row["candle_acc_trade_volume"]),
        float(row["candle_acc_trade_price"]),
    )


_QUOTE = "KRW-"  # markets in BTC and USDT are not traded


class _Event(msgspec.Struct, frozen=True):
    warning: bool = False
    caution: dict[str, bool] = {}


class _MarketRow(msgspec.Struct, frozen=True):
    market: str
    korean_name: str = ""
    english_name: str = ""
    market_event: _Event = _Event()


def parse_markets(rows: Any) -> Iterable[Instrument]:
    """Yield the won markets of a decoded reply; raise msgspec.ValidationError for another form."""
    for row in msgspec.convert(rows, list[_MarketRow]):
        if row.market.startswith(_QUOTE):
            event = row.market_event
            yield upbit_instrument(
                row.market,
                name=row.korean_name,
                name_en=row.english_name,
                caution=event.warning or any(event.caution.values()),
            )


async def fetch_upbit_instruments(config: UpbitConfig, clock: Clock) -> list[Instrument]:
    """Fetch the list, which needs no key; raise UnreachableError if it cannot be had or read."""
    keyless = msgspec.structs.replace(config, access_key=None, secret_key=None)
    async with UpbitClient.open(keyless, clock) as client:
        values = [("is_details", "true")]
        rows = await client.call("GET", "/v1/market/all", values, "quotes", RequestPriority.ACCOUNT)
    try:
        found = list(parse_markets(rows))
    except msgspec.ValidationError as error:
        raise UnreachableError(f"the market list of Upbit has another form: {error}") from None
    if not found:
        raise UnreachableError("the market list of Upbit holds no market in won")
    return found
