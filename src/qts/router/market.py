"""Market plane: ticks in, bars and indicators out, to strategies by their subscriptions.

Live, replay and backtest use the same plane, and get the same bars from the same ticks:

    live      push each tick; advance with the clock, several times a second; drain
    replay    push_many: the ticks, in order of time, are the clock; drain

A bar covers an interval that is aligned to the session's open, and is closed at its end even if no
tick comes. An interval without a tick has no bar: a reader that needs one carries the last close
forward. A tick that is older than the open bar is dropped and counted (`late`). Within a bar, ticks
count in order of arrival. A day covers the session only, with its closing auction; shorter
timeframes take every tick. Prices are doubles: good for signals, not for accounting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from qts import _native
from qts.domain import Bar, Market, RefusedError, Timeframe, assumed_instrument, check_name
from qts.machine import detect_topology
from qts.router.indicators import BarIndicator, Floats, bar_indicator
from qts.router.market_feed import RouterFeed

Records = npt.NDArray[np.void]

_PRICES = ("open", "high", "low", "close", "volume", "value")


def _record(
    numbers: tuple[str, ...], offset: int, itemsize: int, **whole: int
) -> np.dtype[np.void]:
    """Return the dtype of a native record: doubles from `offset` on, and 32-bit integers."""
    return np.dtype(
        {
            "names": [*whole, *numbers],
            "formats": ["<u4"] * len(whole) + ["<f8"] * len(numbers),
            "offsets": [*whole.values(), *range(offset, offset + 8 * len(numbers), 8)],
            "itemsize": itemsize,
        }
    )


# A tick of `push_many`; symbol as `symbol_id` returns it, at in seconds since the Unix epoch.
TICK = _record(("price", "volume", "at"), 8, 32, symbol=0)
# A bar; timeframe in seconds, at as in domain.Bar.
BAR = _record(("at", *_PRICES), 8, 72, symbol=0, timeframe=4, ticks=64)
_TIMEFRAMES = {timeframe.seconds: timeframe for timeframe in Timeframe}
_INLINE_CORES = 4  # with more, the router's threads build the bars


class BarSession(NamedTuple):
    """Trading hours that bars are aligned to, in seconds; `open_s` after midnight UTC."""

    open_s: int
    length_s: int
    auction_s: int = 0
    """How long after the close its auction may still print: the day's bar is closed then."""


BAR_SESSIONS = {
    Market.KRX: BarSession(open_s=0, length_s=23_400, auction_s=60),  # 09:00 to 15:30 in Seoul
    Market.UPBIT: BarSession(open_s=0, length_s=86_400),
    Market.OTHER: BarSession(open_s=0, length_s=86_400),
}


def bar_session(symbol: str) -> BarSession:
    """Return the session of a symbol's market."""
    return BAR_SESSIONS[assumed_instrument(symbol).market]


class MarketCounts(NamedTuple):
    ticks: int
    late: int  # ticks dropped, counted for each timeframe
    outside: int  # ticks outside the session of a day
    bars: int
    produced: int  # rows, one for each bar and strategy
    delivered: int
    series: int
    bytes: int


class ClosedBars:
    """Bars of a strategy since the last `drain`, and the values of its indicators at their close.

    `rows` is an array of dtype `BAR`; `values` has a row for each of them and a column for each
    output of the strategy's indicators, in the order of the subscription.
    """

    def __init__(self, rows: Records, values: Floats, symbols: Sequence[str]) -> None:
        self.rows = rows
        self.values = values
        self._symbols = symbols

    def __len__(self) -> int:
        return len(self.rows)

    def last(self, count: int) -> ClosedBars:
        """Return the last bars of each timeframe, for the rows of one symbol."""
        keep = np.zeros(len(self.rows), bool)
        for timeframe in np.unique(self.rows["timeframe"]):
            keep[np.flatnonzero(self.rows["timeframe"] == timeframe)[-count:]] = True
        return ClosedBars(self.rows[keep], self.values[keep], self._symbols)

    def __iter__(self) -> Iterator[tuple[Bar, tuple[float, ...]]]:
        rows = self.rows
        names = map(self._symbols.__getitem__, rows["symbol"].tolist())
        timeframes = map(_TIMEFRAMES.__getitem__, rows["timeframe"].tolist())
        columns = (rows[name].tolist() for name in Bar._fields[2:])
        bars = map(Bar._make, zip(names, timeframes, *columns, strict=True))
        return zip(bars, map(tuple, self.values.tolist()), strict=True)


class _Subscription(NamedTuple):
    number: int
    timeframes: tuple[Timeframe, ...]
    indicators: tuple[str, ...]


