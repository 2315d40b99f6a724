"""State of the market beside prices: indices, their volatility, volume surges, order books.

INDEX_UPDATE, VIX_UPDATE ─▶ realised volatility ─▶ micro risk loop: warn, sell half, sell all
VOLUME_UPDATE            ─▶ the latest surges, for the operator
ORDERBOOK_UPDATE         ─▶ the portfolio's order books, for the strategies
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from qts.domain import Clock, OrderBook
from qts.events import Event, EventPort
from qts.pipeline.portfolio import Portfolio
from qts.risk import IndexVolatility, MicroRiskLoop, StopsConfig

MAX_SURGES = 20
SHOWN_LEVELS = 5


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    value: float
    change: float  # since the previous close, as a fraction; 0 where unknown


class VolumeSurge(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    symbol: str
    volume: float
    turnover: float


class MarketStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Indices, volatility and the latest surges of volume."""

    indices: dict[str, IndexStatus] = {}
    volatility_index: float = 0.0  # 0: none
    realised_volatility: float = 0.0
    surges: list[VolumeSurge] = []  # newest first
    books: dict[str, OrderBook] = {}  # the best levels of fresh ones


def merged_markets(found: Sequence[MarketStatus]) -> MarketStatus:
    """Return the market of all venues of a run: the higher volatility, all indices and surges."""
    if len(found) == 1:
        return found[0]
    surges = sorted((each for of in found for each in of.surges), key=lambda each: -each.at)
    return MarketStatus(
        indices={name: value for of in found for name, value in of.indices.items()},
        volatility_index=max(of.volatility_index for of in found),
        realised_volatility=max(of.realised_volatility for of in found),
        surges=surges[:MAX_SURGES],
        books={symbol: book for of in found for symbol, book in of.books.items()},
    )


class MarketState:
    """Registers its handlers when constructed; lane workers call them, any thread reads."""

    def __init__(
        self,
        engine: EventPort,
        micro_risk: MicroRiskLoop,
        config: StopsConfig,
        portfolio: Portfolio,
        clock: Clock,
    ) -> None:
        self._micro_risk = micro_risk
        self._portfolio = portfolio
        self._clock = clock
        self._lock = threading.Lock()
        self._volatility = IndexVolatility(config.volatility_window_s)
        self._indices: dict[str, IndexStatus] = {}
        self._vix = self._realised = 0.0
        self._surges: deque[VolumeSurge] = deque(maxlen=MAX_SURGES)
        engine.on("INDEX_UPDATE", self._on_index, essential=True)
        engine.on("VIX_UPDATE", self._on_vix, essential=True)
        engine.on("VOLUME_UPDATE", self._on_volume)
        engine.on("ORDERBOOK_UPDATE", self._on_book)

    def status(self) -> MarketStatus:
        now = self._clock.now().timestamp()
        books = {
            symbol: replace(book, bids=book.bids[:SHOWN_LEVELS], asks=book.asks[:SHOWN_LEVELS])
            for symbol, book in dict(self._portfolio.books).items()
            if book.is_fresh(now)
        }
        with self._lock:
            return MarketStatus(
                indices=dict(self._indices),
                volatility_index=self._vix,
                realised_volatility=round(self._realised, 4),
                surges=list(self._surges),
                books=books,
            )

    def _on_index(self, event: Event) -> None:
        update = event.payload
        at = self._clock.monotonic_ns() / 1e9
        with self._lock:
            self._indices[update.index] = IndexStatus(value=update.value, change=update.change)
            self._realised = self._volatility.update(update.index, update.value, update.change, at)
            self._micro_risk.volatility(self._vix, self._realised)

    def _on_vix(self, event: Event) -> None:
        with self._lock:
            self._vix = event.payload.value
            self._micro_risk.volatility(self._vix, self._realised)

    def _on_book(self, event: Event) -> None:
        self._portfolio.apply_book(event.payload)

    def _on_volume(self, event: Event) -> None:
        update = event.payload
        surge = VolumeSurge(
            at=event.timestamp,
            symbol=update.symbol,
            volume=update.volume,
            turnover=update.turnover,
        )
        with self._lock:
            self._surges.appendleft(surge)
