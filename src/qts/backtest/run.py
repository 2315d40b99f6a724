"""Backtest of a strategy over a tape; the compiled and the generic mode give the same result."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import numpy as np

from qts.backtest.compiled_scan import (
    ACTIVE,
    BLOCKED,
    DIRECTION,
    INDEX,
    STEPS,
    TIMER,
    SymbolRows,
    compile_scan,
)
from qts.backtest.config import BacktestConfig
from qts.backtest.engine import BacktestEngine
from qts.backtest.performance import EquityPoint, Performance, performance
from qts.backtest.portfolio import LatestTicks
from qts.backtest.tape import EMPTY_CHUNK, Chunk, Tape
from qts.backtest.trades import Trade
from qts.domain import Fill, RefusedError, Tick
from qts.pipeline import CallError
from qts.risk import OrderProposal
from qts.strategies import StepStrategy, Strategy

Way = Literal["auto", "compiled", "generic"]
Progress = Callable[[int], None]  # events done so far


class BacktestResult(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str
    params: dict[str, Any]
    way: Literal["compiled", "generic"]
    symbols: int
    events: int
    began: datetime
    ended: datetime
    seconds: float  # without reading or generating the tape
    tape_seconds: float
    performance: Performance
    points: tuple[EquityPoint, ...]
    trades: tuple[Trade, ...]
    still_open: tuple[Trade, ...]
    proposals: tuple[OrderProposal, ...]
    fills: tuple[Fill, ...]
    signals: int
    refusals: dict[str, int]
    trips: dict[str, int]
    errors: int
    stopped: str  # why the strategy was disabled, if it was

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def digest(self) -> str:
        """Return a hash of the orders, fills and equity curve."""
        content = (self.proposals, self.fills, self.points)
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]


def run_backtest(
    strategy: Strategy[Any],
    tape: Tape,
    config: BacktestConfig | None = None,
    *,
    way: Way = "auto",
    progress: Progress = lambda _events: None,
) -> BacktestResult:
    """Run a strategy over a tape.

    Raise RefusedError if the tape is empty, or if `way` is compiled and the strategy cannot be.
    """
    engine = BacktestEngine(strategy, config or BacktestConfig())
    scan = _select_scan(strategy, way)
    player = _CompiledPlayer(engine, scan, tape) if scan else _GenericPlayer(engine, tape)
    events, spent, tape_spent, first, last = 0, 0.0, 0.0, 0.0, 0.0
    mark = time.perf_counter()
    for chunk in tape:
        began = time.perf_counter()
        tape_spent += began - mark
        first, last = first if events else float(chunk.at[0]), float(chunk.at[-1])
        player.play(chunk)
        events += len(chunk.at)
        mark = time.perf_counter()
        spent += mark - began
        progress(events)
    if not events:
        raise RefusedError("the data has no events")
    engine.finish(last)
    mode = "compiled" if scan else "generic"
    return _result(engine, tape, events, (first, spent, tape_spent), mode)


def _select_scan(strategy: Strategy[Any], way: Way) -> Callable[..., int] | None:
    scan = None
    reason = "not a plain StepStrategy"
    if isinstance(strategy, StepStrategy) and _is_plain(type(strategy)):
        reason = "numba is not installed"
        scan = compile_scan(type(strategy).step) if way != "generic" else None
    if way == "compiled" and scan is None:
        raise RefusedError(f"strategy {strategy.key} cannot run compiled: {reason}")
    return scan


def _is_plain(kind: type[StepStrategy[Any]]) -> bool:
    """Return whether a subclass overrides nothing but its step."""
    names = ("on_tick", "on_price", "signals", "evaluate", "wants")
    return all(getattr(kind, name) is getattr(StepStrategy, name) for name in names)


class _GenericPlayer:
    """Plays a chunk with Python for every event."""

    def __init__(self, engine: BacktestEngine, tape: Tape) -> None:
        self._engine = engine
        self._symbols = tape.symbols

    def play(self, chunk: Chunk) -> None:
        engine, symbols = self._engine, self._symbols
        columns = (column.tolist() for column in chunk)
        for index, price, volume, bid, ask, at in zip(*columns, strict=True):
            if at >= engine.due:
                engine.on_timer(at)
            if 0.0 < price < float("inf"):
                engine.on_tick(Tick(symbols[index], price, volume, bid or price, ask or price, at))


class _CompiledPlayer:
    """Plays a chunk with the compiled scan, and with Python where the scan returns."""

    def __init__(self, engine: BacktestEngine, scan: Callable[..., int], tape: Tape) -> None:
        strategy = engine.strategy
        if not isinstance(strategy, StepStrategy):
            raise AssertionError("_select_scan returned a scan for another strategy")
        self._engine = engine
        self._compiled = scan
        self._strategy = strategy
        self._symbols = tape.symbols
        self._indices: dict[str, int] = {}
        self._rows = SymbolRows.of(0, strategy.state_size)
        self._output = np.zeros(4, np.int64)
        engine.add_listener(self._on_change)
        self._scan(EMPTY_CHUNK, 0)  # compiles, before the measured time

    def play(self, chunk: Chunk) -> None:
        if len(self._symbols) > len(self._indices):
            self._grow()
        engine, output, index = self._engine, self._output, 0
        while index < len(chunk.at):
            found = self._scan(chunk, index)
            index = int(output[INDEX])
            if found == TIMER:
                engine.on_timer(float(chunk.at[index]))
                continue
            if found == ACTIVE:
                engine.on_tick(self._tick(chunk, index))
            elif output[DIRECTION]:
                self._signal(self._tick(chunk, index), int(output[DIRECTION]))
            index += 1

    def _scan(self, chunk: Chunk, index: int) -> int:
        engine, output = self._engine, self._output
        output[:] = 0
        limits = (engine.due, engine.blocked_until, not engine.stopped)
        rows = tuple(self._rows)
        found = -1
        try:
            found = self._compiled(index, *chunk, rows, self._strategy.numbers, *limits, output)
        except Exception as error:  # noqa: BLE001 - a step may raise anything
            raised = CallError.raised(error, self._strategy)
            engine.on_error(raised, after_success=bool(output[STEPS]))
        else:
            engine.on_success(int(output[STEPS]))
        engine.count_blocked(int(output[BLOCKED]))
        return found

    def _signal(self, tick: Tick, direction: int) -> None:
        engine = self._engine
        engine.apply_tick(tick)
        position = float(self._rows.position[self._indices[tick.symbol]])
        engine.on_signals(engine.call(self._strategy.signals, direction, tick, position))

    def _tick(self, chunk: Chunk, index: int) -> Tick:
        number, price, volume, bid, ask, at = (column[index].item() for column in chunk)
        return Tick(self._symbols[number], price, volume, bid or price, ask or price, at)

    def _on_change(self, symbol: str) -> None:
        index, engine = self._indices[symbol], self._engine
        position = engine.portfolio.position(symbol)
        self._rows.position[index] = float(position.quantity) if position else 0.0
        has_stops = engine.config.use_stops and position is not None
        self._rows.active[index] = has_stops or symbol in engine.manager.open

    def _grow(self) -> None:
        self._rows = self._rows.grown(len(self._symbols))
        self._indices = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._engine.portfolio.use_ticks(LatestTicks(self._indices, self._rows.latest))
        states = dict(zip(self._symbols, self._rows.states, strict=True))
        self._strategy.bind_states(states)


def _result(
    engine: BacktestEngine, tape: Tape, events: int, times: tuple[float, float, float], way: Any
) -> BacktestResult:
    first, seconds, tape_seconds = times
    manager, points = engine.manager, engine.curve.points
    return BacktestResult(
        strategy=engine.strategy.key,
        params=msgspec.to_builtins(engine.strategy.params),
        way=way,
        symbols=len(tape.symbols),
        events=events,
        began=datetime.fromtimestamp(first, UTC),
        ended=engine.clock.now(),
        seconds=seconds,
        tape_seconds=tape_seconds,
        performance=performance(points, manager.trades, manager.fills),
        points=tuple(points),
        trades=tuple(manager.trades),
        still_open=tuple(manager.open_trades),
        proposals=tuple(engine.proposals),
        fills=tuple(manager.fills),
        signals=engine.signals,
        refusals=dict(engine.refusals),
        trips=dict(engine.trips),
        errors=engine.errors,
        stopped=engine.stopped,
    )
