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
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from qts.backtest.bar_tape import FIELDS, BarEvents, BarTape, Rows
from qts.backtest.engine import BacktestEngine
from qts.backtest.portfolio import Place
from qts.backtest.strategy_run import StrategyRun
from qts.domain import Bar, RefusedError, Side, Tick, Timeframe
from qts.router import BAR, TICK, MarketPlane, bar_session

_BEFORE_S = 0.001  # prices of a bar are inside of the longer bar that they end
_QUARTERS = 4  # of its volume: open, worse, better, close
_PRICES = ("open", "high", "low", "close")
_COLUMNS = np.dtype([(name, np.float64) for name in FIELDS])  # as in View.bars
_BLOCK = 2_000  # rows whose values are Python objects at a time

_DueBar = tuple[float, StrategyRun, Bar, tuple[float, ...]]  # time, strategy, bar and indicators
_bar_of = partial(tuple.__new__, Bar)  # takes a tuple of all fields


class _Moments(NamedTuple):
    """Times of a part of the tape, and how many bars close and then open at each."""

    at: list[float]
    closing: list[int]
    opening: list[int]

    @classmethod
    def of(cls, events: BarEvents) -> _Moments:
        at = events.at
        first = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
        opening = np.add.reduceat(events.is_open, first, dtype=np.int64)
        total = np.diff(first, append=len(at))
        return cls(at[first].tolist(), (total - opening).tolist(), opening.tolist())


