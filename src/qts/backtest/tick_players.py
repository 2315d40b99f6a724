"""Players of a tape of ticks; the compiled and the generic mode give the same result."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from qts._native import TickCalls
from qts.backtest.compiled_scan import (
    ACTIVE,
    APPLY,
    BLOCKED,
    DIRECTION,
    INDEX,
    STEPS,
    TIMER,
    ScanOrders,
    SymbolRows,
    compile_scan,
    takes_orders,
)
from qts.backtest.engine import BacktestEngine
from qts.backtest.late_values import LatestTicks, PlayedTicks, ScannedTicks
from qts.backtest.strategy_run import StrategyRun
from qts.backtest.tape import EMPTY_CHUNK, Chunk, Tape
from qts.domain import Bar, RefusedError, Tick, Timeframe
from qts.pipeline import CallError
from qts.router import TICK, MarketPlane, bar_session
from qts.strategies import StepStrategy

Way = Literal["auto", "compiled", "generic"]


def select_scan(engine: BacktestEngine, way: Way) -> Callable[..., int] | None:
    """Return the compiled scan of the only strategy; None where the generic mode runs."""
    strategy, scan = engine.runs[0].strategy, None
    reason = "not a plain StepStrategy on ticks"
    if len(engine.runs) > 1:
        reason = "there is another strategy"
    elif isinstance(strategy, StepStrategy) and _is_plain(strategy):
        reason = "numba is not installed"
        if way != "generic":
            scan = compile_scan(type(strategy).step, takes_orders(engine))
    if way == "compiled" and scan is None:
        raise RefusedError(f"strategy {strategy.key} cannot run compiled: {reason}")
    return scan


def _is_plain(strategy: StepStrategy[Any]) -> bool:
    """Return whether a subclass overrides nothing but its step, and takes ticks only."""
    names = ("on_tick", "on_price", "on_fill", "on_order", "signals", "evaluate", "wants")
    kind = type(strategy)
    return (
        not strategy.timeframes
        and not strategy.timer_s
        and strategy.symbols is None
        and all(getattr(kind, name) is getattr(StepStrategy, name) for name in names)
    )


class GenericPlayer:
    """Plays a chunk with a call of the strategies for every tick.

    The core calls a strategy that is alone with ticks that no order, stop or timer waits for.
    """

    def __init__(self, engine: BacktestEngine, tape: Tape) -> None:
        self._engine = engine
        self._symbols = tape.symbols
        self._calls = TickCalls(Tick, engine.portfolio.ticks)
        self._only = engine.runs[0] if len(engine.runs) == 1 else None
        if self._only is not None:
            self._only.use_core(self._calls)
            shown = PlayedTicks(engine.portfolio.ticks, self._calls.write_ticks)
            engine.portfolio.show_ticks(shown)

    def play(self, chunk: Chunk) -> int:
        """Play the events of a chunk and return how many they are."""
        engine, run, calls = self._engine, self._only, self._calls
        if run is None or not run.takes_ticks:
            return self._play_each(chunk)
        calls.begin(*chunk, self._symbols)
        while calls.left:
            at = calls.at
            if at >= engine.due:
                engine.on_timer(at)
            if self._is_quiet(run, at):
                until = min(engine.due, engine.next_expiry)
                found = run.play_ticks(calls, engine.portfolio, engine.watched, until)
                if found:
                    engine.on_signals(run, found)
                    engine.updates.handle()
            elif (tick := calls.take()) is not None:
                engine.on_tick(tick)
        return len(chunk.at)

    def _is_quiet(self, run: StrategyRun, at: float) -> bool:
        """Return whether nothing waits for the next tick but the strategy."""
        engine = self._engine
        return (
            self._calls.symbol not in engine.watched
            and at < engine.next_expiry
            and not engine.updates.has_any
            and run.takes_every_tick
        )

    def _play_each(self, chunk: Chunk) -> int:
        engine = self._engine
        for tick in chunk.ticks(self._symbols):
            if tick.at >= engine.due:
                engine.on_timer(tick.at)
            if 0.0 < tick.price < math.inf:
                engine.on_tick(tick)
        return len(chunk.at)


class CompiledPlayer:
    """Plays a chunk with the compiled scan, and with Python where the scan returns."""

    def __init__(self, engine: BacktestEngine, scan: Callable[..., int], tape: Tape) -> None:
        self._run = engine.runs[0]
        strategy = self._run.strategy
        if not isinstance(strategy, StepStrategy):
            raise AssertionError("select_scan returned a scan for another strategy")
        self._engine = engine
        self._compiled = scan
        self._strategy = strategy
        self._symbols = tape.symbols
        self._indices: dict[str, int] = {}
        self._rows = SymbolRows.of(0, strategy.state_size)
        self._output = np.zeros(4, np.int64)
        self._latest = ScannedTicks(self._indices, self._rows.latest)
        self.orders = ScanOrders(engine, ())
        engine.add_listener(self._on_change)
        self._scan(EMPTY_CHUNK, 0)  # compiles, before the measured time

    def play(self, chunk: Chunk) -> int:
        """Play the events of a chunk and return how many they are."""
        if len(self._symbols) > len(self._indices):
            self._grow()
        engine, output, index = self._engine, self._output, 0
        while index < len(chunk.at):
            found = self._scan(chunk, index)
            index = int(output[INDEX])
            if found == TIMER:
                engine.on_timer(float(chunk.at[index]))
                continue
            if found == APPLY:
                continue
            if found == ACTIVE:
                engine.on_tick(self._tick(chunk, index))
            elif output[DIRECTION]:
                self._signal(self._tick(chunk, index), int(output[DIRECTION]))
            index += 1
        return len(chunk.at)

    def _scan(self, chunk: Chunk, index: int) -> int:
        engine, run, output = self._engine, self._run, self._output
        output[:] = 0
        limits = (engine.due, engine.entry_block()[0], not run.stopped)
        orders = self.orders.begin()
        arrays = (tuple(self._rows), self._strategy.numbers, orders)
        found = -1
        try:
            self._latest.clear()
            found = self._compiled(index, *chunk, *arrays, *limits, output)
        except Exception as error:  # noqa: BLE001 - a step may raise anything
            raised = CallError.raised(error, self._strategy)
            run.on_error(raised, after_success=bool(output[STEPS]))
        else:
            run.on_success(int(output[STEPS]))
        engine.count_blocked(run, int(output[BLOCKED]))  # with the code from before its orders
        self.orders.apply(chunk)
        return found

    def _signal(self, tick: Tick, direction: int) -> None:
        engine = self._engine
        engine.apply_tick(tick)
        position = float(self._rows.position[self._indices[tick.symbol]])
        signals = self._run.call(self._strategy.signals, direction, tick, position)
        engine.on_signals(self._run, signals)

    def _tick(self, chunk: Chunk, index: int) -> Tick:
        number, price, volume, bid, ask, at = (column[index].item() for column in chunk)
        return Tick(self._symbols[number], price, volume, bid or price, ask or price, at)

    def _on_change(self, symbol: str) -> None:
        index, engine = self._indices.get(symbol), self._engine
        self.orders.on_change()
        if index is None:  # no tick of it so far
            return
        position = engine.portfolio.position(symbol)
        self._rows.position[index] = float(position.quantity) if position else 0.0
        self._rows.active[index] = symbol in engine.watched

    def _grow(self) -> None:
        self._rows = self._rows.grown(len(self._symbols))
        self._indices = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._latest = ScannedTicks(self._indices, self._rows.latest)
        self._engine.portfolio.use_ticks(self._latest)
        states = dict(zip(self._symbols, self._rows.states, strict=True))
        self._strategy.bind_states(states)
        self.orders.grow(self._symbols)
        for symbol in self._engine.portfolio.positions:
            self._on_change(symbol)


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
