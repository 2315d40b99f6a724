"""Backtests: a day of 2,500 symbols, compiled and in plain Python; one rule beside two peers."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.machine import OtherLoad
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.peers_backtest import CASH, ORDER, Bars, Rule, RunResult, peers
from benchmarks.plot import bars as bars_of
from benchmarks.report import Goal, Picture, Result, Row
from qts import telemetry
from qts.backtest import BacktestConfig, Chunk, Tape, run_backtest
from qts.backtest.tape import simulated_day
from qts.brokers import FeesConfig
from qts.risk import RiskLimitsConfig
from qts.strategies import MovingAverageSwing, RsiScalper, StepStrategy, SurgeBreakout

DAY_S, QUICK_S = 23_400, 60
_SLICE_S = 600  # part of the day that runs in plain Python
_SYMBOLS = 2500
_BARS, _QUICK_BARS = 20_000, 1_000
_ROUNDS, _QUICK_ROUNDS = 5, 1
_RULE = Rule(20, 100)
_MANY_SYMBOLS = 10
_KINDS: dict[str, type[StepStrategy[Any]]] = {
    "RSI scalper": RsiScalper,
    "moving-average swing": MovingAverageSwing,
    "breakout on surge": SurgeBreakout,
}
# The default of 100 orders a day would block entries before noon.
_ALL_DAY = BacktestConfig(
    limits=RiskLimitsConfig(orders_per_day=1_000_000, orders_per_minute=1_000_000, daily_loss=1.0)
)
_OPEN = RiskLimitsConfig(
    max_order_value=ORDER,
    max_quantity=1e12,
    max_exposure=1.0,
    max_symbol_exposure=1.0,
    daily_loss=1.0,
    max_open_symbols=10_000,
    orders_per_day=1_000_000,
    orders_per_minute=1_000_000,
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
    known = peers()
    notes = [
        f"the day: {_SYMBOLS:,} symbols, one bar a second, generated during the run; generating it"
        f" is not counted; at most {peak_mb:,} MB in memory",
        "the gate has its default limits, except orders a day and a minute",
        "compiling a step takes about a second once a process and is not counted",
        "the day runs with the gate, the stops and the paper broker's matching; the rule beside the"
        " peers, which have none or their own, with the gate and the matching",
    ]
    notes += [f"{name} is not installed" for name in _PEERS if name not in known]
    peer_rows: list[Row] = []
    for symbols in (1, _MANY_SYMBOLS):
        progress(f"one rule, {symbols} symbol{'s' * (symbols > 1)}, ours and {len(known)} peers")
        found, note = beside(symbols, quick)
        peer_rows += found
        notes.append(note)
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    pictures = [Picture("backtest-day", bars_of("A day of 2,500 symbols", rows))]
    if peer_rows:
        pictures.append(Picture("backtest-peers", bars_of("One rule beside peers", peer_rows)))
    return Result(
        machine=described,
        rows=(*rows, *peer_rows),
        notes=tuple(notes),
        pictures=tuple(pictures),
    )


_PEERS = ("backtesting.py", "nautilus_trader")


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


def random_bars(symbols: int, length: int) -> Bars:
    random = np.random.default_rng(7)
    steps = random.normal(0, 0.0005, (symbols, length))
    closes = np.round(10_000 * np.exp(np.cumsum(steps, axis=1)) / 10) * 10
    return {f"{n:06}": closes[n] for n in range(symbols)}


def ours(bars: Bars, rule: Rule, way: Any = "compiled") -> Callable[[], RunResult]:
    symbols, length = list(bars), len(next(iter(bars.values())))
    price = np.stack(list(bars.values()), axis=1).ravel()
    zeros = np.zeros(len(price))
    at = np.repeat(1_794_754_800.0 + np.arange(length), len(symbols))  # midnight in Seoul
    index = np.tile(np.arange(len(symbols), dtype=np.int32), length)
    chunk = Chunk(index, price, zeros, zeros, zeros, at)
    config = BacktestConfig(
        cash=Decimal(CASH),
        limits=_OPEN,
        use_stops=False,
        costs=FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0),
    )
    params = {"fast": rule.fast, "slow": rule.slow, "margin": 0}

    def trial() -> RunResult:
        tape = Tape(symbols, lambda _tape: [chunk])
        found = run_backtest(MovingAverageSwing.from_params(params), tape, config, way=way)
        return RunResult(found.seconds, len(found.trades))

    return trial


def beside(symbols: int, quick: bool) -> tuple[list[Row], str]:
    bars = random_bars(symbols, (_QUICK_BARS if quick else _BARS) // (4 if symbols > 1 else 1))
    events = sum(map(len, bars.values()))
    trials = {"ours": ours(bars, _RULE), "generic": ours(bars, _RULE, "generic")}
    trials |= {name: make(bars, _RULE) for name, make in peers().items()}
    trades = {name: trial().trades for name, trial in trials.items()}  # also warms up
    cases = {name: _case(trial, events) for name, trial in trials.items()}
    found, _ = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    rows = [
        _row(symbols, found["ours"], found[name], name, trades)
        for name in trials
        if name not in ("ours", "generic")
    ]
    rows.append(_row(symbols, found["ours"], found["generic"], "the same in plain Python", trades))
    counts = ", ".join(f"{name} {count}" for name, count in trades.items())
    return rows, f"trades of the rule on {symbols} x {events // symbols:,} bars: {counts}"


def _case(trial: Callable[[], RunResult], events: int) -> Case:
    def case() -> Sample:
        gc.collect()
        others = OtherLoad()
        result = trial()
        return Sample(events / result.seconds, others.is_disturbing())

    return case


def _row(symbols: int, mine: Series, peer: Series, name: str, trades: dict[str, int]) -> Row:
    is_peer = name in _PEERS
    return Row(
        name=f"one rule, {symbols} symbol{'s' * (symbols > 1)}",
        metric="median",
        unit="bars/s",
        better="higher",
        ours=mine.median,
        peer=peer.median,
        peer_name=name,
        goals=(Goal("ratio", ">=", 1),) if is_peer else (),
        note=f"{trades['ours']} trades, {mine.low:,.0f} to {mine.high:,.0f}{mine.remark}",
    )
