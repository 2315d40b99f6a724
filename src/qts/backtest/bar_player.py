"""Player of a tape of ticks for strategies with bars or a timer."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from qts.backtest.engine import BacktestEngine
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

    The market plane takes the ticks of a chunk at once; each bar is handled when it is due.
    """

    def __init__(self, engine: BacktestEngine, tape: Tape) -> None:
        self._engine = engine
        self._symbols = tape.symbols
        self._has_bars = any(run.subscription.timeframes for run in engine.runs)
        self._plane = MarketPlane(bars_kept=1, layout="inline")
        self._ids = np.zeros(0, np.int64)  # by index into the tape's symbols; -1: not subscribed
        self._bars: deque[_DueBar] = deque()

    def play(self, chunk: Chunk) -> int:
        """Play the events of a chunk and return how many they are."""
        engine, symbols = self._engine, self._symbols
        if self._has_bars:
            self._push(chunk)
        next_at = self._next_at()
        columns = (column.tolist() for column in chunk)
        for index, price, volume, bid, ask, at in zip(*columns, strict=True):
            if at >= next_at:
                self._run_until(at)
                next_at = self._next_at()
            if at >= engine.due:
                engine.on_timer(at)
            if 0.0 < price < float("inf"):
                engine.on_tick(Tick(symbols[index], price, volume, bid or price, ask or price, at))
        return len(chunk.at)

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
