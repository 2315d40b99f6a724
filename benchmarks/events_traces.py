"""Cost of the tracing code where no collector is set, as by default: of a tick, and of an order.

Ours is the code as shipped. The other one is made of the same two modules, with each of the
statements in `REMOVED` taken out of their source: it cannot lag behind, as each has to occur
exactly once. Both are timed on one thread, from the call that the feed makes, as one, other, other,
one: neither comes first. CPU time counts, so that other work of the machine does not; handing over
to the threads of the lanes, which traces have no part in, would only make the share smaller.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from operator import truediv
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

from benchmarks.machine import OtherLoad
from benchmarks.measure import Sample, Series, interleave
from benchmarks.report import Goal, Row
from qts import telemetry
from qts.domain import Instruments, OperationError, Side, SystemClock, Tick
from qts.events import EventEngine, EventsConfig, LaneConfig
from qts.pipeline import Portfolio, RunnerHooks
from qts.strategies import NoParams, Signal, Strategy, View

MOST = 1.01  # times what the path takes without the tracing code
MOST_ORDER_US = 10.0  # 1 % of a millisecond; the fastest path of an order measured takes longer
_SYMBOLS = 500
_TICKS, _QUICK_TICKS = 2_000, 200  # of a trial: about ten milliseconds
_ROUNDS, _QUICK_ROUNDS = 150, 3
_ORDERS = 1_000

# The tracing code on the path of a tick: source and what is left of it, by module.
REMOVED: dict[str, dict[str, str]] = {
    "qts.pipeline.tick_publisher": {
        "self._trace_every = trace_every if telemetry.tracing() else 0": "pass",
        "self._publish_sampled if self._trace_every else self": "self",
    },
    "qts.pipeline.runner": {
        "self._is_traced = telemetry.tracing()": "pass",
        "began_ns = time_ns() if self._is_traced else 0": "pass",
        """
            if began_ns:
                trace_call(self.key, result.instructions, began_ns, item)
                began_ns = time_ns()
""": "\n",
    },
}


class Parts(NamedTuple):
    """Modules that the path of a tick is built of."""

    publisher: Any
    runner: Any


def shipped() -> Parts:
    return Parts(*map(importlib.import_module, REMOVED))


def without_tracing() -> Parts:
    """Return copies of the modules, of their source without the tracing statements."""
    return Parts(*(_stripped(name, removed) for name, removed in REMOVED.items()))


def _stripped(name: str, removed: dict[str, str]) -> ModuleType:
    original = importlib.import_module(name)
    source = inspect.getsource(original)
    for statement, rest in removed.items():
        if source.count(statement) != 1:
            raise OperationError(f"{name} has no single {statement.strip()!r}; update REMOVED")
        source = source.replace(statement, rest)
    copy = ModuleType(name)
    copy.__file__ = original.__file__
    exec(compile(source, f"{name} without tracing", "exec"), copy.__dict__)  # noqa: S102 - ours
    return copy


class Taker(Strategy[NoParams], key="taker"):
    """Counts its calls and returns nothing."""

    calls = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002 - as it is called
        self.calls += 1
        return ()


class TickPath:
    """What a run does with a tick: portfolio, event, its lane and, with `calls`, the strategy.

    No worker of the engine runs: the runner is called where a lane would wake it.
    """

    def __init__(self, parts: Parts, ticks: int, *, calls: bool, trace_every: int = 1000) -> None:
        lane = LaneConfig(queue_size=ticks + 1, overflow="drop_oldest", batch_window_ms=10)
        engine = EventEngine(EventsConfig(p1=lane))
        engine.on("PRICE_TICK", lambda _event: None)
        clock = SystemClock()
        portfolio = Portfolio(clock, Instruments())
        loop = cast(asyncio.AbstractEventLoop, None)  # nothing is delivered
        hooks = RunnerHooks(portfolio.view, self._wake, lambda *_: None, loop, None)
        self.runner = parts.runner.StrategyRunner(Taker(NoParams()), hooks)
        after = self.runner.tick if calls else _nothing
        publisher = parts.publisher.TickPublisher
        self.publisher = publisher(engine, portfolio, None, after, None, trace_every)
        self.on_tick: Callable[[Tick], None] = self.publisher.callbacks.on_tick

    def _wake(self, _key: str) -> None:
        self.runner.run_pending()


def _nothing(_tick: Tick) -> None:
    pass


class Pairs(NamedTuple):
    """CPU time of a tick on two paths, in ns, of each round."""

    ours: list[float]
    other: list[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds: within one, the machine was the same for both."""
        found: float = statistics.median(map(truediv, self.ours, self.other))
        return found