class BarTapePlayer:
    """Plays opens and closes; the market plane computes indicators and longer bars."""

    def __init__(self, engine: BacktestEngine, tape: BarTape) -> None:
        self._engine = engine
        self._tape = tape
        self._own, self._longer = (
            MarketPlane(bars_kept=1, layout="inline"),
            MarketPlane(bars_kept=1, layout="inline"),
        )
        self._plain: list[tuple[StrategyRun, set[str]]] = []  # take bars of the tape as they are
        self._due: deque[_DueBar] = deque()  # bars with indicators, and longer ones
        self._closed: list[Tick] = []  # of the current time
        self._takes_ticks = any(run.takes_ticks for run in engine.runs)
        for run in engine.runs:
            self._subscribe(run)
        self._own_ids, self._ids = (
            np.array([plane.symbol_id(each) for each in tape.symbols], np.int64)
            for plane in (self._own, self._longer)
        )
        engine.clock.place = Place.BAR_CLOSE
        self._warm_up()

    def play(self, events: BarEvents) -> int:
        """Play opens and closes; return how many bars closed."""
        engine, due, watched = self._engine, self._due, self._engine.watched
        closed, opened = events.row[~events.is_open], events.row[events.is_open].tolist()
        bars, closes = self._load(self._tape.rows[closed], float(events.at[-1]))
        closes_done = opens_done = 0
        for at, closing, opening in zip(*_Moments.of(events), strict=True):
            if engine.timer_due <= at or (due and (due[0][0] < at or not closing)):
                self._run_until(at, with_bars_of_now=not closing)
            if at >= engine.day_ends_at:
                engine.start_day(at)
            if closing:
                if watched or self._takes_ticks:
                    rows = closed[closes_done : closes_done + closing]
                    self._close_each(rows, islice(closes, closing), at)
                else:
                    engine.clock.at = at
                    engine.portfolio.keep_ticks(islice(closes, closing))
                closes_done += closing
                self._end_moment(islice(bars, closing), at)
            if opening:
                if watched:
                    self._open_each(opened[opens_done : opens_done + opening], at)
                opens_done += opening
        return closes_done

    def _load(self, rows: Rows, until: float) -> tuple[Iterator[Bar], Iterator[tuple[str, Tick]]]:
        """Begin a part of the tape; return its bars, and their last ticks with their symbols."""
        self._expect(rows)
        if computed := self._computed(rows, until):
            due = sorted([*self._due, *computed], key=itemgetter(0))
            self._due.clear()
            self._due.extend(due)
        blocks = [rows[first : first + _BLOCK] for first in range(0, len(rows), _BLOCK)]
        bars = chain.from_iterable(map(self._bars, blocks))
        return bars, chain.from_iterable(map(self._closes, blocks))

    def _expect(self, rows: Rows) -> None:
        """Let strategies have the rows of the bars that they are called with."""
        if not self._plain:
            return
        order = np.argsort(rows["symbol"], kind="stable")
        numbers, first = np.unique(rows["symbol"][order], return_index=True)
        columns = np.empty(len(rows), _COLUMNS)
        for name in FIELDS:
            columns[name] = rows[name][order]
        for number, part in zip(numbers.tolist(), np.split(columns, first[1:]), strict=True):
            symbol = self._tape.symbols[number]
            for run, wanted in self._plain:
                if symbol in wanted:
                    run.expect_bars(symbol, self._tape.timeframe, part)

    def _bars(self, rows: Rows) -> Iterator[Bar]:
        names = map(self._tape.symbols.__getitem__, rows["symbol"].tolist())
        columns = (rows[name].tolist() for name in FIELDS)
        return map(_bar_of, zip(names, repeat(self._tape.timeframe), *columns, strict=False))

    def _closes(self, rows: Rows) -> Iterator[tuple[str, Tick]]:
        names = list(map(self._tape.symbols.__getitem__, rows["symbol"].tolist()))
        last, volume = rows["close"].tolist(), (rows["volume"] / _QUARTERS).tolist()
        ticks = map(Tick, names, last, volume, last, last, rows["at"].tolist())
        return zip(names, ticks, strict=True)

    def _close_each(
        self, rows: npt.NDArray[np.int64], closes: Iterable[tuple[str, Tick]], at: float
    ) -> None:
        """Close bars of one time; one of a symbol that nothing waits for only sets its price."""
        engine, traded = self._engine, self._tape.is_traded[rows].tolist()
        for row, is_traded, (symbol, close) in zip(rows.tolist(), traded, closes, strict=True):
            if self._takes_ticks:
                self._closed.append(replace(close, volume=close.volume * _QUARTERS))
            if symbol in engine.watched and is_traded:
                self._close(row, close)
            elif at < engine.next_expiry or not is_traded:
                engine.clock.at = at
                engine.portfolio.apply_tick(close)
            else:
                engine.apply_tick(close)

    def _open_each(self, rows: Iterable[int], at: float) -> None:
        """Open those bars of one time that an order or a stop waits for."""
        symbols, numbers = self._tape.symbols, self._tape.rows["symbol"]
        for row in rows:
            if symbols[numbers[row]] in self._engine.watched:
                self._open(row, at)

    def _open(self, row: int, at: float) -> None:
        """Match the open of a bar, and let the stops see it."""
        number, closes_at, first, high, low, _, volume, _ = self._tape.rows[row].item()
        symbol, engine = self._tape.symbols[number], self._engine
        if not self._tape.is_traded[row]:
            return
        tick = Tick(symbol, first, volume / _QUARTERS, first, first, at)
        engine.clock.at, engine.clock.place = at, Place.INSIDE_BAR
        engine.portfolio.apply_tick(tick)
        engine.manager.on_open(tick, Decimal(repr(low)), Decimal(repr(high)), closes_at)
        engine.stop_orders.on_open(symbol, closes_at)
        engine.trigger_stop_orders(tick)
        engine.check_stops(tick, engine.clock.monotonic_ns())
        engine.updates.handle()
        engine.clock.place = Place.BAR_CLOSE

    def _close(self, row: int, close: Tick) -> None:
        """Follow the prices inside a bar to its close."""
        _, at, first, high, low, last, volume, _ = self._tape.rows[row].item()
        symbol, engine = close.symbol, self._engine
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
        engine.updates.handle()
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
        bottom, top = Decimal(low), Decimal(high)  # comparing a decimal with a float is slow
        levels = [level for level in acting if bottom <= level <= top]
        if levels:  # a position is closed at the worse of two ticks: lower on the way down
            ticks, side = (
                engine.portfolio.instruments[symbol].ticks,
                Side.BUY if falls else Side.SELL,
            )
            found += [float(ticks.round(level, side)) for level in levels]
        inside = [each for each in found if low < each < high]
        return (max if falls else min)(inside, default=None)

    def _end_moment(self, bars: Iterable[Bar], at: float) -> None:
        """Call the strategies, when every bar of this time has closed."""
        engine, plain = self._engine, self._plain
        if plain:
            closed = list(bars)
            for run, wanted in plain:
                for bar in closed:
                    if bar[0] in wanted:
                        engine.on_bar(run, bar, (), at)
        if self._due:
            self._run_until(at, with_bars_of_now=True)
        engine.clock.at = at
        if self._closed:
            for tick in self._closed:
                engine.call_on_tick(tick)
            self._closed.clear()
        engine.run_timer(force=True)

    def _run_until(self, at: float, *, with_bars_of_now: bool) -> None:
        """Handle the bars and timers that are due, in order of time."""
        engine, bars = self._engine, self._due
        while True:
            due = bars[0][0] if bars else math.inf
            if due <= engine.timer_due and (due < at or (due == at and with_bars_of_now)):
                _, run, bar, values = bars.popleft()
                engine.on_bar(run, bar, values, due)
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
        if own and not subscription.indicators:
            self._plain.append((run, set(wanted)))
            own = []
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
        if not len(rows):
            return
        for bar in self._bars(rows):
            for run, wanted in self._plain:
                if bar.symbol in wanted:
                    run.add_history(bar, ())
        for _, run, bar, values in self._computed(rows, float(rows["at"][-1])):
            run.add_history(bar, values)

    def _computed(self, rows: Rows, until: float) -> list[_DueBar]:
        """Return the bars with indicators and the longer bars that end with these."""
        timeframe, runs = self._tape.timeframe, self._engine.runs
        frames = {frame for run in runs for frame in run.subscription.timeframes}
        if timeframe in frames and len(self._plain) < len(runs):
            closed = np.zeros(len(rows), BAR)
            closed["symbol"], closed["timeframe"] = self._own_ids[rows["symbol"]], timeframe.seconds
            for name in FIELDS:
                closed[name] = rows[name]
            self._own.push_bars(closed, deliver=True)
        if frames - {timeframe}:
            ticks = np.zeros(4 * len(rows), TICK)
            ticks["symbol"] = np.repeat(self._ids[rows["symbol"]], 4)
            ticks["at"] = np.repeat(rows["at"] - _BEFORE_S, 4)
            ticks["price"] = np.stack([rows[name] for name in _PRICES], axis=1).ravel()
            ticks["volume"][3::4] = rows["volume"]
            self._longer.push_many(ticks)
            self._longer.advance(until)
        planes = (self._own, self._longer)
        found = [(run, *each) for run in runs for plane in planes for each in plane.drain(run.key)]
        return [(self._due_at(bar), run, bar, values) for run, bar, values in found]

    def _due_at(self, bar: Bar) -> float:
        if bar.timeframe is Timeframe.D1 and bar.timeframe is not self._tape.timeframe:
            return bar.at + bar_session(bar.symbol).auction_s
        return bar.at
