"""Path of every quote, live or replayed: price cache, surge detector, bursts, observer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from qts.feed.burst import BurstManager
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
from qts.feed.surge import PriceCache, Surge, SurgeDetector
from qts.venues import Quote


class QuoteIngest:
    """Entry point of quotes. `at` is in seconds of a monotonic clock, `time` the wall clock."""

    def __init__(
        self,
        config: FeedConfig,
        observer: Observer,
        session_id: str,
        *,
        mode: str = "PROD",
        market: str = "KRX",
        on_surge: Callable[[Surge], None] | None = None,
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
        self._on_surge = on_surge

    def ingest(self, quote: Quote, at: float, time: datetime) -> None:
        self._detect(quote.symbol, quote.price, quote.volume, at)
        polling: Mode = "burst" if quote.symbol in self.bursts else "normal"
        interval = self.interval_ms[polling]
        self._observer.on_snapshot(
            ObservationSnapshot(
                Meta(time, self._session_id, self._mode, quote.source, interval),
                Context("market", "raw", quote.symbol, self._market),
                Observation(Inputs(quote.price, quote.volume, quote.raw), {}, State(polling)),
            )
        )

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
        if self.bursts.offer(surge, at) and self._on_surge is not None:
            self._on_surge(surge)
