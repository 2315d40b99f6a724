"""Backtests: a day of 2,500 symbols, one rule beside four peers, and the memory of a year."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from typing import Any

from benchmarks import machine
from benchmarks.backtest_ours import on_bars, on_closes
from benchmarks.backtest_rule import (
    Rule,
    RunResult,
    Trade,
    differences,
    random_bars,
    unexplained,
)
from benchmarks.backtest_year import (
    COIN_MINUTES,
    SESSIONS,
    Measured,
    measure_closes,
    measure_files,
)
from benchmarks.machine import OtherLoad
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.peers_backtest import PEERS, Trial, peers
from benchmarks.plot import bars as bars_of
from benchmarks.report import Goal, Picture, Result, Row
from qts import telemetry
from qts.backtest import BacktestConfig, run_backtest
from qts.backtest.tape import simulated_day
from qts.risk import RiskLimitsConfig
from qts.strategies import MovingAverageSwing, RsiScalper, StepStrategy, SurgeBreakout

DAY_S, QUICK_S = 23_400, 60
_SLICE_S = 600  # part of the day that runs in plain Python
_SYMBOLS = 2500
_BARS, _LONG_BARS, _MIN_BARS, _QUICK_BARS = 50_000, 1_000_000, 1_000, 600  # the first two: in all
_ROUNDS, _QUICK_ROUNDS = 5, 1
_RULE = Rule(20, 100)
_PEER_SYMBOLS = (1, 20, 100)
_YEAR_SYMBOLS = 100
COMPILED, GENERIC, ON_BARS = "compiled", "plain Python on ticks", "plain Python on bars"
_GOALS = {  # ours divided by the peer
    (COMPILED, "vectorbt"): 1.0,
    (GENERIC, "backtesting.py"): 2.0,
    (GENERIC, "freqtrade"): 20.0,
    (GENERIC, "nautilus_trader"): 1.0,
    (ON_BARS, "backtesting.py"): 2.0,
    (ON_BARS, "freqtrade"): 20.0,
    (ON_BARS, "nautilus_trader"): 1.0,
}
_KINDS: dict[str, type[StepStrategy[Any]]] = {
    "RSI scalper": RsiScalper,
    "moving-average swing": MovingAverageSwing,
    "breakout on surge": SurgeBreakout,
}
# The default of 100 orders a day would block entries before noon.
_ALL_DAY = BacktestConfig(
    limits=RiskLimitsConfig(orders_per_day=1_000_000, orders_per_minute=1_000_000, daily_loss=1.0)
)


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    try:
        return _run(quick, progress)
    finally:
        telemetry.shutdown()


def _run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    rows = [_day(name, kind, quick, progress) for name, kind in _KINDS.items()]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    notes = [
        f"the day: {_SYMBOLS:,} symbols, one bar a second, generated during the run; generating it"
        f" is not counted; at most {peak_mb:,} MB in memory",
        "the gate has its default limits, except orders a day and a minute",
        "compiling takes seconds once a process and is not counted, neither ours nor a peer's",
        "the day runs with the gate, the stops and the paper broker's matching; the rule beside the"
        " peers, which have none or their own, with the gate and the matching",
        "vectorbt and freqtrade run in a process each, which times the backtest alone; vectorbt"
        " computes on whole columns, without a gate, stops or events",
    ]
    peer_rows: list[Row] = []
    for symbols in _PEER_SYMBOLS:
        progress(f"one rule, {symbols} symbol{'s' * (symbols > 1)}, ours and the peers")
        for each in (_BARS, _LONG_BARS):
            found, about = beside(symbols, each, quick)
            peer_rows += found
            notes += about
    measured = {row.peer_name for row in peer_rows}
    notes += [f"{name} is not installed" for name in PEERS if name not in measured]
    progress("a year of minutes")
    rows += year(quick)
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    pictures = [Picture("backtest-day", bars_of("A day of 2,500 symbols", rows[: len(_KINDS)]))]
    if peer_rows:
        pictures.append(Picture("backtest-peers", bars_of("One rule beside peers", peer_rows)))
    return Result(
        machine=described,
        rows=(*rows, *peer_rows),
        notes=tuple(notes),
        pictures=tuple(pictures),
    )


def _day(
    name: str, kind: type[StepStrategy[Any]], quick: bool, progress: Callable[[str], None]
) -> Row:
    """Run the whole day compiled, and a part of it in plain Python."""
    seconds = QUICK_S if quick else DAY_S
    run_backtest(kind.from_params(), simulated_day(1, 10, 5))  # compiles
    progress(f"{name}, {seconds:,} seconds of {_SYMBOLS:,} symbols")
    others = OtherLoad()
    day, part_s = simulated_day(1, _SYMBOLS, seconds), min(seconds, _SLICE_S)
    whole = run_backtest(kind.from_params(), day, _ALL_DAY, way="compiled")
    disturbed = others.is_disturbing()
    part = run_backtest(
        kind.from_params(), simulated_day(1, _SYMBOLS, part_s), _ALL_DAY, way="generic"
    )
    return Row(
        name=f"a day, {name}",
        metric="throughput",
        unit="events/s",
        better="higher",
        ours=whole.events_per_s,
        peer=part.events_per_s,
        peer_name="the same in plain Python",
        goals=() if quick else (Goal("ours", ">=", 500_000),),
        note=f"{whole.events:,} events, {len(whole.fills):,} fills"
        + (", disturbed" if disturbed else ""),
    )


def beside(symbols: int, total: int, quick: bool) -> tuple[list[Row], list[str]]:
    """Run the rule in QTS and in the installed peers; return rows and notes.

    The long runs have only what is fast enough for them: the compiled mode and vectorbt.
    """
    is_long = total > _BARS
    length = _QUICK_BARS * (1 + is_long) if quick else max(total // symbols, _MIN_BARS)
    bars = random_bars(symbols, length, _RULE)
    trials: dict[str, Trial] = {COMPILED: on_closes(bars, _RULE, "compiled")}
    if not is_long:
        trials[GENERIC] = on_closes(bars, _RULE, "generic")
        trials[ON_BARS] = on_bars(bars, _RULE)
    ways = list(trials)
    with peers(bars, _RULE, ("vectorbt",) if is_long else PEERS) as found:
        trials |= found
        trades = {name: trial().trades for name, trial in trials.items()}  # also warms up
        cases = {name: _case(trial, bars.total) for name, trial in trials.items()}
        series, _ = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    title = f"{symbols} symbol{'s' * (symbols > 1)} x {length:,}"
    rows = [_row(title, way, name, series) for way in ways for name in found]
    differing = {name: differences(trades[COMPILED], made) for name, made in trades.items()}
    wrong = {name: unexplained(trades[COMPILED], made) for name, made in trades.items()}
    rows.append(_trades_row(title, trades, differing, wrong))
    return rows, [f"{title}, {name}: {each}" for name, all_ in differing.items() for each in all_]


def _trades_row(
    title: str,
    trades: dict[str, list[Trade]],
    differing: dict[str, list[str]],
    wrong: dict[str, list[str]],
) -> Row:
    """Return how many trades of any run are not those of the compiled one, without a reason."""
    explained = sum(map(len, differing.values())) - sum(map(len, wrong.values()))
    made = ", ".join(f"{name} {len(each):,}" for name, each in trades.items())
    return Row(
        name=f"trades that differ without a reason, {title}",
        metric="all runs",
        unit="trades",
        better="lower",
        ours=sum(map(len, wrong.values())),
        peer=sum(map(len, trades.values())),
        peer_name="trades of all runs",
        goals=(Goal("ours", "<=", 0),),
        note=f"{made}; {explained} differ by orders that end with the day",
    )


def _case(trial: Callable[[], RunResult], events: int) -> Case:
    def case() -> Sample:
        gc.collect()
        others = OtherLoad()
        result = trial()
        return Sample(events / result.seconds, others.is_disturbing(result.child_cpu_s))

    return case


def _row(title: str, way: str, name: str, series: dict[str, Series]) -> Row:
    mine, peer, goal = series[way], series[name], _GOALS.get((way, name))
    return Row(
        name=f"{way}, {title}",
        metric="median",
        unit="bars/s",
        better="higher",
        ours=mine.median,
        peer=peer.median,
        peer_name=name,
        goals=(Goal("ratio", ">=", goal),) if goal is not None else (),
        note=f"{mine.low:,.0f} to {mine.high:,.0f}{mine.remark}; peer {peer.low:,.0f} to"
        f" {peer.high:,.0f}{peer.remark}",
    )


def year(quick: bool) -> list[Row]:
    """Return rows of the memory of a year of minutes."""
    symbols = 2 if quick else _YEAR_SYMBOLS
    coins = measure_closes(symbols, _QUICK_BARS if quick else COIN_MINUTES)
    stocks = measure_files(symbols, 1 if quick else SESSIONS)
    return [
        _year_row(f"a year of minutes, {symbols} coins, compiled", coins),
        _year_row(f"a year of minutes, {symbols} stocks, qts backtest on files", stocks),
    ]


def _year_row(name: str, found: Measured) -> Row:
    return Row(
        name=name,
        metric="peak RSS",
        unit="MB",
        better="lower",
        ours=found.peak_mb,
        peer=found.table_mb,
        peer_name="the bars as columns of 64 bits",
        goals=(Goal("ours", "<", 1000),),
        note=f"{found.bars:,} bars, {found.bars / found.seconds:,.0f} bars/s",
    )
