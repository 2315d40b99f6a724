"""Market plane: ticks to bars and indicators, to a strategy in Python, and the memory of both."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import machine, peers_market
from benchmarks.machine import OtherLoad
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row
from qts.domain import Bar, Timeframe
from qts.router import TICK, MarketPlane

_START = 20_000 * 86_400.0  # 09:00 in Seoul
_SYMBOLS = [f"{number:06d}" for number in range(2_500)]
_FRAMES = ("1m", "5m", "15m")
_SECONDS = (60, 300, 900)
_FIVE = ("sma(20)", "ema(20)", "rsi(14)", "macd(12,26,9)", "bollinger(20,2)")
_MARKET_RATE = 10_000  # ticks a second of market time
_PEER_SYMBOLS = 50
_PEER_RATE = _MARKET_RATE * _PEER_SYMBOLS / len(_SYMBOLS)  # as many a symbol as ours
_KEPT = 500

Ticks = npt.NDArray[np.void]


class Effort(NamedTuple):
    rounds: int
    ticks: int
    peer_ticks: int
    paced_seconds: float


FULL = Effort(rounds=5, ticks=3_000_000, peer_ticks=50_000, paced_seconds=10.0)
QUICK = Effort(rounds=2, ticks=1_000_000, peer_ticks=5_000, paced_seconds=1.2)


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    effort = QUICK if quick else FULL
    progress("ticks to bars and indicators: ours and nautilus_trader in turn")
    speed_rows = throughput(effort)
    progress("five indicators at a close: ours and streams of TA-Lib in turn")
    indicator_rows = indicators(effort)
    progress(f"{_MARKET_RATE:,} ticks a second: from a tick that closes a bar to on_bar")
    latency_rows = latency(effort)
    progress("memory")
    memory_row = memory()
    notes = [
        f"ours: 2,500 symbols on one core; nautilus_trader: {_PEER_SYMBOLS} symbols, bars only, a"
        " test clock that advances with each tick",
        "TA-Lib: ten symbols, whose streams a loop in Python updates",
        "a peer that is not installed shows 0; `make bench PACKAGE=market` installs them",
    ]
    if quick:
        notes.append("a quick run closes one minute only: too few for the rows of 1m bars")
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    return Result(
        machine=described,
        rows=(*speed_rows, *indicator_rows, *latency_rows, memory_row),
        notes=tuple(notes),
        pictures=(
            Picture("market-throughput", bars("Ticks to bars, 2,500 symbols", speed_rows)),
            Picture("market-latency", bars("From a tick to on_bar", latency_rows)),
        ),
    )


# ---- throughput ----


def make_ticks(count: int, symbols: int = len(_SYMBOLS), rate: float = _MARKET_RATE) -> Ticks:
    """Return ticks of random symbols, `rate` a second of market time."""
    rng = np.random.default_rng(7)
    rows = np.zeros(count, TICK)
    rows["symbol"] = rng.integers(0, symbols, count)
    rows["price"] = 50_000 + 50 * rng.integers(-40, 40, count)
    rows["volume"] = rng.integers(1, 500, count)
    rows["at"] = _START + np.arange(count) / rate
    return rows


def plane_of(frames: tuple[str, ...], names: tuple[str, ...]) -> MarketPlane:
    plane = MarketPlane(layout="inline", bars_kept=_KEPT)
    plane.subscribe("s", _SYMBOLS, frames, names)
    return plane


def throughput(effort: Effort) -> list[Row]:
    rows = make_ticks(effort.ticks)
    cases: dict[str, Case] = {
        "bars": _trial(partial(_speed, rows, _FRAMES, ())),
        "five": _trial(partial(_speed, rows, _FRAMES, _FIVE)),
        "seconds": _trial(partial(_speed, rows, ("1s", "1m", "5m"), _FIVE)),
        "python": _trial(partial(_speed_python, rows)),
        "nautilus": _trial(partial(_nautilus_speed, effort.peer_ticks)),
    }
    found, _ = interleave(cases, effort.rounds)
    peer = found["nautilus"]
    frames = ", ".join(_FRAMES)
    return [
        _speed_row(f"bars of {frames}", found["bars"], peer, Goal("ratio", ">=", 1)),
        _speed_row("and five indicators", found["five"], peer, Goal("ours", ">=", 5)),
        _speed_row("1s, 1m, 5m and five indicators", found["seconds"], peer),
        _speed_row("1m bars to a Python on_bar", found["python"], peer, Goal("ours", ">=", 1)),
    ]


def _speed(rows: Ticks, frames: tuple[str, ...], names: tuple[str, ...]) -> float:
    """Push all ticks, drained every 100,000; return millions a second."""
    plane = plane_of(frames, names)
    began = time.perf_counter()
    for part in np.array_split(rows, max(1, len(rows) // 100_000)):
        plane.push_many(part)
        plane.drain("s")
    return len(rows) / (time.perf_counter() - began) / 1e6


def _speed_python(rows: Ticks) -> float:
    plane = plane_of(("1m",), _FIVE)
    seen = 0

    def on_bar(bar: Bar, values: tuple[float, ...]) -> None:
        nonlocal seen
        seen += bar.close > values[0]

    began = time.perf_counter()
    for part in np.array_split(rows, max(1, len(rows) // 10_000)):  # a second of the market
        if plane.push_many(part):
            for bar, values in plane.drain("s"):
                on_bar(bar, values)
    return len(rows) / (time.perf_counter() - began) / 1e6


def _nautilus_speed(count: int) -> float:
    if not peers_market.has_nautilus():
        return 0.0
    rows = make_ticks(count, _PEER_SYMBOLS, _PEER_RATE)
    peer = peers_market.Nautilus(_PEER_SYMBOLS, _SECONDS, _START, lambda _: None)
    return peer.speed(peer.ticks(rows))


def _speed_row(name: str, ours: Series, peer: Series, *goals: Goal) -> Row:
    return Row(
        name=name,
        metric="median",
        unit="M ticks/s",
        better="higher",
        ours=ours.median,
        peer=peer.median,
        peer_name="nautilus_trader, bars only",
        goals=goals if peer.median else tuple(goal for goal in goals if goal.of == "ours"),
        note=f"best {ours.high:.3g} and {peer.high:.3g}{ours.remark}",
    )


# ---- indicators ----


def indicators(effort: Effort) -> list[Row]:
    """Close a bar with each tick: a tick a second and symbol."""
    closes = make_ticks(max(100, effort.ticks // len(_SYMBOLS)))["price"]
    rows = np.zeros(len(closes) * len(_SYMBOLS), TICK)
    rows["symbol"] = np.tile(np.arange(len(_SYMBOLS)), len(closes))
    rows["price"] = np.repeat(closes, len(_SYMBOLS))
    rows["at"] = _START + np.repeat(np.arange(len(closes)), len(_SYMBOLS))
    peer_symbols = 10
    cases: dict[str, Case] = {
        "ours": _trial(partial(_speed, rows, ("1s",), _FIVE)),
        "talib": _trial(
            partial(peers_market.talib_speed, peer_symbols, closes[: effort.peer_ticks])
            if peers_market.has_talib()
            else lambda: 0.0
        ),
    }
    found, _ = interleave(cases, effort.rounds)
    ours, peer = found["ours"], found["talib"]
    return [
        Row(
            name="a bar and five indicators a tick",
            metric="median",
            unit="M closes/s",
            better="higher",
            ours=ours.median,
            peer=peer.median,
            peer_name="TA-Lib streams, no bars",
            goals=(Goal("ratio", ">=", 1),) if peer.median else (),
            note=f"best {ours.high:.3g} and {peer.high:.3g}{ours.remark}",
        )
    ]


# ---- latency ----


def latency(effort: Effort) -> list[Row]:
    ours = _paced_ours(effort.paced_seconds)
    peer = _paced_nautilus(effort.paced_seconds) if peers_market.has_nautilus() else np.zeros(1)
    rows = []
    for percent, bound in ((50, 0.5), (99, 5.0)):
        rows.append(
            Row(
                name=f"tick that closes a bar to on_bar, p{percent}",
                metric="1s bars",
                unit="ms",
                better="lower",
                ours=float(np.percentile(ours, percent)),
                peer=float(np.percentile(peer, percent)),
                peer_name=f"nautilus_trader, bars only, {_PEER_RATE:g} ticks/s",
                goals=(Goal("ours", "<", bound),),
                note=f"{_MARKET_RATE:,} ticks/s, {len(ours):,} bars, from a tick's intended time",
            )
        )
    return rows


def _paced_ours(seconds: float) -> npt.NDArray[np.float64]:
    """Push live ticks at a fixed rate; return the milliseconds until on_bar for closed bars."""
    plane = plane_of(("1s",), _FIVE)
    symbols, took = _SYMBOLS, []
    intended = 0.0

    def on_bar(_bar: Bar, _values: tuple[float, ...]) -> None:
        took.append(time.perf_counter() - intended)

    def push(symbol: int, price: float, volume: float, at: float, due: float) -> None:
        nonlocal intended
        intended = due
        if plane.push(symbols[symbol], price, volume, at):
            for bar, values in plane.drain("s"):
                on_bar(bar, values)

    _paced(make_ticks(int(_MARKET_RATE * seconds)).tolist(), push)
    return np.array(took) * 1e3


def _paced_nautilus(seconds: float) -> npt.NDArray[np.float64]:
    took: list[float] = []
    intended = 0.0

    def on_bar(_bar: object) -> None:
        took.append(time.perf_counter() - intended)

    rows = make_ticks(int(_PEER_RATE * seconds), _PEER_SYMBOLS, _PEER_RATE)
    peer = peers_market.Nautilus(_PEER_SYMBOLS, (1,), _START, on_bar)
    ticks = peer.ticks(rows)

    def push(number: int, tick: Any, _at: float, due: float) -> None:
        nonlocal intended
        intended = due
        peer.push(number, tick)

    _paced([(*pair, at) for pair, at in zip(ticks, rows["at"].tolist(), strict=True)], push)
    return np.array(took or [0.0]) * 1e3


def _paced(rows: list[tuple[Any, ...]], push: Callable[..., None]) -> None:
    """Call with each row and its intended time, as its last item says."""
    began = time.perf_counter()
    for row in rows:
        due = began + row[-1] - _START
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left if left > 0.002 else 0)
        push(*row, due)


# ---- memory ----


def memory() -> Row:
    """Fill every series of 2,500 symbols and three timeframes with 500 bars."""
    plane = plane_of(_FRAMES, ())
    rng = np.random.default_rng(3)
    for frame in map(Timeframe, _FRAMES):
        history = _history(rng, frame)
        for symbol in _SYMBOLS:
            plane.push_bars(bar._replace(symbol=symbol) for bar in history)
    kept = plane.counts.bytes / 1e6
    return Row(
        name="2,500 symbols, 3 timeframes, 500 bars each",
        metric="memory",
        unit="MB",
        better="lower",
        ours=kept,
        peer=_memory_of_objects(),
        peer_name="deques of Bar tuples",
        goals=(Goal("ours", "<", 100),),
        note=f"{kept * 1e6 / (len(_SYMBOLS) * len(_FRAMES) * _KEPT):.1f} bytes a bar",
    )


def _history(rng: np.random.Generator, frame: Timeframe) -> list[Bar]:
    """Return random bars in steps of 50 won, with volumes up to 100,000."""
    closes = 50_000 + 50.0 * np.cumsum(rng.integers(-8, 9, _KEPT))
    made, before = [], 50_000.0
    for number, close in enumerate(closes.tolist()):
        above, below = 50.0 * rng.integers(0, 5, 2)
        volume = float(rng.integers(0, 100_000))
        high, low = max(before, close) + above, min(before, close) - below
        value = volume * round((high + low) / 2)
        at = _START + (number + 1) * frame.seconds
        made.append(Bar("", frame, at, before, high, low, close, volume, value))
        before = close
    return made


def _memory_of_objects() -> float:
    """Return the MB of the same bars as tuples, from a part of them."""
    gc.collect()
    tracemalloc.start()
    part = [
        deque(
            (
                Bar("000001", Timeframe.M1, _START + n, n + 0.5, n + 1.5, n + 2.5, n + 3.5, n + 4.5)
                for n in range(_KEPT)
            ),
            maxlen=_KEPT,
        )
        for _ in range(20)
    ]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(part) * len(_SYMBOLS) * len(_FRAMES) / 1e6


def _trial(measure: Callable[[], float]) -> Case:
    def case() -> Sample:
        gc.collect()
        others = OtherLoad()
        return Sample(measure(), others.is_disturbing())

    return case
