"""Warm-up of a run: history of every series that a strategy needs, before it decides on them.

    ticks are held back   read the bar that was forming, once it is final: these go first
    no history yet        read it, once the last closed minute is final; in the order of the
                          strategies and of their symbols
    read failed           again after 2, 4, 8, ... 60 s; meanwhile the other series

One request is in flight at a time, with the lowest priority, at half of the rate that the limits
allow for history: prices and orders go first. A strategy whose series have too few bars waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qts import telemetry
from qts.domain import Clock, QtsError, Timeframe
from qts.history import RecentBars
from qts.pipeline.bar_publisher import BASES, BarPublisher, WarmingSeries
from qts.strategies import BarSubscription, WarmUpCount

log = telemetry.logger("pipeline")

CHECK_INTERVAL_S = 1.0
MAX_BACKOFF_S = 60.0
LOG_INTERVAL_S = 10.0


class WarmUpProgress(NamedTuple):
    """Series (symbol and timeframe) that are read, or warm, of those that need a warm-up."""

    read: int
    series: int

    def __str__(self) -> str:
        return f"{self.read} of {self.series} series"


class WarmUp:
    """Reads the history of one venue's symbols in a `BarPublisher`, until all of them have it."""

    def __init__(
        self, bars: BarPublisher, recent: RecentBars, symbols: Iterable[str], clock: Clock
    ) -> None:
        self._bars = bars
        self._recent = recent
        self._symbols = frozenset(symbols)
        self._clock = clock
        self._series = sum(len(each.wanted) for each in self._warming())
        self._failures = 0  # in a row
        self._next_at = 0.0

    @property
    def progress(self) -> WarmUpProgress:
        missing = (each for each in self._warming() if not each.has_history)
        return WarmUpProgress(
            self._series - sum(len(each.wanted) for each in missing), self._series
        )

    async def run(self) -> None:
        """Read what is due, until every series has its history and its ticks."""
        if self._series:
            log.info("warm-up started", series=self._series)
        began_ns, is_read = self._clock.monotonic_ns(), not self._series
        while self._warming():
            await self._read_due()
            if not is_read and self.progress.read == self._series:
                is_read = True
                duration_s = round((self._clock.monotonic_ns() - began_ns) / 1e9, 1)
                log.info("warm-up finished", series=self._series, duration_s=duration_s)
            await self._clock.sleep(CHECK_INTERVAL_S)

    async def _read_due(self) -> None:
        if (series := self._next_due()) is None:
            return
        try:
            async with self._recent.writing():
                while series is not None:
                    await self._read(series)
                    self._log_progress()
                    series = self._next_due()
        except (QtsError, OSError) as error:
            self._failed(None, error)

    def _warming(self) -> list[WarmingSeries]:
        return [each for each in self._bars.warming.values() if each.symbol in self._symbols]

    def _next_due(self) -> WarmingSeries | None:
        """Return what to read next: not one that fails, and first one whose ticks are held."""
        now = self._now()
        if now < self._next_at:
            return None
        latest = {base: self._recent.rules.latest(base, now) for base in BASES}
        due = [each for each in self._warming() if self._is_due(each, latest[each.base], now)]
        return min(due, key=lambda each: (each.tries, not each.has_history), default=None)

    def _is_due(self, series: WarmingSeries, latest: float, now: float) -> bool:
        if now < series.retry_at:
            return False
        return latest >= series.needs if series.has_history else self._is_current(series, latest)

    def _is_current(self, series: WarmingSeries, end: float) -> bool:
        """Return whether no minute has closed since; a day that has is final hours later."""
        return series.base is Timeframe.D1 or self._now() < end + series.base.seconds

    async def _read(self, series: WarmingSeries) -> None:
        try:
            recent = await self._recent.read(series.symbol, series.base, series.wanted)
            self._failures = 0
            if series.has_history or self._is_current(series, recent.end):
                self._bars.enter(series, recent)
                series.tries = 0
            else:
                series.tries += 1  # took a minute; what it has read is stored
        except (QtsError, OSError) as error:
            self._failed(series, error)

    def _failed(self, series: WarmingSeries | None, error: Exception) -> None:
        """Pause all reads, and those of this series for longer if it fails again and again."""
        now = self._now()
        self._failures += 1
        self._next_at = now + _backoff_s(self._failures)
        if series is not None:
            series.tries += 1
            series.retry_at = now + _backoff_s(series.tries)
        if due := telemetry.log_every(LOG_INTERVAL_S, "warm-up failed"):
            log.warning(
                "history not read; retrying",
                symbol=series.symbol if series else "",
                error=str(error),
                retry_in_s=_backoff_s(self._failures),
                **due,
            )

    def _log_progress(self) -> None:
        read, series = self.progress
        if read < series and (due := telemetry.log_every(LOG_INTERVAL_S, "warm-up progress")):
            log.info("warm-up progress", read=read, series=series, **due)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def describe_warm_up(count: WarmUpCount, subscription: BarSubscription | None) -> str:
    """Return how many series of a strategy have their bars; empty when all of them do."""
    if subscription is None or not subscription.warm_up:
        return ""
    series = len(subscription.symbols or ()) * len(subscription.timeframes)
    return str(WarmUpProgress(count.ready, series)) if count.ready < series else ""


def _backoff_s(tries: int) -> float:
    return min(2.0**tries, MAX_BACKOFF_S)
