"""Path of every quote, live or replayed: tick, surge detector, bursts, observer."""

from __future__ import annotations

from datetime import datetime

from qts.domain import OrderBook, Tick
from qts.feed.burst import BurstManager
from qts.feed.callbacks import FeedCallbacks
from qts.feed.config import FeedConfig
from qts.feed.observer import (
    Context,
    Inputs,
    Meta,
    Mode,
    Observation,
    ObservationSnapshot,
    Observer,
    State,
)
from qts.feed.surge import PriceCache, SurgeDetector
from qts.feed.ticks import TickBuilder
from qts.venues import IndexQuote, Quote

_NO_CALLBACKS = FeedCallbacks()


class QuoteIngest:
    """Entry point of quotes. `at` is in seconds of a monotonic clock, `time` the wall clock.

    `callbacks.on_tick` is called before anything else is done with a quote: an exit does not wait
    for the disk.
    """

    def __init__(
        self,
        config: FeedConfig,
        observer: Observer,
        session_id: str,
        callbacks: FeedCallbacks = _NO_CALLBACKS,
        *,
        mode: str = "PROD",
        market: str = "KRX",
    ) -> None:
        self.cache = PriceCache(config.cache_ttl_s)
        self.bursts = BurstManager(config.max_bursts, config.burst_s)
        self.surges = 0
        self.interval_ms: dict[Mode, float] = {"normal": config.scan_s * 1e3, "burst": 1e3}
        self._detector = SurgeDetector(self.cache, config.price_change, config.volume_ratio)
        self._observer = observer
        self._session_id = session_id
        self._mode = mode
        self._market = market
        self._callbacks = callbacks
        self._volume_ratio = config.volume_ratio
        self._index_symbol = config.index_symbol
        self._ticks = TickBuilder()
        self._bases: dict[str, float] = {}

    def base_price(self, symbol: str) -> float:
        """Return the price that the day's limits are computed from; 0 where it is not known."""
        return self._bases.get(symbol, 0.0)

    def ingest(self, quote: Quote, at: float, time: datetime) -> None:
        tick = self._ticks.from_quote(quote, time.timestamp())
        if quote.base:
            self._bases[quote.symbol] = quote.base
        if tick is not None:
            self._callbacks.on_tick(tick)
            if tick.symbol == self._index_symbol:
                self._callbacks.on_index(IndexQuote(tick.symbol, tick.price))
        self._detect(quote.symbol, quote.price, quote.volume, at)
        polling: Mode = "burst" if quote.symbol in self.bursts else "normal"
        interval = self.interval_ms[polling]
        self._observer.on_snapshot(
            ObservationSnapshot(
                Meta(time, self._session_id, self._mode, quote.source, interval),
                Context("market", "raw", quote.symbol, self._market),
                Observation(_inputs(quote, tick), {}, State(polling)),
            )
        )

    def ingest_book(self, book: OrderBook) -> None:
        """Pass on an order book; ticks without quotes are quoted by it."""
        self._ticks.take_book(book)
        self._callbacks.on_book(book)

    def ingest_recorded(self, snapshot: ObservationSnapshot) -> None:
        """Pass on a recorded snapshot unchanged, and detect surges as in a live run."""
        inputs, at = snapshot.observation.inputs, snapshot.meta.time.timestamp()
        self.bursts.end(at)
        self._detect(snapshot.context.symbol, inputs.price, inputs.volume, at)
        self._observer.on_snapshot(snapshot)

    def _detect(self, symbol: str, price: float, volume: float, at: float) -> None:
        surge = self._detector.observe(symbol, price, volume, at)
        self.bursts.on_price(symbol, price, at)
        if surge is None:
            return
        self.surges += 1
        if surge.volume_ratio > self._volume_ratio:
            self._callbacks.on_volume(surge)
        if self.bursts.offer(surge, at):
            self._callbacks.on_surge(surge)


def _inputs(quote: Quote, tick: Tick | None) -> Inputs:
    """Return what is recorded: the venue's row, and bid and ask as the tick had them."""
    bid, ask = (tick.bid, tick.ask) if tick is not None else (quote.bid, quote.ask)
    return Inputs(quote.price, quote.volume, quote.raw, bid, ask, quote.at)
