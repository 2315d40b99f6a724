"""The ETEDA pipeline: cycles at an interval, one at a time per strategy, unless suspended.

RUNNING ──suspend(60 s)──▶ SUSPENDED ──time is up, or resume──▶ RUNNING
   └──────suspend()──────▶ SUSPENDED ──resume by the operator─▶ RUNNING
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from qts import telemetry
from qts.domain import Clock, QtsError
from qts.events import Payload
from qts.events import payloads as p
from qts.pipeline.act import OrderSubmitter, act
from qts.pipeline.config import PipelineConfig
from qts.pipeline.cycle import Cycle, StepFailedError
from qts.pipeline.decide import DecisionPolicy, decide
from qts.pipeline.decision_journal import DecideEntry, Entry, ExtractEntry
from qts.pipeline.evaluate import evaluate
from qts.pipeline.extract import extract
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.transform import transform
from qts.risk import RiskLimits
from qts.strategies import Signal

log = telemetry.logger("pipeline")
_CYCLES = telemetry.counter("qts_cycles_total", "cycles by how they ended", ("strategy", "end"))
_OVERRUNS = telemetry.counter(
    "qts_cycle_overruns_total", "cycles that took too long", ("strategy",)
)

RECENT_CYCLES = 500
ANOMALY = 3  # times the interval


class PipelineSuspension(msgspec.Struct, frozen=True):
    reason: str
    source: str
    until_ns: int | None  # None: until the operator resumes


class PipelineHooks(NamedTuple):
    """What a pipeline asks and where it reports: policy, events, codes, the journal if any."""

    policy: Callable[[], DecisionPolicy]
    emit: Callable[[str, Payload], object]
    trip: Callable[[str, str], Awaitable[object]]
    record: Callable[[Entry], None] | None


class EtedaPipeline:
    """Runs the five steps for every strategy."""

    def __init__(
        self,
        config: PipelineConfig,
        portfolio: Portfolio,
        submitter: OrderSubmitter,
        limits: RiskLimits,
        hooks: PipelineHooks,
        clock: Clock,
    ) -> None:
        self._config = config
        self._portfolio = portfolio
        self._submitter = submitter
        self._limits = limits
        self._policy, self._emit, self._trip, self._record = hooks
        self._clock = clock
        self._number = 0
        self._suspension: PipelineSuspension | None = None
        self._busy: set[tuple[str, str]] = set()  # (strategy, symbol) with an order in flight
        self._tasks: set[asyncio.Task[Cycle]] = set()
        self.cycles: deque[Cycle] = deque(maxlen=RECENT_CYCLES)

    # --- suspension -----------------------------------------------------------------------------

    @property
    def suspension(self) -> PipelineSuspension | None:
        held = self._suspension
        if held and held.until_ns is not None and self._clock.monotonic_ns() >= held.until_ns:
            self._suspension = None
            log.info("pipeline resumed; suspension expired", reason=held.reason)
        return self._suspension

    def suspend(self, reason: str, source: str, seconds: float | None = None) -> None:
        """Stop cycles for `seconds`, or, without a limit, until the operator resumes.

        A suspension without a limit is never shortened.
        """
        held = self.suspension
        if held and held.until_ns is None:
            return
        until = None if seconds is None else self._clock.monotonic_ns() + round(seconds * 1e9)
        if held and until is not None and held.until_ns is not None:
            until = max(until, held.until_ns)
        self._suspension = PipelineSuspension(reason, source, until)
        log.warning("pipeline suspended", reason=reason, source=source, duration_s=seconds)

    def resume(self, actor: str) -> None:
        self._suspension = None
        log.warning("pipeline resumed", actor=actor)

    # --- cycles ---------------------------------------------------------------------------------

    async def run(self, runner: StrategyRunner) -> None:
        """Run cycles of one strategy until cancelled, never two at once."""
        interval_s = self._config.interval_ms / 1000
        due_ns = self._clock.monotonic_ns()
        while True:
            began_ns = self._clock.monotonic_ns()
            if self.suspension is None:
                await self._tracked(self.cycle(runner))
            took_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            if took_s > interval_s:
                await self._overran(runner.key, took_s, interval_s)
            due_ns = max(due_ns + round(interval_s * 1e9), self._clock.monotonic_ns())
            await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)

    async def cycle(self, runner: StrategyRunner) -> Cycle:
        """Run one cycle, up to the step that fails."""
        self._emit("ETEDA_CYCLE_START", p.CycleStart(cycle=self._number, strategy_type=runner.key))
        return await self._steps(runner.key, runner.evaluate)

    def on_signals(self, runner: StrategyRunner, signals: list[Signal]) -> None:
        """Run the steps at once for signals that a tick produced."""
        fresh = _one_each([s for s in signals if (runner.key, _symbol(s)) not in self._busy])
        if not fresh or self.suspension is not None:
            return
        names = {(runner.key, _symbol(signal)) for signal in fresh}

        async def evaluate_signals() -> list[Signal]:
            return fresh

        def finish(_task: asyncio.Task[Cycle]) -> None:
            self._busy -= names

        task = self._tracked(self._steps(runner.key, evaluate_signals))
        task.add_done_callback(finish)  # runs for a task cancelled before its start, too
        self._busy |= names

    async def close(self) -> None:
        """Wait for cycles in flight, as long as they wait for fills; then none is left to act."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=self._config.fill_timeout_s)
            for task in left:
                task.cancel()
            if left:
                log.warning("cycles ended by the stop", count=len(left))
                await asyncio.wait(left)

    def _tracked(self, cycle: Coroutine[Any, Any, Cycle]) -> asyncio.Task[Cycle]:
        """Start a cycle that `close` waits for."""
        task = asyncio.create_task(cycle)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _steps(self, key: str, signals: Callable[[], Awaitable[list[Signal]]]) -> Cycle:
        self._number += 1
        number, began_ns = self._number, self._clock.monotonic_ns()
        cycle = Cycle(number=number, strategy_key=key, started_at=self._clock.now())
        try:
            cycle = await self._decided(cycle, signals)
            cycle = await act(cycle, self._submitter, self._config.fill_timeout_s)
        except StepFailedError as error:
            cycle = replace(cycle, code=error.code, error=str(error))
            log.error("cycle failed", strategy=key, code=error.code, error=str(error))
            await self._trip(error.code, str(error))
        except QtsError as error:
            cycle = replace(cycle, code="FS040", error=str(error))
            log.error("cycle could not act", strategy=key, error=str(error))
        except Exception as error:
            cycle = replace(cycle, code="FS030", error=repr(error))
            log.error("cycle raised", strategy=key, exc_info=True)
            await self._trip("FS030", repr(error))
        cycle = replace(cycle, took_ms=(self._clock.monotonic_ns() - began_ns) / 1e6)
        _CYCLES.labels(key, cycle.code or "ok").inc()
        self.cycles.append(replace(cycle, raw=None))
        return cycle

    async def _decided(
        self, cycle: Cycle, read_signals: Callable[[], Awaitable[list[Signal]]]
    ) -> Cycle:
        """Run Extract to Decide and journal their inputs and results."""
        number, key = cycle.number, cycle.strategy_key
        signals: list[Signal] = []
        policy, view = DecisionPolicy(), self._portfolio.view()
        if self._record is not None:
            self._record(ExtractEntry(number, key, cycle.started_at, view.version, view.now))

        def record_decision(code: str = "") -> None:
            if self._record is not None:
                version, decided = self._portfolio.version, cycle.decisions
                self._record(DecideEntry(number, version, tuple(signals), policy, decided, code))

        try:
            cycle = extract(cycle, view)
            self._emit("EXTRACT_COMPLETE", p.StepComplete(cycle=number))
            cycle = transform(cycle)
            self._emit("TRANSFORM_COMPLETE", p.StepComplete(cycle=number))
            signals, policy = await read_signals(), self._policy()
            cycle = evaluate(cycle, signals, self._limits, self._portfolio.owners)
            self._emit_signals(cycle)
            cycle = decide(cycle, policy)
        except StepFailedError as error:
            record_decision(error.code)
            raise
        except Exception:
            record_decision("FS030")
            raise
        record_decision()
        self._emit_decisions(cycle)
        return cycle

    def _emit_signals(self, cycle: Cycle) -> None:
        for each in cycle.evaluations:
            self._emit(
                "STRATEGY_SIGNAL",
                p.SignalPayload(
                    symbol=each.signal.symbol,
                    side=each.signal.side,
                    strategy_type=cycle.strategy_key,
                    strength=each.signal.confidence,
                    price=float(each.price or 0),
                ),
            )

    def _emit_decisions(self, cycle: Cycle) -> None:
        for each in cycle.decisions:
            if each.proposal is not None:
                self._emit(
                    "ORDER_DECISION",
                    p.OrderDecision(
                        symbol=each.proposal.symbol,
                        side=each.proposal.side,
                        qty=float(each.proposal.quantity),
                        price=float(each.proposal.price or 0),
                        strategy_type=cycle.strategy_key,
                    ),
                )

    async def _overran(self, key: str, took_s: float, interval_s: float) -> None:
        _OVERRUNS.labels(key).inc()
        log.warning("cycle exceeded its interval", strategy=key, duration_s=round(took_s, 3))
        allowed = interval_s * ANOMALY + self._config.fill_timeout_s
        if took_s > allowed:
            await self._trip("AN040", f"a cycle of {key} took {took_s:.1f} s")


def _one_each(signals: list[Signal]) -> list[Signal]:
    """Return the latest signal per symbol and side; an exit displaces entries of its symbol.

    Two entries of opposite sides stay: both are refused (GR030).
    """
    exiting = {_symbol(each) for each in signals if _is_exit(each)}
    kept = [each for each in signals if _is_exit(each) or _symbol(each) not in exiting]
    return list({(_symbol(each), getattr(each, "side", None)): each for each in kept}.values())


def _symbol(signal: Signal) -> str:
    """Return its symbol; a later step refuses what is not a signal."""
    return getattr(signal, "symbol", "")


def _is_exit(signal: Signal) -> bool:
    return getattr(getattr(signal, "intent_type", None), "is_exit", False)
