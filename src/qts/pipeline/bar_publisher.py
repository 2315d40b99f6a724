"""Ticks into the market planes, closed bars out to the strategies; on the loop's thread.

    tick ─┬▶ plane (bars, indicators) ─▶ runner of each strategy that subscribed
          └▶ held back while the history of its series is read
    clock ─▶ planes: close what is due, a little behind the clock

A series (symbol and timeframe) of a strategy with a warm-up begins with the venue's history. Series
without one begin with the first tick: those of strategies without a warm-up, and seconds, which no
venue offers. They are in a plane apart, so that nobody waits for a history that another needs.
Ticks of symbols that no strategy subscribed to cost one lookup.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from qts import telemetry
from qts.domain import Bar, Clock, RefusedError, Tick, Timeframe
from qts.history import RecentRows
from qts.router import TICK, MarketCounts, MarketPlane, bar_session
from qts.strategies import BarSubscription, Strategy, bar_subscription

log = telemetry.logger("pipeline")

ADVANCE_INTERVAL_S = 0.2
BEHIND_S = 0.25  # ticks on their way are in time
LOG_INTERVAL_S = 10.0

# What a venue offers, and the timeframes that are built from it.
BASES = {
    Timeframe.M1: (Timeframe.M1, Timeframe.M3, Timeframe.M5, Timeframe.M15, Timeframe.H1),
    Timeframe.D1: (Timeframe.D1,),
}
HELD_S = 300.0  # older ticks are dropped: the history has them by then
MAX_HELD = 10_000

BarsOfStrategy = list[tuple[Bar, tuple[float, ...]]]

# Takes the key of a strategy, its closed bars, and whether they are new: history is not.
DeliverBars = Callable[[str, BarsOfStrategy, bool], None]


class BarPublisher:
    """Market planes of a run; `has_history` says that a WarmUp reads the history of its series."""

    def __init__(
        self,
        strategies: Iterable[Strategy[Any]],
        symbols: Iterable[str],
        deliver: DeliverBars,
        clock: Clock,
        *,
        has_history: bool,
    ) -> None:
        self._deliver = deliver
        self._clock = clock
        self._has_history = has_history
        self._planes: dict[Timeframe | None, MarketPlane] = {}  # by base; None: no history
        self._symbols: dict[str, dict[Timeframe | None, MarketPlane]] = {}
        self._outputs: list[tuple[str, MarketPlane]] = []  # strategy, and a plane that it is in
        self.subscriptions = {
            strategy.key: _of_run(strategy, symbols)
            for strategy in strategies
            if bar_subscription(strategy).timeframes
        }
        wanted: dict[tuple[str, Timeframe], dict[str, BarSubscription]] = {}
        for key, each in self.subscriptions.items():
            for base, part in self._parts(each):
                self._subscribe(key, base, part)
                if base is not None:
                    for symbol in part.symbols or ():
                        wanted.setdefault((symbol, base), {})[key] = part
        # In the order of the strategies and of their symbols.
        self.warming = {name: WarmingSeries(*name, keys) for name, keys in wanted.items()}

    def __call__(self, tick: Tick) -> None:
        """Take a tick, after the stops."""
        planes = self._symbols.get(tick.symbol)
        if planes is None:
            return
        waiting = 0
        for base, plane in planes.items():
            held = self.warming.get((tick.symbol, base)) if base is not None else None
            if held is not None:
                held.hold(tick)
            else:
                waiting += self._push(plane, tick)
        if waiting:
            self._hand_over()

    async def run(self) -> None:
        """Close bars that are due, until cancelled; nothing without a subscription."""
        while self.subscriptions:
            self.close_due()
            await self._clock.sleep(ADVANCE_INTERVAL_S)

    def close_due(self) -> None:
        """Close and deliver the bars whose time is over by the clock."""
        at = self._clock.now().timestamp() - BEHIND_S
        if sum(plane.advance(at) for plane in self._planes.values()):
            self._hand_over()

    def enter(self, series: WarmingSeries, recent: RecentRows) -> None:
        """Deliver the history of a series; continue with ticks once both fit together.

        What enters first is history; later bars are new, as if they had been built from ticks.
        """
        is_new = series.has_history
        for key, bars in series.enter(recent):
            if bars:
                self._deliver(key, bars, is_new)
        if series.is_complete:
            plane = self._planes[series.base]
            del self.warming[series.symbol, series.base]
            if sum([self._push(plane, tick) for tick in series.join(plane)]):
                self._hand_over()

    @property
    def counts(self) -> MarketCounts:
        """Figures of bars built from ticks, of all planes."""
        all_counts = [plane.counts for plane in self._planes.values()]
        return MarketCounts._make(map(sum, zip(*all_counts, strict=True))) if all_counts else _NONE

    def _parts(self, whole: BarSubscription) -> Iterable[tuple[Timeframe | None, BarSubscription]]:
        """Split a subscription by where the history of its timeframes comes from."""
        left = whole.timeframes
        for base, frames in BASES.items() if self._has_history and whole.warm_up else ():
            if built := tuple(each for each in whole.timeframes if each in frames):
                left = tuple(each for each in left if each not in built)
                yield base, whole._replace(timeframes=built)
        if left:
            yield None, whole._replace(timeframes=left)

    def _subscribe(self, key: str, base: Timeframe | None, part: BarSubscription) -> None:
        plane = self._planes.setdefault(base, MarketPlane(bars_kept=1, layout="inline"))
        plane.subscribe(key, part.symbols or (), part.timeframes, part.indicators)
        self._outputs.append((key, plane))
        for symbol in part.symbols or ():
            self._symbols.setdefault(symbol, {})[base] = plane

    def _push(self, plane: MarketPlane, tick: Tick) -> int:
        try:
            return plane.push(tick.symbol, tick.price, tick.volume, tick.at)
        except RefusedError as error:
            if due := telemetry.log_every(LOG_INTERVAL_S, f"bars {tick.symbol}"):
                log.warning("tick left out of bars", symbol=tick.symbol, error=str(error), **due)
            return 0

    def _hand_over(self) -> None:
        for key, plane in self._outputs:
            if bars := list(plane.drain(key)):
                self._deliver(key, bars, True)


_NONE = MarketCounts(0, 0, 0, 0, 0, 0, 0, 0)


def _of_run(strategy: Strategy[Any], symbols: Iterable[str]) -> BarSubscription:
    """Return the subscription with the symbols of the run that the strategy takes."""
    declared = bar_subscription(strategy)
    given = symbols if declared.symbols is None else declared.symbols
    wanted = tuple(dict.fromkeys(each for each in given if strategy.wants(each)))
    return declared._replace(symbols=wanted)


class WarmingSeries:
    """Bars of a symbol while their history is read: ticks are held back until both fit together.

    start          first tick    since                       final at the venue
      │                │           │                               │
      ├─ history, not new bars ────┼─ the bar that was forming ────┤
      │                            ├─ held ticks ──────────────────┼─▶ live

    Bars are read at the base timeframes that venues offer, days and minutes, of which 3m to 1h are
    built; this one has the bars of one of them, for the strategies that subscribed to them. The bar
    that was forming when the first tick came is never built from ticks: ticks are held from `since`
    on, the start of the next one, and enter once the history covers all before. So the series has
    neither a hole nor half a bar.

    Invariant: bars and indicators here are those of a plane that had every tick up to `end`.
    """

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
