"""Bars of a strategy: what it subscribes to, and what it has received.

    subscription   symbols, timeframes, indicators, warm-up: class attributes of the strategy
    StrategyBars   the last bars of each series, and the values of its indicators at the last close

A strategy sees only bars that were delivered to it, in their order. Live, in a process, in a
replay and in a backtest it therefore sees the same ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.domain import Bar, RefusedError, Timeframe, check_name
from qts.router import BarIndicator, bar_indicator

Bars = npt.NDArray[np.void]
Places = npt.NDArray[np.int64]

BAR_COLUMNS = np.dtype([(name, np.float64) for name in Bar._fields[2:]])
BARS_KEPT = 500  # of each series, or as many as the warm-up
_FIRST_ROWS = 32
# Bars after which what came before weighs less than a millionth, as a multiple of the length.
_RECURSIVE = {"ema": 8, "macd": 8, "rma": 16, "rsi": 16, "atr": 16}
_OF_THE_DAY = ("vwap", "step")  # a value at each bar; a step says nothing about its length


class BarSubscription(NamedTuple):
    """What a strategy declares; `symbols` None means all, `warm_up` counts bars of each series."""

    symbols: tuple[str, ...] | None
    timeframes: tuple[Timeframe, ...]
    indicators: tuple[BarIndicator, ...]
    warm_up: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the indicators' values: `ema(20)`, `macd(12,26,9).signal`."""
        return tuple(
            each.name if len(each.outputs) == 1 else f"{each.name}.{output}"
            for each in self.indicators
            for output in each.outputs
        )


def bar_subscription(strategy: Any) -> BarSubscription:
    """Return what a strategy, or its class, subscribes to; raise RefusedError if it makes no sense.

    Without `warm_up`, it is what the indicators need until the bars before no longer count.
    """
    where, symbols = f"strategy {strategy.key}", strategy.symbols
    if isinstance(symbols, str) or isinstance(strategy.timeframes, str):
        raise RefusedError(f"{where}: symbols and timeframes are tuples, as in ('1m',)")
    for each in strategy.timeframes:
        check_name(f"{where}: timeframe", str(each), [str(known) for known in Timeframe])
    timeframes = tuple(dict.fromkeys(Timeframe(each) for each in strategy.timeframes))
    try:
        indicators = tuple(
            bar_indicator(each) if isinstance(each, str) else each for each in strategy.indicators
        )
    except RefusedError as error:
        raise RefusedError(f"{where}: {error}") from None
    if indicators and not timeframes:
        raise RefusedError(f"{where} has indicators and no timeframes; expected timeframes")
    warm_up, timer_s = strategy.warm_up, strategy.timer_s
    if warm_up is None:
        warm_up = max(map(_bars_needed, indicators), default=0)
    if not isinstance(warm_up, int) or not 0 <= warm_up <= 100_000:
        raise RefusedError(f"{where}: warm_up is {warm_up!r}; expected 0 to 100,000 bars")
    if timer_s is not None and not 0.1 <= timer_s <= 86_400:
        raise RefusedError(f"{where}: timer_s is {timer_s!r}; expected 0.1 to 86,400 seconds")
    return BarSubscription(
        None if symbols is None else tuple(symbols), timeframes, indicators, warm_up
    )


def _bars_needed(indicator: BarIndicator) -> int:
    if indicator.kind in _OF_THE_DAY:
        return 0
    length = sum(indicator.params[1:]) if indicator.kind == "macd" else indicator.params[0]
    return int(length * _RECURSIVE.get(indicator.kind, 1))


class WarmUpCount:
    """Bars of each series so far, compared with the warm-up."""

    def __init__(self, subscription: BarSubscription) -> None:
        self._need = subscription.warm_up
        self._timeframes = [str(each) for each in subscription.timeframes]
        self._counts: Counter[tuple[str, str]] = Counter()
        self.warm: set[str] = set()  # symbols, if there is a warm-up
        self.ready = 0  # series that have enough bars

    def add(self, bar: Bar) -> bool:
        """Count a bar and return whether each series of its symbol has enough of them."""
        series = (bar.symbol, str(bar.timeframe))
        self._counts[series] += 1
        if self._counts[series] == self._need:
            self.ready += 1
            if all(self._counts[bar.symbol, each] >= self._need for each in self._timeframes):
                self.warm.add(bar.symbol)
        return self.is_warm(bar.symbol)

    def is_warm(self, symbol: str) -> bool:
        """Return whether each series of a symbol has enough bars."""
        return not self._need or symbol in self.warm


def _nothing() -> None:
    pass