class MarketPlane:
    """Bars and indicators of the symbols that strategies subscribe to.

    Layout `inline` builds them on the calling thread, `threads` on processors of the router; by
    default inline on up to four CPUs. Any thread may push, advance, drain and read; subscriptions
    are made by one thread at a time. `bars_kept` is the number of bars kept in memory for each
    symbol and timeframe.
    """

    def __init__(
        self,
        *,
        bars_kept: int = 500,
        layout: Literal["inline", "threads"] | None = None,
        session_of: Callable[[str], BarSession] = bar_session,
    ) -> None:
        if not 1 <= bars_kept <= 1_000_000:
            raise RefusedError(f"bars_kept is {bars_kept}; expected 1 to 1,000,000")
        if layout is None:
            layout = "inline" if detect_topology().usable <= _INLINE_CORES else "threads"
        check_name("layout", layout, ("inline", "threads"))
        self.layout = layout
        self._session_of = session_of
        self._symbols: list[str] = []
        self._ids: dict[str, int] = {}
        self._indicators: dict[str, tuple[int, BarIndicator]] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        processors = 1 if layout == "inline" else RouterFeed.processors()
        self._native = _native.MarketPlane(bars_kept, processors)
        self._feed = None if layout == "inline" else RouterFeed(self._native, processors)

    # ---- subscriptions ----

    def subscribe(
        self,
        strategy: str,
        symbols: Iterable[str],
        timeframes: Iterable[Timeframe | str],
        indicators: Iterable[str | BarIndicator] = (),
    ) -> None:
        """Deliver the bars of these symbols to a strategy; may be called again for more symbols.

        An indicator that joins bars already there begins with those that are kept.
        """
        frames = tuple(_timeframe(each) for each in timeframes)
        wanted = [bar_indicator(each) if isinstance(each, str) else each for each in indicators]
        names = tuple(each.name for each in wanted)
        known = self._subscriptions.get(strategy)
        if known is None:
            numbers = [self._indicator_number(each) for each in wanted]
            known = _Subscription(self._native.add_strategy(numbers), frames, names)
            self._subscriptions[strategy] = known
        elif (known.timeframes, known.indicators) != (frames, names):
            raise RefusedError(
                f"strategy {strategy} is subscribed to {', '.join(known.timeframes)} with"
                f" {', '.join(known.indicators) or 'no indicators'}; a further call adds symbols"
            )
        for symbol in symbols:
            for frame in frames:
                self._native.subscribe(known.number, self.symbol_id(symbol), frame.seconds)

    def symbol_id(self, symbol: str) -> int:
        """Return the number of a symbol in arrays of ticks and bars; a new symbol gets one."""
        number = self._ids.get(symbol)
        if number is None:
            number = self._native.add_symbol(symbol, *self._checked_session(symbol))
            self._symbols.append(symbol)
            self._ids[symbol] = number
        return number

    # ---- ticks ----

    def push(self, symbol: str, price: float, volume: float, at: float) -> int:
        """Take a live tick and return how many rows wait; ignore a symbol nobody subscribed to."""
        try:
            if self._feed is None:
                return self._native.push(symbol, price, volume, at)
            if symbol in self._ids:
                row = np.array([(self._ids[symbol], price, volume, at)], TICK)
                self._feed.send_tick(row.view(np.uint8))
        except ValueError as error:
            raise RefusedError(f"{symbol}: {error}") from None
        return self._native.waiting()

    def push_many(self, ticks: Records) -> int:
        """Take ticks (dtype `TICK`) in order of time and return how many rows wait.

        The ticks are the clock: each first closes what is due in every symbol. A tick that makes
        no sense is refused, and with it all others.
        """
        if ticks.dtype != TICK or ticks.ndim != 1:
            raise RefusedError(f"push_many takes an array of dtype TICK, not {ticks.dtype}")
        raw = np.ascontiguousarray(ticks).view(np.uint8)
        try:
            if self._feed is None:
                return self._native.push_many(raw)
            self._feed.send_ticks(raw)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return self._native.waiting()

    def push_bars(self, bars: Iterable[Bar] | Records, *, deliver: bool = False) -> int:
        """Take closed bars of subscribed symbols, oldest first, and return how many were taken.

        They may be an array of dtype `BAR`. They enter the kept bars and the indicators, as a
        warm-up before live ticks; with `deliver` strategies receive them too. A bar is left out if
        its series has a later one, or one that is open.
        """
        rows = bars if isinstance(bars, np.ndarray) else self._rows_of(bars)
        prices = np.stack([rows[name] for name in _PRICES[:4]])
        wrong = np.flatnonzero(~((prices > 0) & (prices < math.inf)).all(axis=0))
        if len(wrong):
            ((bar, _),) = ClosedBars(rows[wrong[:1]], np.zeros((1, 0)), self._symbols)
            raise RefusedError(f"{bar} has a price that is none; expected more than 0")
        try:
            return self._native.push_bars(rows.view(np.uint8), deliver)
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def _rows_of(self, bars: Iterable[Bar]) -> Records:
        known = [bar for bar in bars if bar.symbol in self._ids]
        rows = [(self._ids[bar.symbol], bar.timeframe.seconds, 0, *bar[2:]) for bar in known]
        return np.array(rows, BAR)

    def advance(self, at: float) -> int:
        """Close the bars that are due at this time and return how many rows wait.

        Live, pass a time a little behind the clock, so that ticks on their way are not late.
        """
        try:
            if self._feed is None:
                return self._native.advance(at)
            self._feed.send_clock(at)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return self._native.waiting()

    # ---- results ----

    def drain(self, strategy: str) -> ClosedBars:
        """Take the bars that were closed for a strategy since the last call."""
        rows, values = self._native.drain(self._subscription(strategy).number)
        return ClosedBars(rows.view(BAR), values, self._symbols)

    def bars(
        self,
        symbol: str,
        timeframe: Timeframe | str,
        most: int | None = None,
        *,
        forming: bool = False,
    ) -> Records:
        """Return a copy of the last bars (dtype `BAR`), oldest first; with `forming`, the open one.

        Empty for a symbol or timeframe that nobody subscribed to.
        """
        seconds = _timeframe(timeframe).seconds
        if symbol not in self._ids:
            return np.empty(0, BAR)
        count = 1_000_000 if most is None else max(most, 0)
        return self._native.bars(symbol, seconds, count, forming).view(BAR)

    def indicator(
        self,
        symbol: str,
        timeframe: Timeframe | str,
        indicator: str | BarIndicator,
        *,
        forming: bool = False,
    ) -> tuple[float, ...]:
        """Return the outputs of an indicator at the last closed bar, NaN where there is none.

        With `forming`, as they would be if the open bar closed now.
        """
        named = bar_indicator(indicator) if isinstance(indicator, str) else indicator
        known = self._indicators.get(named.name)
        if known is None or symbol not in self._ids:
            return (float("nan"),) * len(named.outputs)
        seconds = _timeframe(timeframe).seconds
        return tuple(self._native.values(symbol, seconds, known[0], forming))

    def columns(self, strategy: str) -> tuple[str, ...]:
        """Return the names of the columns of a strategy's values: `macd(12,26,9).signal`."""
        return tuple(
            f"{name}.{output}"
            for name in self._subscription(strategy).indicators
            for output in self._indicators[name][1].outputs
        )

    @property
    def counts(self) -> MarketCounts:
        return MarketCounts(**self._native.counts())

    # ---- life ----

    def snapshot(self) -> bytes:
        """Return open bars, kept bars and indicators; drain first, rows that wait are not in it."""
        self.settle()
        return self._native.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Continue from a snapshot, bit for bit; for what is subscribed to by now."""
        try:
            self._native.restore(snapshot)
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def settle(self, timeout: float = 5.0) -> None:
        """Wait until everything pushed is in the bars; at once with layout `inline`."""
        if self._feed is not None:
            self._feed.settle(timeout)

    def close(self) -> None:
        """End the threads; everything pushed is in the bars."""
        if self._feed is not None:
            self._feed.close()

    def __enter__(self) -> MarketPlane:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- internals ----

    def _subscription(self, strategy: str) -> _Subscription:
        check_name("strategy", strategy, self._subscriptions)
        return self._subscriptions[strategy]

    def _indicator_number(self, wanted: BarIndicator) -> int:
        known = self._indicators.get(wanted.name)
        if known is not None:
            if known[1].compiled is not wanted.compiled:
                raise RefusedError(f"two indicators are called {wanted.name}; expected two names")
            return known[0]
        params = list(wanted.params)
        try:
            if wanted.compiled is None:
                number = self._native.add_indicator(wanted.name, wanted.kind, params)
            else:
                address = wanted.compiled.address
                number = self._native.add_step(wanted.name, address, params, wanted.state_size)
        except ValueError as error:
            raise RefusedError(f"indicator {wanted.name}: {error}") from None
        self._indicators[wanted.name] = (number, wanted)
        return number

    def _checked_session(self, symbol: str) -> BarSession:
        session = self._session_of(symbol)
        day = session.length_s + session.auction_s
        if not (0 <= session.open_s < 86_400 and session.length_s > 0 <= session.auction_s):
            raise RefusedError(f"session of {symbol} is {session}; expected seconds of a day")
        if day > 86_400:
            raise RefusedError(f"session of {symbol} has {day} seconds; expected at most 86,400")
        return session


def _timeframe(given: Timeframe | str) -> Timeframe:
    check_name("timeframe", given, list(Timeframe))
    return Timeframe(given)
