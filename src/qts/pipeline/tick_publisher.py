"""The path of a tick from the feed to its consumers, on the loop's thread.

record ─▶ stops ─▶ PRICE_TICK (P1) ─▶ strategies
      └─▶ portfolio, cache, paper matching
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from qts.cache import Cache, CachedPrice
from qts.domain import Clock, Market, Tick, market_for_symbol
from qts.events import EventEngine
from qts.events import payloads as p
from qts.feed import PatternRecord, best_bid_ask
from qts.pipeline.portfolio import Portfolio

OnTick = Callable[[str, float, float, float, float], None]  # symbol, price, bid, ask, volume


class TickPublisher:
    """A sink of the feed; `paper` matches paper orders against each tick, None elsewhere."""

    def __init__(
        self,
        engine: EventEngine,
        portfolio: Portfolio,
        cache: Cache,
        clock: Clock,
        paper: OnTick | None,
    ) -> None:
        self._engine = engine
        self._portfolio = portfolio
        self._cache = cache
        self._clock = clock
        self._paper = paper
        self._day_volumes: dict[str, float] = {}
        self.count = 0

    def __call__(self, record: PatternRecord) -> None:
        snapshot = record.snapshot
        inputs = snapshot.observation.inputs
        bid, ask = best_bid_ask(inputs.kis_raw)
        self.tick(snapshot.context.symbol, inputs.price, inputs.volume, bid, ask)

    def tick(self, symbol: str, price: float, day_volume: float, bid: float, ask: float) -> None:
        """Publish a tick; `day_volume` is cumulative, the published volume is the increment."""
        if not price > 0:
            return
        now = self._clock.now().timestamp()
        volume = max(0.0, day_volume - self._day_volumes.get(symbol, day_volume))
        self._day_volumes[symbol] = day_volume
        self.count += 1
        self._portfolio.apply_tick(Tick(symbol, price, volume, bid or price, ask or price, now))
        payload = p.PriceTick(symbol=symbol, price=price, volume=volume, bid=bid, ask=ask)
        # The stops run inside publish: an exit they start on the loop runs after what follows here.
        self._engine.publish(self._engine.new_event("PRICE_TICK", payload, "feed"))
        self._push_price(symbol, price, day_volume, bid, ask, now)
        if self._paper is not None:
            self._paper(symbol, price, bid, ask, volume)

    def _push_price(
        self, symbol: str, price: float, volume: float, bid: float, ask: float, now: float
    ) -> None:
        whole = market_for_symbol(symbol) is Market.KRX
        last, low, high = (_exact(value, whole) for value in (price, bid or price, ask or price))
        self._cache.prices.push(
            CachedPrice(
                symbol=symbol,
                bid=low,
                ask=max(low, high),
                last=last,
                volume=_exact(volume, whole),
                timestamp=int(now * 1000),
                ver=self.count,
            )
        )


def _exact(value: float, whole: bool) -> Decimal:
    return Decimal(int(value)) if whole else Decimal(repr(value))
