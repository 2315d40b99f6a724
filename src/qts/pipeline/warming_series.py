"""Bars of one symbol while their history is read: ticks are held back until both fit together.

    start          first tick    since                       final at the venue
      │                │           │                               │
      ├─ history, not new bars ────┼─ the bar that was forming ────┤
      │                            ├─ held ticks ──────────────────┼─▶ live

Bars are read at the base timeframes that venues offer: days, and minutes, of which 3m to 1h are
built. The bar that was forming when the first tick came is never built from ticks: ticks are held
from `since` on, the start of the next one, and enter once the history covers all before. So the
series has neither a hole nor half a bar.

Invariant: bars and indicators here are those of a plane that had every tick up to `end`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qts.domain import Bar, RefusedError, Tick, Timeframe
from qts.history import RecentRows
from qts.router import TICK, MarketPlane, bar_session
from qts.strategies import BarSubscription

# What a venue offers, and the timeframes that are built from it.
BASES = {
    Timeframe.M1: (Timeframe.M1, Timeframe.M3, Timeframe.M5, Timeframe.M15, Timeframe.H1),
    Timeframe.D1: (Timeframe.D1,),
}
HELD_S = 300.0  # older ticks are dropped: the history has them by then
MAX_HELD = 10_000

BarsOfStrategy = list[tuple[Bar, tuple[float, ...]]]


class WarmingSeries:
    """Bars of a symbol at one base timeframe, for the strategies that subscribed to them."""

    def __init__(
        self, symbol: str, base: Timeframe, subscribed: Mapping[str, BarSubscription]
    ) -> None:
        self.symbol, self.base = symbol, base
        self.end = 0.0  # of the history that has entered
        self.tries, self.retry_at = 0, 0.0  # of reads that failed
        self.wanted: dict[Timeframe, int] = {}
        self._subscribed = subscribed
        self._plane = MarketPlane(bars_kept=1, layout="inline")
        for key, each in subscribed.items():
            self._plane.subscribe(key, [symbol], each.timeframes, each.indicators)
            for frame in each.timeframes:
                self.wanted[frame] = max(each.warm_up, self.wanted.get(frame, 0))
        self._session = bar_session(symbol)
        self._since = math.inf  # before the first tick
        self._held: deque[Tick] = deque()

    @property
    def has_history(self) -> bool:
        return self.end > 0

    @property
    def needs(self) -> float:
        """Close of the last bar that the history must have; infinite before the first tick."""
        if self.base is Timeframe.D1:
            return self._since - 86_400 + self._session.length_s
        return self._since

    @property
    def is_complete(self) -> bool:
        """Return whether history and held ticks fit together."""
        return self.has_history and self.end >= self.needs

    def hold(self, tick: Tick) -> None:
        """Keep a tick until the history covers all before it."""
        if self._since == math.inf:
            self._since = self._next_start(tick.at)
        if tick.at < self._since:
            return
        self._held.append(tick)
        if len(self._held) > MAX_HELD or self._held[0].at < tick.at - HELD_S:
            self._since = self._next_start(self._held.popleft().at)
            while self._held and self._held[0].at < self._since:
                self._held.popleft()

    def enter(self, recent: RecentRows) -> Iterator[tuple[str, BarsOfStrategy]]:
        """Take what the history has since the last call; yield the bars of each strategy.

        The first call yields as many of each series as its warm-up, the others every bar.
        """
        rows, is_first = recent.rows[recent.rows["at"] > self.end], not self.has_history
        if self.base is Timeframe.D1:
            days = [Bar(self.symbol, self.base, *row) for row in rows.tolist()]
            self._plane.push_bars(days, deliver=True)
        else:
            self._plane.push_many(self._ticks_of(rows))
            self._plane.advance(recent.end)
        self.end = recent.end
        for key, each in self._subscribed.items():
            closed = self._plane.drain(key)
            yield key, list(closed.last(each.warm_up) if is_first else closed)

    def join(self, plane: MarketPlane) -> list[Tick]:
        """Continue in another plane; return the held ticks that follow the history."""
        plane.restore(self._plane.snapshot())
        since = max(self._since, self.end)
        return [tick for tick in self._held if tick.at >= since]

    def _ticks_of(self, rows: Any) -> Any:
        """Return ticks that build the same minutes, and from them all longer timeframes.

        The volume is at the mean price, so that the value of a bar is the venue's.
        """
        if len(rows) and not (rows["low"] > 0).all():
            raise RefusedError(f"{self.symbol}: a bar has a price that is none; expected above 0")
        traded = (rows["volume"] > 0) & (rows["value"] > 0)
        mean = np.divide(rows["value"], rows["volume"], out=rows["close"].copy(), where=traded)
        mean = np.clip(mean, rows["low"], rows["high"])
        prices = (rows["open"], rows["high"], rows["low"], mean, rows["close"])
        ticks = np.zeros((len(rows), len(prices)), TICK)
        ticks["symbol"] = self._plane.symbol_id(self.symbol)
        ticks["price"] = np.stack(prices, axis=1)
        ticks["volume"][:, 3] = rows["volume"]
        ticks["at"] = rows["at"][:, None] - self.base.seconds + np.arange(len(prices))
        return ticks.reshape(-1)

    def _next_start(self, at: float) -> float:
        """Return the start of the first bar that begins at or after this time."""
        length, offset = self.base.seconds, self._session.open_s
        return math.ceil((at - offset) / length) * length + offset
