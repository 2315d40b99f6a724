"""Backtest of strategies over a tape of ticks or bars, with its watchdog and its benchmark."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from qts.backtest.bar_tape import BarTape
from qts.backtest.bar_tape_player import BarTapePlayer
from qts.backtest.config import BacktestConfig
from qts.backtest.engine import BacktestEngine
from qts.backtest.late_values import LateRows
from qts.backtest.performance import EquityPoint, Trade, performance
from qts.backtest.portfolio import Opening
from qts.backtest.result import BacktestResult, DataInfo, StrategyResult
from qts.backtest.row_table import values_before, windows
from qts.backtest.sources import default_instruments
from qts.backtest.strategy_run import StrategyRun
from qts.backtest.tape import Chunk, Tape
from qts.backtest.tick_players import BarPlayer, CompiledPlayer, GenericPlayer, Way, select_scan
from qts.domain import Instruments, OperationError, RefusedError
from qts.orders import StrategyFigures
from qts.pipeline import CallError, HeldValue, SignalOutcome, held_by
from qts.strategies import Strategy

CHECK_S = 1.0
GRACE_S = 5.0
Progress = Callable[[int], None]  # events done so far
Floats = npt.NDArray[np.float64]


class _Played(NamedTuple):
    """What happened to a tape."""

    events: int
    first: float
    last: float
    seconds: float
    tape_seconds: float


def run_backtest(
    strategy: Strategy[Any] | Sequence[Strategy[Any]],
    tape: Tape | BarTape,
    config: BacktestConfig | None = None,
    *,
    instruments: Instruments | None = None,
    opening: Opening | None = None,
    on_signal: Callable[[SignalOutcome], None] | None = None,
    way: Way = "auto",
    progress: Progress = lambda _events: None,
    ends_process: bool = False,
) -> BacktestResult:
    """Run one or several strategies over a tape; by default with `default_instruments`.

    The account begins with the cash of the settings, or as `opening` has it. `on_signal` gets what
    became of each signal, but for those that a compiled scan counts.
    Raise RefusedError if the tape is empty, or if `way` is compiled and the strategy cannot be,
    and OperationError if a strategy does not return; if it cannot be interrupted either, and
    `ends_process` says so, the process ends.
    """
    strategies = [strategy] if isinstance(strategy, Strategy) else list(strategy)
    settings = config or BacktestConfig()
    if isinstance(tape, BarTape):
        settings = settings.over_bars(tape.timeframe)
    known = instruments or default_instruments()
    engine = BacktestEngine(strategies, settings, known, opening, on_signal)
    player = _player(engine, way, tape)
    held = BuyAndHold()
    with Watchdog(engine, ends_process=ends_process) as watchdog:
        played = _play(engine, player, tape, (held, watchdog, progress))
        if not played.events:
            raise RefusedError("the data has no events")
        with watchdog.playing():
            engine.finish(played.last)
    start = float(settings.cash)
    if isinstance(tape, BarTape):
        benchmark, seen = hold_bars(tape, start), tape.seen
    else:
        benchmark, seen = held.points(start), held.seen
    mode = "compiled" if isinstance(player, CompiledPlayer) else "generic"
    missing = set(tape.wanted) - {tape.symbols[number] for number in seen}
    data = _data(engine, tape, played, tuple(sorted(missing)))
    return _result(engine, played, {"data": data, "way": mode, "benchmark": benchmark})


def _play(
    engine: BacktestEngine,
    player: Any,
    tape: Tape | BarTape,
    watchers: tuple[BuyAndHold, Watchdog, Progress],
) -> _Played:
    held, watchdog, progress = watchers
    events, spent, tape_spent, first, last = 0, 0.0, 0.0, 0.0, 0.0
    mark = time.perf_counter()
    for chunk in tape:
        if isinstance(chunk, Chunk):
            held.add(chunk, len(tape.symbols))
        began = time.perf_counter()
        tape_spent += began - mark
        last = float(chunk.at[-1])
        if not events and not first:
            first = float(chunk.at[0])
            with watchdog.playing():
                engine.start(first)
        with watchdog.playing():
            events += player.play(chunk)
        mark = time.perf_counter()
        spent += mark - began
        progress(events)
    return _Played(events, first, last, spent, tape_spent)


def _player(
    engine: BacktestEngine, way: Way, tape: Tape | BarTape
) -> GenericPlayer | CompiledPlayer | BarPlayer | BarTapePlayer:
    if isinstance(tape, BarTape):
        if way == "compiled":
            raise RefusedError("the data has bars, and compiled runs take ticks; omit --way")
        return BarTapePlayer(engine, tape)
    scan = select_scan(engine, way)
    if scan is not None:
        return CompiledPlayer(engine, scan, tape)
    needs_clock = any(run.strategy.timeframes or run.strategy.timer_s for run in engine.runs)
    return BarPlayer(engine, tape) if needs_clock else GenericPlayer(engine, tape)


def _data(
    engine: BacktestEngine, tape: Tape | BarTape, played: _Played, missing: tuple[str, ...]
) -> DataInfo:
    return DataInfo(
        kind=tape.timeframe if isinstance(tape, BarTape) else "ticks",
        symbols=len(tape.symbols),
        events=played.events,
        began=datetime.fromtimestamp(played.first, UTC),
        ended=engine.clock.now(),
        digest=tape.digest,
        missing=missing,
    )


def _result(engine: BacktestEngine, played: _Played, more: dict[str, Any]) -> BacktestResult:
    manager, points = engine.manager, engine.curve.points
    return BacktestResult(
        strategies=tuple(_strategy_result(engine, run) for run in engine.runs),
        settings=engine.config,
        seconds=played.seconds,
        tape_seconds=played.tape_seconds,
        performance=performance(points, manager.trades, manager.fills),
        points=tuple(points),
        trades=manager.trades,
        still_open=tuple(manager.open_trades),
        proposals=engine.proposals,
        fills=manager.fills,
        refusals=dict(engine.signals.refusals),
        expired=dict(manager.expired + engine.stop_orders.ended),
        cuts=dict(engine.cuts),
        trips=dict(engine.trips),
        **more,
    )


def _strategy_result(engine: BacktestEngine, run: StrategyRun) -> StrategyResult:
    count, profit = _completed(engine.manager.trades, run.key)
    figures = engine.manager.figures.get(run.key, StrategyFigures())
    held = held_by(engine.portfolio).get(run.key, HeldValue())
    return StrategyResult(
        key=run.key,
        params=msgspec.to_builtins(run.strategy.params),
        signals=run.signals,
        orders=engine.proposals.column("strategy_key").count(run.key),
        fills=engine.manager.filled[run.key],
        trades=count,
        profit=float(profit),
        refusals=dict(run.refusals),
        errors=run.errors,
        stopped=run.stopped,
        realised=float(figures.net),
        fees=float(figures.fees),
        unrealised=float(held.unrealised),
        exposure=float(held.exposure),
    )


def _completed(trades: LateRows[Trade], key: str) -> tuple[int, Decimal]:
    """Return how many trades a strategy has completed, and their profit."""
    keys = trades.column("strategy")
    if (count := keys.count(key)) == len(trades):
        return count, trades.total("profit")
    profits = zip(trades.column("profit"), keys, strict=True)
    return count, sum((profit for profit, each in profits if each == key), Decimal(0))


class _HungError(BaseException):
    """Raised inside a call that does not return: no `except Exception` of a strategy stops it."""


class Watchdog:
    """Ends a backtest whose strategy does not return with an error, while it is entered.

    each second   no call returned and no event was played for the limit ─▶ OperationError
    5 s later     still nothing: compiled code that never returns to Python ─▶ with `ends_process`,
                  the process ends with exit code 1 and a traceback on stderr

    The first works by a signal, which only the main thread of a process gets; elsewhere nothing is
    watched. Time spent on reading the tape does not count.
    """

    def __init__(self, engine: BacktestEngine, *, ends_process: bool) -> None:
        self._engine = engine
        self._limit_s = engine.config.call_limit_s
        self._is_playing = False
        self._progress: tuple[float, ...] = ()
        self._since = self._entered = 0.0
        self._handler: Any = None
        self._timer = (0.0, 0.0)  # of somebody else
        self._works = threading.current_thread() is threading.main_thread()
        self._ends_process = ends_process and self._works

    def __enter__(self) -> Self:
        if self._works:
            self._handler = signal.signal(signal.SIGALRM, self._check)
            self._timer = signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)
            self._entered = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._works:
            left_s = max(0.001, self._timer[0] - (time.monotonic() - self._entered))
            signal.setitimer(signal.ITIMER_REAL, left_s if self._timer[0] else 0, self._timer[1])
            signal.signal(signal.SIGALRM, self._handler)
        if isinstance(error, _HungError):
            raise self._described(error) from None

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Count time until the block ends; outside of one, nothing is watched."""
        self._note()
        self._is_playing = True
        try:
            yield
        finally:
            self._is_playing = False
            if self._ends_process:
                faulthandler.cancel_dump_traceback_later()

    def _note(self) -> None:
        self._progress, self._since = self._now(), time.monotonic()
        if self._ends_process and sys.__stderr__ is not None:
            seconds = self._limit_s + GRACE_S
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    def _now(self) -> tuple[float, ...]:
        return (self._engine.clock.at, *(run.progress for run in self._engine.runs))

    def _check(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_playing:
            return
        if self._progress != self._now():
            self._note()
        elif time.monotonic() - self._since >= self._limit_s:
            raise _HungError

    def _described(self, error: _HungError) -> OperationError:
        called = [run for run in self._engine.runs if run.calls > run.returned]
        run = (called or self._engine.runs)[0]
        where = CallError.raised(error, run.strategy).where
        what = f"strategy {run.key} did not return" if called else "the backtest made no progress"
        return OperationError(
            f"{what} within {self._limit_s:g} s{f' at {where}' if where else ''}; ended. If it is"
            " only slow, pass a larger --call-limit"
        )


class BuyAndHold:
    """Buy and hold: every symbol bought at its first price in equal parts, without costs.

    Growth of the symbols of a tape of ticks, with a point for each chunk.
    """

    def __init__(self) -> None:
        self._first: Floats = np.zeros(0)
        self._last: Floats = np.zeros(0)
        self._points: list[tuple[float, float, int]] = []  # time, sum of growths, symbols so far

    def add(self, chunk: Chunk, symbols: int) -> None:
        """Add the prices of a chunk; `symbols` is the number of symbols so far."""
        more = np.zeros(symbols - len(self._first))
        self._first = np.concatenate([self._first, more])
        self._last = np.concatenate([self._last, more])
        valid = (chunk.price > 0) & np.isfinite(chunk.price)
        symbol, price = chunk.symbol, chunk.price
        if not valid.all():
            symbol, price = symbol[valid], price[valid]
        if not self._first.all():
            first = np.zeros(symbols)
            first[symbol[::-1]] = price[::-1]  # of several values of one index the last is kept
            if not self._points:
                self._points.append((float(chunk.at[0]), 0.0, 0))
            self._first = np.where(self._first > 0, self._first, first)
        self._last[symbol] = price
        seen = self._first > 0
        growth = float((self._last[seen] / self._first[seen]).sum())
        self._points.append((float(chunk.at[-1]), growth, int(seen.sum())))

    @property
    def seen(self) -> set[int]:
        """Numbers of the symbols with a price."""
        return set(np.flatnonzero(self._first > 0).tolist())

    def points(self, start: float) -> tuple[EquityPoint, ...]:
        """Return the equity of an account that starts with this; cash until a first price."""
        symbols = max(1, int((self._first > 0).sum()))
        values = [
            (at, start * (growth + symbols - seen) / symbols) for at, growth, seen in self._points
        ]
        return tuple(EquityPoint(at, value, value) for at, value in values)


def hold_bars(tape: BarTape, start: float) -> tuple[EquityPoint, ...]:
    """Return the equity of holding all symbols from their first open, at each close."""
    count = max(1, len(tape.seen))
    opens, growths = np.full(len(tape.symbols), np.nan), np.ones(len(tape.symbols))
    times, values, total = [np.array([tape.starts.min()])], [np.array([start])], 0.0
    for part in windows(tape.rows):
        symbol, at = part["symbol"], part["at"]
        first = np.full(len(opens), np.nan)
        first[symbol[::-1]] = part["open"][::-1]  # of several values of one index the last is kept
        opens = np.where(np.isnan(opens), first, opens)
        growth = part["close"] / opens[symbol]
        change = growth - values_before(symbol, growth, growths)
        sums = np.cumsum(np.concatenate([[total], change]))[1:]
        total = float(sums[-1])
        is_last = np.concatenate([at[1:] != at[:-1], [True]])
        if times[-1][-1] == at[0]:  # its last bars are in this window
            times[-1], values[-1] = times[-1][:-1], values[-1][:-1]
        times.append(at[is_last])
        values.append(start * (1 + sums[is_last] / count))
    found = zip(np.concatenate(times).tolist(), np.concatenate(values).tolist(), strict=True)
    return tuple(EquityPoint(at, value, value) for at, value in found)