def measure(quick: bool) -> tuple[list[Row], list[str]]:
    """Return a row for each path, and the resolution of the measurement."""
    ticks, rounds = (_QUICK_TICKS, _QUICK_ROUNDS) if quick else (_TICKS, _ROUNDS)
    ours, plain, same = shipped(), without_tracing(), without_tracing()
    cases = {
        (name, one is ours): (Pairs([], []), one, partial(_trial, ticks=ticks, calls=calls))
        for name, calls in (("tick published", False), ("tick to on_tick", True))
        for one in (ours, same)
    }
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for (mine, others), one, trial in cases.values():
                first, second, third, fourth = map(trial, (one, plain, plain, one))
                mine.append((first + fourth) / 2)
                others.append((second + third) / 2)
        orders, _ = interleave({"spans": _spans_trial, "empty": _empty_trial}, rounds)
    finally:
        gc.enable()
    rows = [_row(name, pairs) for (name, is_ours), (pairs, *_) in cases.items() if is_ours]
    rows.append(_order_row(orders["spans"], orders["empty"]))
    bias = [f"{pairs.ratio - 1:+.2%}" for (_, mine), (pairs, *_) in cases.items() if not mine]
    return rows, [f"two copies without the tracing code differ by {' and '.join(bias)}"]


def _row(name: str, pairs: Pairs) -> Row:
    peer = statistics.median(pairs.other)
    return Row(
        name=f"{name}, traces off",
        metric="CPU time of a tick",
        unit="ns",
        better="lower",
        ours=peer * pairs.ratio,
        peer=peer,
        peer_name="without the tracing code",
        goals=(Goal("ratio", "<", MOST),),
        note=f"{pairs.ratio - 1:+.2%}, the median of {len(pairs.ours)} pairs",
    )


def _trial(parts: Parts, ticks: int, calls: bool) -> float:
    """Return the ns of a tick."""
    path = TickPath(parts, ticks, calls=calls)
    given = [Tick(f"{n % _SYMBOLS:06}", 70_000.0 + n, 1.0, at=float(n)) for n in range(ticks)]
    on_tick, began = path.on_tick, time.thread_time_ns()
    for tick in given:
        on_tick(tick)
    took = time.thread_time_ns() - began
    if path.publisher.count != ticks:
        raise OperationError(f"of {ticks:,} ticks {path.publisher.count:,} were published")
    return took / ticks


# ---- an order ----


def _order_row(ours: Series, peer: Series) -> Row:
    return Row(
        name="spans of an order, traces off",
        metric="cost of the calls",
        unit="us",
        better="lower",
        ours=ours.median,
        peer=peer.median,
        peer_name="empty `with` blocks",
        goals=(Goal("ours", "<", MOST_ORDER_US),),
        note=f"gate, commit and request{ours.remark}",
    )


def _spans_trial() -> Sample:
    """Return the us that the spans of an order take, as the pipeline and the orders open them."""
    act, manager = map(importlib.import_module, ("qts.pipeline.act", "qts.orders.manager"))
    named = {"signal_id": "signal", "strategy_key": "taker", "symbol": "005930", "side": Side.BUY}
    proposal, draft = SimpleNamespace(**named), SimpleNamespace(intent_id="intent")
    others, began = OtherLoad(), time.thread_time_ns()
    for _ in range(_ORDERS):
        with act._gate_span(proposal), manager._commit_span(draft) as commit:
            commit.set(code="")
        with telemetry.span("request", follows="intent", attempt_id="attempt") as sent:
            sent.remember("intent")
            sent.set(broker_order_id="1")
    return Sample((time.thread_time_ns() - began) / _ORDERS / 1000, others.is_disturbing())


def _empty_trial() -> Sample:
    others, began = OtherLoad(), time.thread_time_ns()
    for _ in range(_ORDERS):
        with nullcontext(), nullcontext():
            pass
        with nullcontext():
            pass
    return Sample((time.thread_time_ns() - began) / _ORDERS / 1000, others.is_disturbing())
