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
from collections.abc import Iterable, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from qts._native import BarCalls
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
_ROW = np.dtype([("symbol", np.int32), ("fields", np.float64, len(FIELDS))])  # of the tape
_INSIDE, _AT_CLOSE = Place.INSIDE_BAR, Place.BAR_CLOSE

_DueBar = tuple[float, StrategyRun, Bar, tuple[float, ...]]  # time, strategy, bar and indicators


class _Moments(NamedTuple):
    """Times of a part of the tape, how many bars close at each, and what opens then."""

    at: npt.NDArray[np.float64]
    closing: npt.NDArray[np.int64]
    closed: npt.NDArray[np.int64]  # rows that close, of all moments
    opened: npt.NDArray[np.int64]
    closed_to: npt.NDArray[np.int64]  # where in `closed` those of a moment end
    opened_to: npt.NDArray[np.int64]

    @classmethod
    def of(cls, events: BarEvents) -> _Moments:
        at, is_open = events.at, events.is_open
        first = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
        opening = np.add.reduceat(is_open, first, dtype=np.int64)
        closing = np.diff(first, append=len(at)) - opening
        rows = events.row[~is_open], events.row[is_open]
        return cls(at[first], closing, *rows, np.cumsum(closing), np.cumsum(opening))


class BarTapePlayer:
    """Plays opens and closes; the market plane computes indicators and longer bars."""

    def __init__(self, engine: BacktestEngine, tape: BarTape) -> None:
        self._engine = engine
        self._tape = tape
        self._own, self._longer = (
            MarketPlane(bars_kept=1, layout="inline"),
            MarketPlane(bars_kept=1, layout="inline"),
        )
        # Take bars of the tape as they are; of these symbols, or of all.
        self._plain: list[tuple[StrategyRun, set[str] | None]] = []
        self._due: deque[_DueBar] = deque()  # bars with indicators, and longer ones
        self._closed: list[Tick] = []  # of the current time
        ticks = engine.portfolio.ticks
        self._calls = BarCalls(Bar, Tick, tape.symbols, tape.timeframe, ticks)
        self._takes_ticks = any(run.takes_ticks for run in engine.runs)
        for run in engine.runs:
            self._subscribe(run)
        self._own_ids, self._ids = (
            np.array([plane.symbol_id(each) for each in tape.symbols], np.int64)
            for plane in (self._own, self._longer)
        )
        engine.clock.place = Place.BAR_CLOSE
        self._only = self._only_run()
        if self._only is not None:
            self._only.use_core(self._calls, self._calls.write_ends)
            engine.portfolio.use_core(self._calls)
        self._warm_up()

    def play(self, events: BarEvents) -> int:
        """Play opens and closes; return how many bars closed."""
        moments = _Moments.of(events)
        self._load(moments, float(events.at[-1]))
        while (index := self._play_quiet(moments)) < len(moments.at):
            self._play_moment(moments, index)
        return len(moments.closed)

    def _play_moment(self, moments: _Moments, index: int) -> None:
        """Play the closes of one time, then its opens."""
        engine, due, calls = self._engine, self._due, self._calls
        at, closing = moments.at[index].item(), moments.closing[index]
        if engine.timer_due <= at or (due and (due[0][0] < at or not closing)):
            self._run_until(at, with_bars_of_now=not closing)
        if at >= engine.day_ends_at:
            engine.start_day(at)
        calls.enter()
        if closing:
            closes = calls.closes()
            if engine.watched or self._takes_ticks:
                last = moments.closed_to[index]
                self._close_each(moments.closed[last - closing : last], closes, at)
            else:
                engine.clock.at = at
                engine.portfolio.keep_ticks(closes)
            self._call_on_bars(at)
            self._end_moment(at)
        self._open_each(at)
        calls.leave()

    def _play_quiet(self, moments: _Moments) -> int:
        """Play moments while nothing waits for a price or a time; return the first of the others.

        It does what `_play_moment` does with one strategy that only takes bars of the tape.
        """
        engine, calls, run = self._engine, self._calls, self._only
        while run is not None and run.is_ready and not (engine.watched or engine.updates.has_any):
            until = min(engine.timer_due, engine.day_ends_at)
            if (found := run.play_bars(calls, engine.portfolio, engine.curve, until)) is None:
                break
            index = calls.moment
            at = moments.at[index].item()
            engine.on_signals(run, found)
            engine.updates.handle()
            if calls.left:
                self._play_rest(run, at)
            self._end_moment(at)
            self._open_each(at)
            calls.leave()
        calls.write_ticks()
        return calls.moment

    def _load(self, moments: _Moments, until: float) -> None:
        """Begin a part of the tape."""
        closed = moments.closed
        is_range = len(closed) and closed[-1] - closed[0] == len(closed) - 1  # they ascend
        rows = self._tape.rows[closed[0] : closed[-1] + 1] if is_range else self._tape.rows[closed]
        numbers = rows["symbol"].astype(np.int64)
        table = np.ascontiguousarray(rows.view(_ROW)["fields"])
        self._expect(numbers, table)
        if computed := self._computed(rows, until):
            due = sorted([*self._due, *computed], key=itemgetter(0))
            self._due.clear()
            self._due.extend(due)
        series = self._only.expected_series(self._tape.symbols) if self._only is not None else []
        self._calls.begin(moments.at, moments.closing, numbers, table, series)
        opening = self._tape.rows["symbol"][moments.opened].astype(np.int64)
        self._calls.set_opens(moments.opened_to, moments.opened, opening)

    def _expect(self, symbols: npt.NDArray[np.int64], table: npt.NDArray[np.float64]) -> None:
        """Let strategies have the rows of the bars that they are called with."""
        if not self._plain:
            return
        is_small = len(self._tape.symbols) <= np.iinfo(np.uint16).max  # those are sorted by radix
        order = np.argsort(symbols.astype(np.uint16) if is_small else symbols, kind="stable")
        columns, first = table.view(_COLUMNS).ravel(), 0
        counts = np.bincount(symbols, minlength=len(self._tape.symbols)).tolist()
        for symbol, count in zip(self._tape.symbols, counts, strict=True):
            places, first = order[first : first + count], first + count
            for run, wanted in self._plain:
                if wanted is None or symbol in wanted:
                    run.expect_bars(symbol, self._tape.timeframe, columns, places)

    def _close_each(self, rows: npt.NDArray[np.int64], closes: Iterable[Tick], at: float) -> None:
        """Close bars of one time; one of a symbol that nothing waits for only sets its price."""
        engine, traded = self._engine, self._tape.is_traded[rows].tolist()
        for row, is_traded, close in zip(rows.tolist(), traded, closes, strict=True):
            if self._takes_ticks:
                self._closed.append(replace(close, volume=close.volume * _QUARTERS))
            if close.symbol in engine.watched and is_traded:
                self._close(row, close)
            elif at < engine.next_expiry or not is_traded:
                engine.clock.at = at
                engine.portfolio.apply_tick(close)
            else:
                engine.apply_tick(close)

    def _open_each(self, at: float) -> None:
        """Open those bars of one time that an order or a stop waits for."""
        watched = self._engine.watched
        while watched and (row := self._calls.next_open(watched)) is not None:
            self._open(row, at)

    def _open(self, row: int, at: float) -> None:
        """Match the open of a bar, and let the stops see it."""
        tape, engine = self._tape, self._engine
        if not tape.is_traded[row]:
            return
        number, closes_at, first, high, low, _, volume, _ = tape.rows.item(row)
        symbol, clock, stop_orders = tape.symbols[number], engine.clock, engine.stop_orders
        tick = Tick(symbol, first, volume / _QUARTERS, first, first, at)
        clock.at, clock.place = at, _INSIDE
        engine.portfolio.apply_tick(tick)
        engine.manager.on_open(tick, low, high, closes_at)
        if symbol in stop_orders or stop_orders.due <= at:
            stop_orders.on_open(symbol, closes_at)
            engine.trigger_stop_orders(tick)
        if engine.has_stops and symbol in engine.portfolio.positions:
            engine.check_stops(tick, clock.monotonic_ns())
        if engine.updates.has_any:
            engine.updates.handle()
        clock.place = _AT_CLOSE

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

    def _call_on_bars(self, at: float) -> None:
        """Call the strategies that take bars of the tape as they are."""
        if self._only is not None:
            self._play_rest(self._only, at)
            return
        bars = self._calls.bars()
        for run, wanted in self._plain:
            chosen = bars if wanted is None else [bar for bar in bars if bar[0] in wanted]
            self._on_bars(run, chosen, at)

    def _play_rest(self, run: StrategyRun, at: float) -> None:
        """Call the only strategy with the bars of the moment that are left."""
        engine, calls = self._engine, self._calls
        engine.clock.at = at
        while calls.left and run.is_ready and not engine.updates.has_any:
            if found := run.play_rest(calls, run.view_of(engine.portfolio)):
                engine.on_signals(run, found)
                engine.updates.handle()
        if calls.left:
            self._on_bars(run, calls.bars(), at)

    def _on_bars(self, run: StrategyRun, bars: Sequence[Bar], at: float) -> None:
        """Handle bars of a strategy that close at one time, as `engine.on_bar` does each."""
        engine, left = self._engine, iter(bars)
        engine.clock.at = at
        while not engine.updates.has_any:
            if not (found := run.on_bars(left, engine.view_of(run))):
                return
            engine.on_signals(run, found)
            engine.updates.handle()
        for bar in left:  # something waits: it may change after each of them
            engine.on_bar(run, bar, (), at)

    def _end_moment(self, at: float) -> None:
        """Call what else is called when every bar of this time has closed."""
        engine = self._engine
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
            takes_all = len(wanted) == len(self._tape.symbols)
            self._plain.append((run, None if takes_all else set(wanted)))
            own = []
        self._own.subscribe(run.key, wanted, own, subscription.indicators)
        self._longer.subscribe(run.key, wanted, longer, subscription.indicators)

    def _only_run(self) -> StrategyRun | None:
        """Return the only strategy, if it takes all bars of the tape and nothing else."""
        runs, plain = self._engine.runs, self._plain
        if len(runs) > 1 or not plain or plain[0][1] is not None:
            return None
        run = runs[0]
        has_more = run.takes_ticks or run.has_evaluate or len(run.subscription.timeframes) > 1
        return None if has_more else run

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
        names = map(self._tape.symbols.__getitem__, rows["symbol"].tolist())
        for symbol, values in zip(names, rows[list(FIELDS)].tolist(), strict=True):
            bar = Bar(symbol, self._tape.timeframe, *values)
            for run, wanted in self._plain:
                if wanted is None or bar.symbol in wanted:
                    run.add_history(bar, ())
        for _, run, bar, indicators in self._computed(rows, float(rows["at"][-1])):
            run.add_history(bar, indicators)

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
