"""Path of every quote, live or replayed: tick, surge detector, bursts, record of the observer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from qts.domain import OrderBook, Tick
from qts.feed.bursts import BurstManager, PriceCache, Surge, SurgeDetector
from qts.feed.config import FeedConfig
from qts.venues import IndexQuote, Quote

Mode = Literal["normal", "burst"]
SCHEMA = 2  # 1 has no bid, ask and venue_at


class Meta(msgspec.Struct, frozen=True, gc=False):
    time: datetime
    session_id: str
    mode: str  # PROD, PAPER, SIMULATION or REPLAY: origin of the quotes
    tick_source: str
    loop_interval_ms: float


class Context(msgspec.Struct, frozen=True, gc=False):
    source: str
    stage: str
    symbol: str
    market: str


class Inputs(msgspec.Struct, frozen=True, gc=False):
    price: float
    volume: float
    kis_raw: dict[str, Any]  # the venue's message, whichever venue it is
    bid: float = 0.0  # 0: not sent
    ask: float = 0.0
    venue_at: float = 0.0  # of the last trade by the venue's clock, in seconds since 1970


class State(msgspec.Struct, frozen=True, gc=False):
    polling_mode: Mode


class Observation(msgspec.Struct, frozen=True, gc=False):
    inputs: Inputs
    computed: dict[str, float]
    state: State


class ObservationSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Quote of one symbol with its context."""

    meta: Meta
    context: Context
    observation: Observation


class PatternRecord(msgspec.Struct, frozen=True, gc=False):
    """Snapshot as it is recorded, numbered within its session."""

    schema: int
    number: int
    snapshot: ObservationSnapshot


ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(PatternRecord)


Sink = Callable[[PatternRecord], None]


class Observer:
    """Sinks are called in order: the recorder first, so that what others receive is written."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._numbers = itertools.count(1)

    def on_snapshot(self, snapshot: ObservationSnapshot) -> PatternRecord:
        record = PatternRecord(SCHEMA, next(self._numbers), snapshot)
        for sink in self._sinks:
            sink(record)
        return record


# Best bid and ask in the venue's row, for records of schema 1, which hold them nowhere else.
_BID = ("inter2_bidp", "bidp1", "BIDP1", "bid_price")
_ASK = ("inter2_askp", "askp1", "ASKP1", "ask_price")


class TickBuilder:
    """Builder of the ticks of one feed or record, in their order."""

    def __init__(self) -> None:
        self._day_volumes: dict[str, float] = {}
        self._books: dict[str, OrderBook] = {}

    def from_quote(self, quote: Quote, at: float) -> Tick | None:
        """Return the tick of a quote received at `at`; None for a halted or untraded symbol."""
        symbol, price = quote.symbol, quote.price
        if not 0 < price < math.inf:
            return None
        volume = self._increment(symbol, quote.volume)
        bid, ask = quote.bid, quote.ask
        if not (bid and ask):
            best_bid, best_ask = self._book_quotes(symbol, price, at)
            bid, ask = bid or best_bid, ask or best_ask
        return Tick(symbol, price, volume, bid, ask, at, quote.at)

    def from_record(self, record: PatternRecord, *, cumulative: bool = True) -> Tick | None:
        """Return the tick as it was received; `cumulative` says that volumes are the day's."""
        snapshot = record.snapshot
        inputs, symbol = snapshot.observation.inputs, snapshot.context.symbol
        price, bid, ask = inputs.price, inputs.bid, inputs.ask
        if not 0 < price < math.inf:
            return None
        if record.schema == 1:
            bid, ask = _first(inputs.kis_raw, _BID), _first(inputs.kis_raw, _ASK)
        volume = self._increment(symbol, inputs.volume) if cumulative else inputs.volume
        at = snapshot.meta.time.timestamp()
        return Tick(symbol, price, volume, bid or price, ask or price, at, inputs.venue_at)

    def take_book(self, book: OrderBook) -> None:
        """Quote the symbol's ticks by this book, where the venue sends none with them."""
        self._books[book.symbol] = book

    def _book_quotes(self, symbol: str, price: float, at: float) -> tuple[float, float]:
        """Return bid and ask of a fresh book around the price, else the price itself."""
        book = self._books.get(symbol)
        if book is None or not book.is_fresh(at):
            return price, price
        bid, ask = (side[0].price if side else price for side in (book.bids, book.asks))
        return min(bid, price), max(ask, price)

    def _increment(self, symbol: str, day_volume: float) -> float:
        volume = max(0.0, day_volume - self._day_volumes.get(symbol, day_volume))
        self._day_volumes[symbol] = day_volume
        return volume


def _first(raw: Mapping[str, object], names: tuple[str, ...]) -> float:
    for name in names:
        if name in raw:
            try:
                return max(0.0, float(str(raw[name])))
            except ValueError:
                return 0.0
    return 0.0


def ignore(_value: object) -> None:
    """Take a value that nothing is done with."""


class FeedCallbacks(NamedTuple):
    """Consumers of a feed, called on its event loop; what is not given is ignored."""

    on_tick: Callable[[Tick], None] = ignore
    on_book: Callable[[OrderBook], None] = ignore
    on_index: Callable[[IndexQuote], None] = ignore
    on_volume: Callable[[Surge], None] = ignore  # the volume's rate passed `feed.volume_ratio`
    on_surge: Callable[[Surge], None] = ignore  # a burst starts


NO_CALLBACKS = FeedCallbacks()


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
        callbacks: FeedCallbacks = NO_CALLBACKS,
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