class _Series:
    """Rows of one series; grows up to twice the kept bars, then moves them to the front.

    Rows behind `end` are those of bars that are still to be added. Most strategies never read a
    bar: rows that come before their bars stay where they are until somebody does.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._rows = np.zeros(0, BAR_COLUMNS)
        self._coming: tuple[Bars, Places] | None = None  # the rows after these, if not read yet
        self.end = self._known = 0
        self.values: tuple[float, ...] = ()

    def add(self, bar: Bar) -> None:
        if self.end == self._known:
            self.read()
            self._write(bar[2:])
        self.end += 1

    def _write(self, row: tuple[Any, ...]) -> None:
        if self.end >= len(self._rows):
            if self.end < 2 * self._kept:
                size = min(max(_FIRST_ROWS, 2 * self.end), 2 * self._kept)
                rows = np.zeros(size, BAR_COLUMNS)
                rows[: self.end] = self._rows
                self._rows = rows
            else:
                self._rows[: self._kept] = self._rows[self.end - self._kept : self.end]
                self.end = self._kept
        self._rows[self.end] = row
        self._known = self.end + 1

    def expect(self, table: Bars, places: Places) -> None:
        """Take the rows of the next bars that are added: those at `places` of a table."""
        kept = min(self.end, self._kept)
        if self._coming is not None:
            table_before, places_before = self._coming
            seen = places_before[: max(0, self.end - len(self._rows))]  # the others never came
            self._coming = table_before, seen[max(0, len(seen) - kept) :]
            self._rows = self._rows[: self.end]
            self.read()
            self.end = len(self._rows)
        self._rows = self._rows[self.end - kept : self.end].copy()
        self.end, self._known = kept, kept + len(places)
        self._coming = (table, places) if len(places) else None

    @property
    def is_read(self) -> bool:
        """Whether no row is coming."""
        return self._coming is None and self.end == self._known

    def read(self) -> None:
        """Read the rows that are coming, if there are any."""
        if self._coming is None:
            return
        (table, places), before, self._coming = self._coming, self._rows, None
        self._rows = np.empty(len(before) + len(places), BAR_COLUMNS)
        self._rows[: len(before)], self._rows[len(before) :] = before, table.take(places)

    def last(self, n: int) -> Bars:
        self.read()
        return self._rows[max(0, self.end - min(n, self._kept)) : self.end].copy()


class StrategyBars:
    """Bars and indicator values that one strategy has received. Not thread-safe."""

    def __init__(self, subscription: BarSubscription) -> None:
        self._timeframes = [str(each) for each in subscription.timeframes]
        self._columns = {name: index for index, name in enumerate(subscription.columns)}
        self._kept = max(BARS_KEPT, subscription.warm_up)
        self._series: dict[tuple[str, str], _Series] = {}
        self.expected: dict[str, _Series] = {}  # by symbol, where rows come before their bars
        self.before_read: Callable[[], None] = _nothing  # moves the ends of expected series

    @classmethod
    def of(cls, strategy: Any) -> StrategyBars | None:
        """Return an empty store, or None for a strategy without timeframes."""
        subscription = bar_subscription(strategy)
        return cls(subscription) if subscription.timeframes else None

    def add(self, bar: Bar, values: tuple[float, ...]) -> None:
        series = self._series.get(bar[:2])
        if series is None:
            series = self._series[bar[:2]] = _Series(self._kept)
        series.add(bar)
        series.values = values

    def expect(self, symbol: str, timeframe: Timeframe, table: Bars, places: Places) -> None:
        """Take the rows of the next bars of a series at once; all calls are of one timeframe.

        They are those at `places` of the table, which must not change; without any, the one before
        is let go. Instead of `add`, each of these bars may then move the `end` of its `expected`
        series.
        """
        if not len(places) and (symbol not in self.expected or self.expected[symbol].is_read):
            return
        series = self._series.setdefault((symbol, timeframe), _Series(self._kept))
        series.expect(table, places)
        self.expected[symbol] = series

    def bars(self, symbol: str, timeframe: str, n: int) -> Bars:
        """Return a copy of the last `n` bars, oldest first; fewer if there are not so many."""
        check_name("timeframe", str(timeframe), self._timeframes)
        self.before_read()
        series = self._series.get((symbol, str(timeframe)))
        return series.last(n) if series is not None and n > 0 else np.zeros(0, BAR_COLUMNS)

    def indicator(self, symbol: str, timeframe: str, name: str) -> float:
        """Return the value at the last close, NaN where there is none yet."""
        check_name("timeframe", str(timeframe), self._timeframes)
        column = self._columns.get(name)
        if column is None:
            check_name("indicator", name, list(self._columns))
            raise AssertionError("check_name refuses a name that is not there")
        series = self._series.get((symbol, str(timeframe)))
        return series.values[column] if series is not None and series.values else math.nan

    def all(self) -> Iterator[tuple[Bar, tuple[float, ...]]]:
        """Yield every kept bar; the last of a series with its values, the others without."""
        self.before_read()
        for (symbol, timeframe), series in self._series.items():
            rows = series.last(self._kept).tolist()
            for index, row in enumerate(rows):
                is_last = index == len(rows) - 1
                yield Bar(symbol, Timeframe(timeframe), *row), series.values if is_last else ()

    def __getstate__(self) -> dict[str, Any]:
        self.before_read()
        for series in self._series.values():
            series.read()
        return self.__dict__ | {"before_read": _nothing}
