"""Runs a strategy over a tape: compiled where that is possible, and the same either way."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import numpy as np

from qts.backtest.compiled_scan import (
    BEAT,
    PLACE,
    REFUSED,
    STEPPED,
    WATCHED,
    WISHED,
    Rows,
    compile_scan,
)
from qts.backtest.config import BacktestConfig
from qts.backtest.engine import BacktestEngine
from qts.backtest.performance import EquityPoint, Performance, performance
from qts.backtest.portfolio import LatestTicks
from qts.backtest.tape import NOTHING, Chunk, Tape
from qts.backtest.trades import Trade
from qts.domain import Fill, RefusedError, Tick
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
    seconds: float  # of computing; reading or making the tape is not in it
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
    stopped: str  # why the strategy was given up, if it was

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def digest(self) -> str:
        """The same for the same decisions, fills and equity, and for no others."""
        kept = (self.proposals, self.fills, self.points)
        return hashlib.sha256(msgspec.json.encode(kept)).hexdigest()[:16]


def run_backtest(
    strategy: Strategy[Any],
    tape: Tape,
    config: BacktestConfig | None = None,
    *,
    way: Way = "auto",
    progress: Progress = lambda _events: None,
) -> BacktestResult:
    """Refused when the tape is empty, or compiled is asked for and cannot be."""
    run = BacktestEngine(strategy, config or BacktestConfig())
    walk = _walk(strategy, way)
    player = _Scanned(run, walk, tape) if walk else _Generic(run, tape)
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
        raise RefusedError("the data holds no event")
    run.end(last)
    return _result(run, tape, events, (first, spent, tape_spent), "compiled" if walk else "generic")


def _walk(strategy: Strategy[Any], way: Way) -> Callable[..., int] | None:
    walk = None
    why = "it is no plain StepStrategy"
    if isinstance(strategy, StepStrategy) and _is_plain(type(strategy)):
        why = "numba is not installed"
        walk = compile_scan(type(strategy).step) if way != "generic" else None
    if way == "compiled" and walk is None:
        raise RefusedError(f"strategy {strategy.key} cannot run compiled: {why}")
    return walk


def _is_plain(kind: type[StepStrategy[Any]]) -> bool:
    """Whether its step is all there is to it."""
    names = ("on_tick", "on_price", "signals", "evaluate", "wants")
    return all(getattr(kind, name) is getattr(StepStrategy, name) for name in names)


class _Generic:
    """Every event through Python."""

    def __init__(self, run: BacktestEngine, tape: Tape) -> None:
        self._run = run
        self._symbols = tape.symbols

    def play(self, chunk: Chunk) -> None:
        run, symbols = self._run, self._symbols
        columns = (column.tolist() for column in chunk)
        for place, price, volume, bid, ask, at in zip(*columns, strict=True):
            if at >= run.due:
                run.on_timer(at)
            if 0.0 < price < float("inf"):
                run.on_tick(Tick(symbols[place], price, volume, bid or price, ask or price, at))


class _Scanned:
    """Python only where something is held, ordered, wanted or due."""

    def __init__(self, run: BacktestEngine, walk: Callable[..., int], tape: Tape) -> None:
        strategy = run.strategy
        if not isinstance(strategy, StepStrategy):
            raise AssertionError("asked for by _walk")
        self._run = run
        self._walk = walk
        self._strategy = strategy
        self._symbols = tape.symbols
        self._places: dict[str, int] = {}
        self._rows = Rows.of(0, strategy.state_size)
        self._notes = np.zeros(4, np.int64)
        run.on_change = self._changed
        self._scan(NOTHING, 0)  # compiles, before anybody looks at the time

    def play(self, chunk: Chunk) -> None:
        if len(self._symbols) > len(self._places):
            self._grow()
        run, notes, place = self._run, self._notes, 0
        while place < len(chunk.at):
            why = self._scan(chunk, place)
            place = int(notes[PLACE])
            if why == BEAT:
                run.on_timer(float(chunk.at[place]))
                continue
            if why == WATCHED:
                run.on_tick(self._tick(chunk, place))
            elif notes[WISHED]:
                self._wish(self._tick(chunk, place), int(notes[WISHED]))
            place += 1

    def _scan(self, chunk: Chunk, place: int) -> int:
        run, notes = self._run, self._notes
        notes[:] = 0
        rest = (self._strategy.numbers, run.due, run.closed_until, not run.stopped, notes)
        why = -1
        try:
            why = self._walk(place, *chunk, tuple(self._rows), *rest)
        except Exception as error:  # noqa: BLE001 - a step may raise anything
            run.failed(error, after_success=bool(notes[STEPPED]))
        else:
            run.succeeded(int(notes[STEPPED]))
        run.passed_over(int(notes[REFUSED]))
        return why

    def _wish(self, tick: Tick, wish: int) -> None:
        run = self._run
        run.arrived(tick)
        held = float(self._rows.held[self._places[tick.symbol]])
        run.heard(run.call(self._strategy.signals, wish, tick, held))

    def _tick(self, chunk: Chunk, place: int) -> Tick:
        number, price, volume, bid, ask, at = (column[place].item() for column in chunk)
        return Tick(self._symbols[number], price, volume, bid or price, ask or price, at)

    def _changed(self, symbol: str) -> None:
        place, run = self._places[symbol], self._run
        held = run.world.held(symbol)
        self._rows.held[place] = float(held.quantity) if held else 0.0
        watched = symbol in run.desk.open or (run.config.use_stops and held is not None)
        self._rows.watched[place] = watched

    def _grow(self) -> None:
        self._rows = self._rows.grown(len(self._symbols))
        self._places = {symbol: place for place, symbol in enumerate(self._symbols)}
        self._run.world.look_at(LatestTicks(self._places, self._rows.latest))
        states = dict(zip(self._symbols, self._rows.states, strict=True))
        self._strategy.keep_states(states)


def _result(
    run: BacktestEngine, tape: Tape, events: int, times: tuple[float, float, float], way: Any
) -> BacktestResult:
    first, seconds, tape_seconds = times
    desk, points = run.desk, run.curve.points
    return BacktestResult(
        strategy=run.strategy.key,
        params=msgspec.to_builtins(run.strategy.params),
        way=way,
        symbols=len(tape.symbols),
        events=events,
        began=datetime.fromtimestamp(first, UTC),
        ended=run.clock.now(),
        seconds=seconds,
        tape_seconds=tape_seconds,
        performance=performance(points, desk.trades, desk.fills),
        points=tuple(points),
        trades=tuple(desk.trades),
        still_open=tuple(desk.open_trips),
        proposals=tuple(run.proposals),
        fills=tuple(desk.fills),
        signals=run.signals,
        refusals=dict(run.refusals),
        trips=dict(run.trips),
        errors=run.errors,
        stopped=run.stopped,
    )
