"""Requests of quotes, of order books of open orders, and of the index values of KIS."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError, OrderBook
from qts.feed.config import FeedConfig
from qts.venues import (
    IndexQuote,
    IndexSource,
    Quote,
    QuoteSource,
    RateLimitedError,
    RequestPriority,
    VenueRejectedError,
)

_RETRY_INTERVAL_S = 0.5  # after a lost reply

Chosen = tuple[
    Sequence[str], Callable[[bool], None]
]  # the symbols, and a callback for success or failure

log = telemetry.logger("feed")


class QuoteRequester:
    """Requests in flight; `wait_fatal` raises a permanent error: a wrong key, or a bug."""

    def __init__(
        self, source: QuoteSource, clock: Clock, on_quote: Callable[[Quote], None]
    ) -> None:
        self._source = source
        self._clock = clock
        self._on_quote = on_quote
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] | None = None
        self.polls = self.failed = self.refused = 0

    async def enqueue(self, choose: Callable[[], Chosen], priority: RequestPriority) -> None:
        """Queue a request; return when it is granted, not when the reply arrives."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._request(choose, priority, granted))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.done() or granted.cancelled():
                task.cancel()
            raise

    async def wait_fatal(self) -> None:
        """Wait for a permanent error and raise it."""
        if self._fatal is None:
            self._fatal = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._fatal)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._fatal is not None:
            self._fatal.cancel()
            self._fatal = None

    async def _request(
        self,
        choose: Callable[[], Chosen],
        priority: RequestPriority,
        granted: asyncio.Future[None],
    ) -> None:
        done: Callable[[bool], None] = _ignore

        def chosen() -> Sequence[str]:
            nonlocal done
            symbols, done = choose()
            _settle(granted)
            return symbols

        succeeded = False
        try:
            for quote in await self._source.quotes(chosen, priority):
                self._on_quote(quote)
            succeeded = True
            self.polls += 1
        except RateLimitedError:
            self.refused += 1
        except OperationError as error:
            self.failed += 1
            succeeded = isinstance(error, VenueRejectedError)  # a retry would change nothing
            if due := telemetry.log_every(10.0, "poll failed"):
                log.warning("poll failed; retrying", error=str(error), **due)
            await self._clock.sleep(_RETRY_INTERVAL_S)
        finally:
            done(succeeded)
            _settle(granted)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fatal is not None and not self._fatal.done():
            self._fatal.set_exception(error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _ignore(_succeeded: bool) -> None:
    """Ignore the result of a request that had no symbols yet."""


MAX_SHARE = 0.1  # of the key's requests in a second


def book_interval_s(per_second: int) -> float:
    """Return the seconds between two requests of a key with that limit."""
    return max(1.0, 1 / (MAX_SHARE * per_second))


class BookPoller:
    """Polls the symbols that `due` returns, the longest unpolled first; for one event loop."""

    def __init__(
        self,
        source: QuoteSource,
        clock: Clock,
        interval_s: float,
        due: Callable[[], Sequence[str]],
        on_book: Callable[[OrderBook], None],
    ) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s
        self._due = due
        self._on_book = on_book
        self._polled_ns: dict[str, int] = {}

    async def run(self) -> None:
        """Poll until cancelled; a failed request is repeated in its turn."""
        while True:
            due = self._due()
            self._polled_ns = {s: at for s, at in self._polled_ns.items() if s in due}
            if due:
                symbol = min(due, key=lambda each: self._polled_ns.get(each, -math.inf))
                self._polled_ns[symbol] = self._clock.monotonic_ns()
                await self._poll(symbol)
            await self._clock.sleep(self._interval_s)

    async def _poll(self, symbol: str) -> None:
        try:
            book = await self._source.order_book(symbol, RequestPriority.BURST)
        except OperationError as error:
            if due := telemetry.log_every(60.0, "order book"):
                log.warning("order book not read; retrying", symbol=symbol, error=str(error), **due)
            return
        if not book.bids and not book.asks:  # no book: a symbol that the venue does not list
            return
        self._on_book(msgspec.structs.replace(book, at=self._clock.now().timestamp()))


# Codes of KIS. KRX calls KOSPI 1001, which is KOSDAQ here.
INDICES = {"0001": "KOSPI", "1001": "KOSDAQ", "2001": "KOSPI200"}
VOLATILITY_RANGE = (5.0, 150.0)  # KIS answers an unknown code with zeros


def index_codes(config: FeedConfig) -> list[str]:
    """Return the codes to request, the volatility index last."""
    return [*INDICES, *([config.volatility_index] if config.volatility_index else [])]


class IndexPoller:
    """Requests each index once per interval while the market is open."""

    def __init__(
        self,
        quotes: IndexSource,
        clock: Clock,
        config: FeedConfig,
        on_index: Callable[[IndexQuote], None],
        is_open: Callable[[], bool],
    ) -> None:
        self._quotes = quotes
        self._clock = clock
        self._codes = index_codes(config)
        self._volatility_index = config.volatility_index
        self._interval_s = config.index_interval_s
        self._on_index = on_index
        self._is_open = is_open

    async def run(self) -> None:
        """Poll until cancelled; a failed request is repeated with the next interval."""
        while True:
            began_ns = self._clock.monotonic_ns()
            if self._is_open():
                for code in self._codes:
                    await self._poll(code)
            passed_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            await self._clock.sleep(max(0.05, self._interval_s - passed_s))

    async def _poll(self, code: str) -> None:
        try:
            quote = await self._quotes.index(code, RequestPriority.WATCHED)
        except OperationError as error:
            if due := telemetry.log_every(60.0, f"index {code}"):
                log.warning("index not read; retrying", index=code, error=str(error), **due)
            return
        volatile = code == self._volatility_index
        low, high = VOLATILITY_RANGE if volatile else (0.0, math.inf)
        if not low < quote.value < high:
            if due := telemetry.log_every(600.0, f"index value {code}"):
                log.warning("index has no value; skipped", index=code, value=quote.value, **due)
            return
        name = INDICES.get(code, code)
        self._on_index(IndexQuote(name, quote.value, quote.change, volatile))
