"""The feed of an account: its ticks and index values to their consumers, and what it prices first.

tick ─▶ stops ─▶ PRICE_TICK (P1) ─▶ strategies
    └─▶ portfolio, bars, cache, paper matching

Priced first are positions, and orders from the moment they are submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from typing import Protocol

from qts import telemetry
from qts.cache import Cache, CachedLevel, CachedOrderBook, CachedPrice
from qts.database import Database
from qts.domain import AccountKey, BookLevel, Clock, OperationError, OrderBook, Tick
from qts.events import EventPort, Payload
from qts.events import payloads as p
from qts.feed import FeedCallbacks, Surge
from qts.orders import symbols_on_order
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.runner_hooks import tick_key
from qts.venues import IndexQuote

UPDATE_INTERVAL_S = 0.1
ORDERS_INTERVAL_S = 1.0
SUBMITTED_S = 5.0  # until the ledger shows the order, or that there is none
CACHED_BOOK_INTERVAL_S = 0.25

log = telemetry.logger("pipeline")
_AGE = telemetry.gauge(
    "qts_position_price_age_seconds",
    "Seconds since the price of a position was last confirmed, in the trading session.",
    ("symbol",),
)


class PaperMarket(Protocol):
    """What matches paper orders."""

    def on_tick(self, tick: Tick) -> None: ...
    def on_book(self, book: OrderBook) -> None: ...


class TickPublisher:
    """Consumer of the feed; `cache` and `paper`, which matches paper orders, take ticks if any.

    While spans are recorded, one of `trace_every` ticks is traced; none with 0. While it is paused,
    as of a standby, prices and bars are kept up to date and nothing is published.
    """

    def __init__(
        self,
        engine: EventPort,
        portfolio: Portfolio,
        cache: Cache | None,
        bars: Callable[[Tick], None],
        paper: PaperMarket | None,
        trace_every: int,
    ) -> None:
        self._engine = engine
        self._portfolio = portfolio
        self._cache = cache
        self._bars = bars
        self._paper = paper
        self._trace_every = trace_every if telemetry.tracing() else 0
        self._cached_books: dict[str, float] = {}  # when the cache took the last one
        self.count = 0
        self.is_paused = False

    @property
    def callbacks(self) -> FeedCallbacks:
        """What the feed calls."""
        on_tick = self._publish_sampled if self._trace_every else self
        return FeedCallbacks(on_tick, self.publish_book, self.publish_index, self.publish_volume)

    def __call__(self, tick: Tick) -> None:
        self._portfolio.apply_tick(tick)
        if self.is_paused:
            self._bars(tick)
            return
        self.count += 1
        # The stops run inside publish: an exit they start on the loop runs after what follows here.
        self._engine.publish(self._engine.new_event("PRICE_TICK", tick, "feed"))
        self._bars(tick)
        if self._cache is not None:
            self._cache.prices.push(self._price(tick))
        if self._paper is not None:
            self._paper.on_tick(tick)

    def _publish_sampled(self, tick: Tick) -> None:
        """Pass on a tick, and trace it where its turn has come."""
        if (self.count + 1) % self._trace_every:
            self(tick)
            return
        with telemetry.span("tick", symbol=tick.symbol, price=tick.price) as sampled:
            sampled.remember(tick_key(tick))
            self(tick)

    def publish_book(self, book: OrderBook) -> None:
        """Publish an order book; the cache takes at most four of a symbol in a second."""
        if self.is_paused:
            return
        self._engine.publish(self._engine.new_event("ORDERBOOK_UPDATE", book, "feed"))
        if self._paper is not None:
            self._paper.on_book(book)
        if self._cache is None:
            return
        if book.at - self._cached_books.get(book.symbol, 0.0) >= CACHED_BOOK_INTERVAL_S:
            self._cached_books[book.symbol] = book.at
            self._cache.books.push(self._cached_book(book))

    def _cached_book(self, book: OrderBook) -> CachedOrderBook:
        def levels(side: tuple[BookLevel, ...]) -> tuple[CachedLevel, ...]:
            return tuple(CachedLevel(_exact(p), _exact(q)) for p, q in side)

        # A price above 90 million won does not fit the cache in units of 1e-8; it is a whole one.
        in_won = all(price.is_integer() for price, _ in (*book.bids, *book.asks))
        return CachedOrderBook(
            symbol=book.symbol,
            bids=levels(book.bids),
            asks=levels(book.asks),
            timestamp=int(book.at * 1000),
            unit=Decimal(1) if in_won else Decimal("0.00000001"),
            ver=int(book.at * 1000),
        )

    def publish_index(self, quote: IndexQuote) -> None:
        """Publish the value of an index, or of an index of volatility."""
        if quote.is_volatility:
            self._publish("VIX_UPDATE", p.VixUpdate(value=quote.value, change=quote.change))
        else:
            update = p.IndexUpdate(index=quote.name, value=quote.value, change=quote.change)
            self._publish("INDEX_UPDATE", update)

    def publish_volume(self, surge: Surge) -> None:
        """Publish a surge of volume: what was traded since the price before, and its value."""
        turnover = surge.volume * surge.price
        update = p.VolumeUpdate(symbol=surge.symbol, volume=surge.volume, turnover=turnover)
        self._publish("VOLUME_UPDATE", update)

    def resume(self, symbols: Iterable[str]) -> None:
        """Publish from now on, beginning with the last prices of these symbols."""
        self.is_paused = False
        for symbol in symbols:
            if (tick := self._portfolio.last_tick(symbol)) is not None:
                self._engine.publish(self._engine.new_event("PRICE_TICK", tick, "feed"))

    def _publish(self, name: str, payload: Payload) -> None:
        if self.is_paused:
            return
        self._engine.publish(self._engine.new_event(name, payload, "feed"))

    def _price(self, tick: Tick) -> CachedPrice:
        bid = _exact(tick.bid)
        return CachedPrice(
            symbol=tick.symbol,
            bid=bid,
            ask=max(bid, _exact(tick.ask)),
            last=_exact(tick.price),
            volume=_exact(tick.volume),
            timestamp=int(tick.at * 1000),
            ver=self.count,
        )


def _exact(value: float) -> Decimal:
    return Decimal(int(value)) if value.is_integer() else Decimal(repr(value))


class PricedFeed(Protocol):
    """What the list needs of the feed."""

    def watch(self, symbols: Sequence[str], on_order: Collection[str]) -> None: ...
    def price_age_s(self, symbol: str) -> float | None: ...


class WatchList:
    """Keeps the feed's watched symbols equal to what is held or on order; for one event loop."""

    def __init__(self, portfolio: Portfolio, feed: PricedFeed, clock: Clock) -> None:
        self._portfolio = portfolio
        self._feed = feed
        self._clock = clock
        self._submitted: dict[str, int] = {}
        self._on_order: list[str] = []
        self._watched: list[str] = []
        self._with_books: set[str] = set()
        self._exported: set[str] = set()

    def submitted(self, symbol: str) -> None:
        """Watch the symbol of an order that was just submitted."""
        self._submitted[symbol] = self._clock.monotonic_ns()
        self.update()

    def update(self) -> None:
        """Pass the symbols on if they changed: the largest positions first, then orders.

        Stop orders that wait come last.
        """
        now = self._clock.monotonic_ns()
        self._submitted = {
            symbol: at for symbol, at in self._submitted.items() if now - at < SUBMITTED_S * 1e9
        }
        portfolio = self._portfolio
        held = sorted(
            (each for each in portfolio.positions.values() if each.quantity),
            key=lambda each: -abs(each.quantity * portfolio.price(each)),
        )
        symbols = [each.symbol for each in held]
        waiting = [each.symbol for each in portfolio.orders.values() if each.trigger is not None]
        watched = list(dict.fromkeys([*symbols, *self._submitted, *self._on_order, *waiting]))
        on_order = {*self._submitted, *self._on_order}
        if set(watched) != set(self._watched) or on_order != self._with_books:
            self._feed.watch(watched, on_order)
            self._watched, self._with_books = watched, on_order

    async def run(self, database: Database, key: AccountKey) -> None:
        """Follow positions and open orders until cancelled."""
        due_ns = 0
        while True:
            if self._clock.monotonic_ns() >= due_ns:
                due_ns = self._clock.monotonic_ns() + round(ORDERS_INTERVAL_S * 1e9)
                await self._read_orders(database, key)
                self._export_ages()
            self.update()
            await self._clock.sleep(UPDATE_INTERVAL_S)

    async def _read_orders(self, database: Database, key: AccountKey) -> None:
        try:
            self._on_order = await symbols_on_order(database, key)
        except OperationError as error:
            if due := telemetry.log_every(10.0, "watch-list"):
                text = "open orders not read; the last ones are watched"
                log.warning(text, error=str(error), **due)

    def _export_ages(self) -> None:
        held = {each.symbol for each in self._portfolio.positions.values() if each.quantity}
        ages = {symbol: self._feed.price_age_s(symbol) for symbol in held}
        known = {symbol: age for symbol, age in ages.items() if age is not None}
        for symbol in self._exported - known.keys():
            _AGE.remove(symbol)
        for symbol, age in known.items():
            _AGE.labels(symbol).set(age)
        self._exported = set(known)
