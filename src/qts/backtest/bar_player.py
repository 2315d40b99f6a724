"""Player of a tape of ticks for strategies with bars or a timer."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest.engine import BacktestEngine
from qts.backtest.portfolio import LatestTicks
from qts.backtest.strategy_run import StrategyRun
from qts.backtest.tape import Chunk, Tape
from qts.domain import Bar, Tick, Timeframe
from qts.router import TICK, MarketPlane, bar_session


class _DueBar(NamedTuple):
    due: float
    run: StrategyRun
    bar: Bar
    values: tuple[float, ...]


class BarPlayer:
    """Plays a chunk for strategies with bars or a timer.

    The market plane takes the ticks of a chunk at once; each bar is handled when it is due. Without
    an on_tick, a tick of a symbol that nothing waits for only becomes the last one of its symbol.
    """

    def __init__(self, engine: BacktestEngine, tape: Tape) -> None:
        self._engine = engine
        self._symbols = tape.symbols
        self._has_bars = any(run.subscription.timeframes for run in engine.runs)
        self._plane = MarketPlane(bars_kept=1, layout="inline")
        self._ids = np.zeros(0, np.int64)  # by index into the tape's symbols; -1: not subscribed
        self._bars: deque[_DueBar] = deque()
        self._quiet = None if any(run.takes_ticks for run in engine.runs) else _QuietTicks(engine)

    def play(self, chunk: Chunk) -> int:
        """Play the events of a chunk and return how many they are."""
        if self._has_bars:
            self._push(chunk)
        if self._quiet is not None:
            self._play_watched(chunk, self._quiet)
        else:
            self._play_all(chunk)
        return len(chunk.at)

    def _play_all(self, chunk: Chunk) -> None:
        engine, next_at = self._engine, self._next_at()
        for tick in chunk.ticks(self._symbols):
            at = tick.at
            if at >= next_at:
                self._run_until(at)
                next_at = self._next_at()
            if at >= engine.due:
                engine.on_timer(at)
            if 0.0 < tick.price < math.inf:
                engine.on_tick(tick)

    def _play_watched(self, chunk: Chunk, quiet: _QuietTicks) -> None:
        engine, index, end = self._engine, 0, len(chunk.at)
        quiet.begin(chunk, self._symbols)
        while index < end:
            at = float(chunk.at[index])
            if at >= self._next_at():
                self._run_until(at)
            if at >= engine.due:
                engine.on_timer(at)
            if at < engine.next_expiry and not engine.updates.has_any:
                until = min(self._next_at(), engine.due, engine.next_expiry)
                stop = index + int(np.searchsorted(chunk.at[index:], until))
                index = quiet.skip(index, stop)
                if index == stop:
                    continue
            if (tick := quiet.tick(index)) is not None:
                engine.on_tick(tick)
            index += 1

    def _push(self, chunk: Chunk) -> None:
        self._subscribe()
        ids = self._ids[chunk.symbol]
        valid = (chunk.price > 0) & np.isfinite(chunk.price) & (chunk.volume >= 0)
        chosen = np.flatnonzero((ids >= 0) & valid & np.isfinite(chunk.volume))
        ticks = np.zeros(len(chosen), TICK)
        ticks["symbol"] = ids[chosen]
        for name in ("price", "volume", "at"):
            ticks[name] = getattr(chunk, name)[chosen]
        self._plane.push_many(ticks)
        self._plane.advance(float(chunk.at[-1]))
        found = []
        for run in self._engine.runs:
            for bar, values in self._plane.drain(run.key):
                is_day = bar.timeframe is Timeframe.D1
                auction_s = bar_session(bar.symbol).auction_s if is_day else 0
                found.append(_DueBar(bar.at + auction_s, run, bar, values))
        if len(self._engine.runs) > 1:
            found.sort(key=lambda each: each.due)
        self._bars.extend(found)

    def _subscribe(self) -> None:
        """Subscribe to symbols that the tape has since the last chunk."""
        new, subscribed = self._symbols[len(self._ids) :], set[str]()
        for run in self._engine.runs:
            wanted = [symbol for symbol in new if run.wants(symbol)]
            subscription = run.subscription
            self._plane.subscribe(run.key, wanted, subscription.timeframes, subscription.indicators)
            if subscription.timeframes:
                subscribed.update(wanted)
        ids = [self._plane.symbol_id(each) if each in subscribed else -1 for each in new]
        self._ids = np.concatenate([self._ids, np.array(ids, np.int64)])

    def _next_at(self) -> float:
        due = self._bars[0].due if self._bars else float("inf")
        return min(due, self._engine.timer_due)

    def _run_until(self, at: float) -> None:
        """Handle the bars and timers that are due, in order of time."""
        engine = self._engine
        while (first := self._next_at()) <= at:
            if first >= engine.due:
                engine.on_timer(first)
            if self._bars and self._bars[0].due <= engine.timer_due:
                due, run, bar, values = self._bars.popleft()
                engine.on_bar(run, bar, values, due)
            else:
                engine.on_strategy_timer(at)


class _QuietTicks:
    """The last ticks of the symbols, kept without a call for those that nothing waits for."""

    def __init__(self, engine: BacktestEngine) -> None:
        self._engine = engine
        self._indices: dict[str, int] = {}
        self._symbols: list[str] = []
        self._rows: npt.NDArray[np.float64] = np.zeros((0, 5))
        self._watched: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._values = self._rows  # of the chunk's ticks, as in `_rows`
        self._symbol: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._valid: npt.NDArray[np.bool_] = self._watched
        self._found: deque[int] = deque()  # ticks of watched symbols before `_searched_to`
        self._searched_to = 0
        engine.add_listener(self._on_change)

    def begin(self, chunk: Chunk, symbols: list[str]) -> None:
        """Begin a chunk; the tape may have more symbols than before."""
        if len(symbols) > len(self._indices):
            self._grow(symbols)
        price = chunk.price
        bid, ask = (np.where(quote != 0, quote, price) for quote in (chunk.bid, chunk.ask))
        self._values = np.stack((price, chunk.volume, bid, ask, chunk.at), axis=1)
        self._symbol, self._valid = chunk.symbol, (price > 0) & np.isfinite(price)
        self._searched_to = 0

    def skip(self, index: int, stop: int) -> int:
        """Keep ticks up to the first of a watched symbol, or to `stop`; return where that is."""
        if stop > self._searched_to:
            found = index + np.flatnonzero(self._watched[self._symbol[index:stop]])
            self._found, self._searched_to = deque(found.tolist()), stop
        while self._found and self._found[0] < index:
            self._found.popleft()
        until = min(self._found[0], stop) if self._found else stop
        if until > index:
            valid = self._valid[index:until]
            self._rows[self._symbol[index:until][valid]] = self._values[index:until][valid]
            self._engine.clock.at = float(self._values[until - 1, 4])
        return until

    def tick(self, index: int) -> Tick | None:
        """Return a tick of the chunk, now the last of its symbol; None: its price is none."""
        if not self._valid[index]:
            return None
        number = self._symbol[index]
        self._rows[number] = self._values[index]
        return Tick(self._symbols[number], *self._values[index].tolist())

    def _grow(self, symbols: list[str]) -> None:
        self._symbols = symbols
        self._indices = {symbol: index for index, symbol in enumerate(symbols)}
        rows, self._rows = self._rows, np.zeros((len(symbols), 5))
        self._rows[: len(rows)] = rows
        self._watched = np.array([symbol in self._engine.watched for symbol in symbols])
        self._engine.portfolio.use_ticks(LatestTicks(self._indices, self._rows))

    def _on_change(self, symbol: str) -> None:
        if (index := self._indices.get(symbol)) is not None:
            self._watched[index] = symbol in self._engine.watched
            self._searched_to = 0
