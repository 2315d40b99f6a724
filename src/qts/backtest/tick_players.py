"""Players of a tape of ticks; the compiled and the generic mode give the same result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from qts._native import TickCalls
from qts.backtest.compiled_scan import (
    ACTIVE,
    APPLY,
    BLOCKED,
    DIRECTION,
    INDEX,
    STEPS,
    TIMER,
    SymbolRows,
    compile_scan,
)
from qts.backtest.engine import BacktestEngine
from qts.backtest.portfolio import PlayedTicks, ScannedTicks
from qts.backtest.scan_orders import ScanOrders, takes_orders
from qts.backtest.strategy_run import StrategyRun
from qts.backtest.tape import EMPTY_CHUNK, Chunk, Tape
from qts.domain import RefusedError, Tick
from qts.pipeline import CallError
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
