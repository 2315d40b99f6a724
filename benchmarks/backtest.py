"""The backtest: a day of 2,500 symbols compiled and not, and one rule beside two peers."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.machine import Others
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.peers_backtest import CASH, ORDER, Bars, Ran, Rule, peers
from benchmarks.plot import bars as bars_of
from benchmarks.report import Goal, Picture, Result, Row
from qts import telemetry
from qts.backtest import BacktestConfig, Chunk, Tape, run_backtest
from qts.backtest.data import simulated_day
from qts.brokers import FeesConfig
from qts.risk import RiskLimitsConfig
from qts.strategies import MovingAverageSwing, RsiScalper, StepStrategy, SurgeBreakout

DAY_S, QUICK_S = 23_400, 60
_SLICE_S = 600  # of the day, for the generic way
_SYMBOLS = 2500
_BARS, _QUICK_BARS = 20_000, 1_000
_ROUNDS, _QUICK_ROUNDS = 5, 1
_RULE = Rule(20, 100)
_SEVERAL = 10
_KINDS: tuple[type[StepStrategy[Any]], ...] = (RsiScalper, MovingAverageSwing, SurgeBreakout)
# All day long: with the default of 100 orders a day it would be shut out before noon.
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


def run(quick: bool, say: Callable[[str], None]) -> Result:
    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    try:
        return _run(quick, say)
    finally:
        telemetry.shutdown()


def _run(quick: bool, say: Callable[[str], None]) -> Result:
    say("looking at the machine")
    described = machine.describe(quick)
    rows = [_day(kind, quick, say) for kind in _KINDS]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rival = peers()
    notes = [
        f"the day: {_SYMBOLS:,} symbols, one bar a second, made as it is run; the time of making it"
        f" is not counted; at most {peak_mb:,} MB in memory",
        "the gate's limits are the defaults but for the orders of a day and a minute: it trades on",
        "compiling a step takes about a second once a process, and is not counted",
        "the gate, the stops and the paper venue's matching are on in the day, and the gate and the"
        " matching beside the peers, which have none or their own",
    ]
    notes += [f"{name} is not installed" for name in _MISSING if name not in rival]
    compared: list[Row] = []
    for symbols in (1, _SEVERAL):
        say(f"one rule, {symbols} symbol{'s' * (symbols > 1)}, ours and {len(rival)} peers in turn")
        found, remark = beside(symbols, quick)
        compared += found
        notes.append(remark)
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    pictures = [Picture("backtest-day", bars_of("A day of 2,500 symbols", rows))]
    if compared:
        pictures.append(Picture("backtest-peers", bars_of("One rule beside peers", compared)))
    return Result(
        room="backtest",
        machine=described,
        rows=(*rows, *compared),
        notes=tuple(notes),
        pictures=tuple(pictures),
    )


_MISSING = ("backtesting.py", "nautilus_trader")


def _day(kind: type[StepStrategy[Any]], quick: bool, say: Callable[[str], None]) -> Row:
    """The whole day compiled, a part of it in plain Python."""
    seconds = QUICK_S if quick else DAY_S
    run_backtest(kind.from_params(), simulated_day(1, 10, 5))  # compiles
    say(f"{kind.key}, {seconds:,} seconds of {_SYMBOLS:,} symbols")
    others = Others()
    day, part_s = simulated_day(1, _SYMBOLS, seconds), min(seconds, _SLICE_S)
    whole = run_backtest(kind.from_params(), day, _ALL_DAY, way="compiled")
    disturbed = others.disturb()
    part = run_backtest(
        kind.from_params(), simulated_day(1, _SYMBOLS, part_s), _ALL_DAY, way="generic"
    )
    return Row(
        name=f"a day, {kind.key}",
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


def made_bars(symbols: int, length: int) -> Bars:
    chance = np.random.default_rng(7)
    steps = chance.normal(0, 0.0005, (symbols, length))
    closes = np.round(10_000 * np.exp(np.cumsum(steps, axis=1)) / 10) * 10
    return {f"{n:06}": closes[n] for n in range(symbols)}


def ours(bars: Bars, rule: Rule, way: Any = "compiled") -> Callable[[], Ran]:
    symbols, length = list(bars), len(next(iter(bars.values())))
    price = np.stack(list(bars.values()), axis=1).ravel()
    nothing = np.zeros(len(price))
    at = np.repeat(1_794_754_800.0 + np.arange(length), len(symbols))  # midnight in Seoul
    place = np.tile(np.arange(len(symbols), dtype=np.int32), length)
    chunk = Chunk(place, price, nothing, nothing, nothing, at)
    config = BacktestConfig(
        cash=Decimal(CASH),
        limits=_OPEN,
        use_stops=False,
        costs=FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0),
    )
    params = {"fast": rule.fast, "slow": rule.slow, "margin": 0}

    def trial() -> Ran:
        tape = Tape(symbols, lambda _tape: [chunk])
        found = run_backtest(MovingAverageSwing.from_params(params), tape, config, way=way)
        return Ran(found.seconds, len(found.trades))

    return trial


def beside(symbols: int, quick: bool) -> tuple[list[Row], str]:
    bars = made_bars(symbols, (_QUICK_BARS if quick else _BARS) // (4 if symbols > 1 else 1))
    events = sum(map(len, bars.values()))
    trials = {"ours": ours(bars, _RULE), "generic": ours(bars, _RULE, "generic")}
    trials |= {name: make(bars, _RULE) for name, make in peers().items()}
    trades = {name: trial().trades for name, trial in trials.items()}  # and warms them up
    cases = {name: _case(trial, events) for name, trial in trials.items()}
    found, _ = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    rows = [
        _row(symbols, found["ours"], found[name], name, trades)
        for name in trials
        if name not in ("ours", "generic")
    ]
    rows.append(_row(symbols, found["ours"], found["generic"], "the same in plain Python", trades))
    told = ", ".join(f"{name} {count}" for name, count in trades.items())
    return rows, f"trades of the rule on {symbols} x {events // symbols:,} bars: {told}"


def _case(trial: Callable[[], Ran], events: int) -> Case:
    def case() -> Sample:
        gc.collect()
        others = Others()
        ran = trial()
        return Sample(events / ran.seconds, others.disturb())

    return case


def _row(symbols: int, mine: Series, peer: Series, name: str, trades: dict[str, int]) -> Row:
    beside_peer = name in _MISSING
    return Row(
        name=f"one rule, {symbols} symbol{'s' * (symbols > 1)}",
        metric="median",
        unit="bars/s",
        better="higher",
        ours=mine.median,
        peer=peer.median,
        peer_name=name,
        goals=(Goal("ratio", ">=", 1),) if beside_peer else (),
        note=f"{trades['ours']} trades, {mine.low:,.0f} to {mine.high:,.0f}{mine.remark}",
    )
