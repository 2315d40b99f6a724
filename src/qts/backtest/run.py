"""Backtest of strategies over a tape of ticks or bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from qts.backtest.bar_player import BarPlayer
from qts.backtest.bar_tape import BarTape
from qts.backtest.bar_tape_player import BarTapePlayer
from qts.backtest.benchmark import BuyAndHold, hold_bars
from qts.backtest.config import BacktestConfig
from qts.backtest.engine import BacktestEngine
from qts.backtest.instruments import default_instruments
from qts.backtest.performance import performance
from qts.backtest.portfolio import Opening
from qts.backtest.result import BacktestResult, DataInfo, StrategyResult
from qts.backtest.strategy_run import StrategyRun
from qts.backtest.tape import Chunk, Tape
from qts.backtest.tick_players import CompiledPlayer, GenericPlayer, Way, select_scan
from qts.backtest.watchdog import Watchdog
from qts.domain import Instruments, RefusedError
from qts.orders import StrategyFigures
from qts.pipeline import HeldValue, SignalOutcome, held_by
from qts.strategies import Strategy

Progress = Callable[[int], None]  # events done so far


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
    trades = engine.manager.trades
    profits = [
        profit
        for profit, key in zip(trades.column("profit"), trades.column("strategy"), strict=True)
        if key == run.key
    ]
    figures = engine.manager.figures.get(run.key, StrategyFigures())
    held = held_by(engine.portfolio).get(run.key, HeldValue())
    return StrategyResult(
        key=run.key,
        params=msgspec.to_builtins(run.strategy.params),
        signals=run.signals,
        orders=engine.proposals.column("strategy_key").count(run.key),
        fills=engine.manager.filled[run.key],
        trades=len(profits),
        profit=float(sum(profits)),
        refusals=dict(run.refusals),
        errors=run.errors,
        stopped=run.stopped,
        realised=float(figures.net),
        fees=float(figures.fees),
        unrealised=float(held.unrealised),
        exposure=float(held.exposure),
    )
