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

from collections.abc import Callable, Iterable
from typing import Any

from qts import telemetry
from qts.domain import Clock, RefusedError, Tick, Timeframe
from qts.history import RecentRows
from qts.pipeline.warming_series import BASES, BarsOfStrategy, WarmingSeries
from qts.router import MarketCounts, MarketPlane
from qts.strategies import BarSubscription, Strategy, bar_subscription

log = telemetry.logger("pipeline")

ADVANCE_INTERVAL_S = 0.2
BEHIND_S = 0.25  # ticks on their way are in time
LOG_INTERVAL_S = 10.0

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
