"""Player of a tape of bars: fills at opens, stops inside bars, decisions on closes.

    open    orders that wait for it, then the stops         at the open
    inside  the price that is worse for the position, then the better one, with the levels of the
            stops on the way: a stop comes before a target, and fills at its level; without a
            position and with a stop order that buys, the high and then the low
    close   matching and stops; then, when every bar of this time has closed, the strategies

A symbol without a position and without an order is only looked at when its bar closes.
"""

from __future__ import annotations

import math
from collections import deque
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from qts.backtest.bar_tape import BarEvents, BarTape, Rows
from qts.backtest.engine import BacktestEngine
from qts.backtest.portfolio import Place
from qts.backtest.strategy_run import StrategyRun
from qts.domain import Bar, RefusedError, Side, Tick, Timeframe
from qts.router import TICK, MarketPlane, bar_session

_BEFORE_S = 0.001  # prices of a bar are inside of the longer bar that they end
_QUARTERS = 4  # of its volume: open, worse, better, close
_PRICES = ("open", "high", "low", "close")


class _DueBar(NamedTuple):
    due: float
    run: StrategyRun
    bar: Bar
    values: tuple[float, ...]


class BarTapePlayer:
    """Plays opens and closes; the market plane computes indicators and longer bars."""

    def __init__(self, engine: BacktestEngine, tape: BarTape) -> None:
        self._engine = engine
        self._tape = tape
        self._own, self._longer = (
            MarketPlane(bars_kept=1, layout="inline"),
            MarketPlane(bars_kept=1, layout="inline"),
        )
        self._due: deque[_DueBar] = deque()
        self._closed: list[Tick] = []  # of the current time
        for run in engine.runs:
            self._subscribe(run)
        self._ids = np.array([self._longer.symbol_id(each) for each in tape.symbols], np.int64)
        engine.clock.place = Place.BAR_CLOSE
        self._warm_up()

    def play(self, events: BarEvents) -> int:
        """Play opens and closes; return how many bars closed."""
        closes = events.row[~events.is_open]
        found = self._closed_bars(self._tape.rows[closes], float(events.at[-1]))
        self._due.extend(sorted(found, key=lambda each: each.due))
        moment = None  # of closes whose strategies are still to be called
        for row, is_open, at in zip(*(column.tolist() for column in events), strict=True):
            if moment is not None and (is_open or at != moment):
                self._end_moment(moment)
                moment = None
            self._run_until(at, with_bars_of_now=is_open)
            self._engine.start_day(at)
            if is_open:
                self._open(row, at)
            else:
                self._close(row, at)
                moment = at
        if moment is not None:
            self._end_moment(moment)
        return len(closes)

    def _open(self, row: int, at: float) -> None:
        """Match the open of a bar, and let the stops see it."""
        number, closes_at, first, high, low, _, volume, _ = self._tape.rows[row].item()
        symbol, engine = self._tape.symbols[number], self._engine
        if not engine.is_watched(symbol) or not self._tape.is_traded[row]:
            return
        tick = Tick(symbol, first, volume / _QUARTERS, first, first, at)
        engine.clock.at, engine.clock.place = at, Place.INSIDE_BAR
        engine.portfolio.apply_tick(tick)
        engine.manager.on_open(tick, Decimal(repr(low)), Decimal(repr(high)), closes_at)
        engine.stop_orders.on_open(symbol, closes_at)
        engine.trigger_stop_orders(tick)
        engine.check_stops(tick, engine.clock.monotonic_ns())
        engine.handle_updates()
        engine.clock.place = Place.BAR_CLOSE

    def _close(self, row: int, at: float) -> None:
        """Follow the prices inside a bar to its close."""
        number, _, first, high, low, last, volume, _ = self._tape.rows[row].item()
        symbol, engine = self._tape.symbols[number], self._engine
        close = Tick(symbol, last, volume / _QUARTERS, last, last, at)
        self._closed.append(replace(close, volume=volume))
        if not self._tape.is_traded[row]:
            engine.clock.at = at
            engine.portfolio.apply_tick(close)
            return
        if not engine.is_watched(symbol):
            engine.apply_tick(close)
            return
        engine.clock.place = Place.INSIDE_BAR
        held, price = engine.portfolio.position(symbol), first
        high_first = held.quantity < 0 if held is not None else self._enters_up(symbol, high)
        opened_ns = round(float(self._tape.starts[row]) * 1e9)
        for target in (high, low) if high_first else (low, high):
            while (level := self._next_level(symbol, price, target)) is not None:
                price = level
                self._visit(Tick(symbol, level, 0.0, level, level, at), opened_ns)
            price = target
            self._visit(Tick(symbol, target, volume / _QUARTERS, target, target, at), opened_ns)
        while (level := self._next_level(symbol, price, last)) is not None:
            price = level
            self._visit(Tick(symbol, level, 0.0, level, level, at), opened_ns)
        self._visit(close, opened_ns)
        engine.handle_updates()
        engine.clock.place = Place.BAR_CLOSE

    def _enters_up(self, symbol: str, high: float) -> bool:
        """Return whether a stop order buys on the way to the high: the low then comes after it."""
        return any(level <= high for level in self._engine.stop_orders.levels(symbol, falls=False))

    def _visit(self, tick: Tick, opened_ns: int) -> None:
        """Match a price inside a bar; hold times end on its close or on the next open."""
        self._engine.apply_tick(tick)
        self._engine.check_stops(tick, opened_ns)

    def _next_level(self, symbol: str, price: float, target: float) -> float | None:
        """Return the next price on the way to `target` at which a stop or an order acts."""
        engine, falls = self._engine, target < price
        low, high = (target, price) if falls else (price, target)
        found = [float(limit) for limit in engine.manager.limits_of(symbol)]
        acting = [*engine.stop_levels(symbol), *engine.stop_orders.levels(symbol, falls=falls)]
        levels = [level for level in acting if low <= level <= high]
        if levels:  # a position is closed at the worse of two ticks: lower on the way down
            ticks, side = (
                engine.portfolio.instruments[symbol].ticks,
                Side.BUY if falls else Side.SELL,
            )
            found += [float(ticks.round(level, side)) for level in levels]
        inside = [each for each in found if low < each < high]
        return (max if falls else min)(inside, default=None)

    def _end_moment(self, at: float) -> None:
        """Call the strategies, when every bar of this time has closed."""
        engine = self._engine
        self._run_until(at, with_bars_of_now=True)
        engine.clock.at = at
        for tick in self._closed:
            engine.call_on_tick(tick)
        self._closed.clear()
        engine.run_timer(force=True)

    def _run_until(self, at: float, *, with_bars_of_now: bool) -> None:
        """Handle the bars and timers that are due, in order of time."""
        engine = self._engine
        while True:
            due = self._due[0].due if self._due else math.inf
            is_bar = due <= engine.timer_due
            if due > at or (due == at and not with_bars_of_now):
                is_bar = False
            if is_bar:
                first = self._due.popleft()
                engine.on_bar(first.run, first.bar, first.values, first.due)
            elif engine.timer_due <= at:
                engine.on_strategy_timer(at)
            else:
                return

    # ---- bars for strategies ----

    def _subscribe(self, run: StrategyRun) -> None:
        timeframe, subscription = self._tape.timeframe, run.subscription
        wanted = [symbol for symbol in self._tape.symbols if run.wants(symbol)]
        for each in subscription.timeframes:
            if each.seconds < timeframe.seconds:
                raise RefusedError(
                    f"strategy {run.key} has the timeframe {each}; the data has bars of"
                    f" {timeframe}, which are longer"
                )
        own = [each for each in subscription.timeframes if each is timeframe]
        longer = [each for each in subscription.timeframes if each is not timeframe]
        self._own.subscribe(run.key, wanted, own, subscription.indicators)
        self._longer.subscribe(run.key, wanted, longer, subscription.indicators)

    def _warm_up(self) -> None:
        """Begin with the bars before the tape: strategies have them, and are not called."""
        seconds = self._tape.timeframe.seconds
        subscriptions = [run.subscription for run in self._engine.runs]
        needed = [
            (each.warm_up + 1) * frame.seconds // seconds
            for each in subscriptions
            for frame in each.timeframes
            if each.warm_up
        ]
        rows = self._tape.last_before(max(needed, default=0))
        if len(rows):
            for _, run, bar, values in self._closed_bars(rows, float(rows["at"][-1])):
                run.add_history(bar, values)

    def _closed_bars(self, rows: Rows, until: float) -> list[_DueBar]:
        """Return the bars of the strategies' timeframes that end with these."""
        if any(self._tape.timeframe in run.subscription.timeframes for run in self._engine.runs):
            symbols, timeframe = self._tape.symbols, self._tape.timeframe
            self._own.push_bars(
                (Bar(symbols[symbol], timeframe, *prices) for symbol, *prices in rows.tolist()),
                deliver=True,
            )
        if any(
            set(run.subscription.timeframes) - {self._tape.timeframe} for run in self._engine.runs
        ):
            ticks = np.zeros(4 * len(rows), TICK)
            ticks["symbol"] = np.repeat(self._ids[rows["symbol"]], 4)
            ticks["at"] = np.repeat(rows["at"] - _BEFORE_S, 4)
            ticks["price"] = np.stack([rows[name] for name in _PRICES], axis=1).ravel()
            ticks["volume"][3::4] = rows["volume"]
            self._longer.push_many(ticks)
            self._longer.advance(until)
        found = []
        for run in self._engine.runs:
            for plane in (self._own, self._longer):
                for bar, values in plane.drain(run.key):
                    found.append(_DueBar(self._due_at(bar), run, bar, values))
        return found

    def _due_at(self, bar: Bar) -> float:
        if bar.timeframe is Timeframe.D1 and bar.timeframe is not self._tape.timeframe:
            return bar.at + bar_session(bar.symbol).auction_s
        return bar.at
