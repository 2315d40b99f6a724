"""Cycles at an interval, one at a time for each strategy, until suspended.

RUNNING ──suspend(60 s)──▶ SUSPENDED ──time is up, or resume──▶ RUNNING
   └──────suspend()──────▶ SUSPENDED ──resume, by a person────▶ RUNNING
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

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

KEPT = 500  # cycles remembered here
ANOMALY = 3  # times the interval


class PipelineSuspension(msgspec.Struct, frozen=True):
    reason: str
    source: str
    until_ns: int | None  # None: until a person resumes


class EtedaPipeline:
    """The five steps for every strategy. `emit` publishes an event, `trip` raises a code."""

    def __init__(
        self,
        config: PipelineConfig,
        world: Portfolio,
        trader: OrderSubmitter,
        limits: RiskLimits,
        leave: Callable[[], DecisionPolicy],
        clock: Clock,
    ) -> None:
        self._config = config
        self._world = world
        self._trader = trader
        self._limits = limits
        self._leave = leave
        self._clock = clock
        self._number = 0
        self._suspension: PipelineSuspension | None = None
        self._busy: set[tuple[str, str]] = set()  # (strategy, symbol) whose order is under way
        self._tasks: set[asyncio.Task[Cycle]] = set()
        self.cycles: deque[Cycle] = deque(maxlen=KEPT)
        self.emit: Callable[[str, Payload], object] = lambda _name, _payload: None
        self.trip: Callable[[str, str], Awaitable[object]] | None = None
        self.on_cycle: Callable[[Cycle], None] = lambda _cycle: None
        self.note: Callable[[Entry], None] = lambda _entry: None

    # --- suspension -----------------------------------------------------------------------------

    @property
    def suspension(self) -> PipelineSuspension | None:
        held = self._suspension
        if held and held.until_ns is not None and self._clock.monotonic_ns() >= held.until_ns:
            self._suspension = None
            log.info("the pipeline goes on by itself", reason=held.reason)
        return self._suspension

    def suspend(self, reason: str, source: str, seconds: float | None = None) -> None:
        """No cycle acts until the time is up, or, without one, until a person resumes.

        A suspension without end is not shortened by one that has an end.
        """
        held = self.suspension
        if held and held.until_ns is None:
            return
        until = None if seconds is None else self._clock.monotonic_ns() + round(seconds * 1e9)
        if held and until is not None and held.until_ns is not None:
            until = max(until, held.until_ns)
        self._suspension = PipelineSuspension(reason, source, until)
        log.warning("the pipeline is suspended", reason=reason, source=source, seconds=seconds)

    def resume(self, actor: str) -> None:
        self._suspension = None
        log.warning("the pipeline was resumed", by=actor)

    # --- cycles ---------------------------------------------------------------------------------

    async def run(self, runner: StrategyRunner) -> None:
        """Cycles of one strategy for as long as it is asked to; never two at once."""
        interval_s = self._config.interval_ms / 1000
        due_ns = self._clock.monotonic_ns()
        while True:
            began_ns = self._clock.monotonic_ns()
            if self.suspension is None:
                await self.cycle(runner)
            took_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            if took_s > interval_s:
                await self._overran(runner.key, took_s, interval_s)
            due_ns = max(due_ns + round(interval_s * 1e9), self._clock.monotonic_ns())
            await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)

    async def cycle(self, runner: StrategyRunner) -> Cycle:
        """One cycle, whole or up to the step that failed; it is kept either way."""
        self.emit("ETEDA_CYCLE_START", p.CycleStart(cycle=self._number, strategy_type=runner.key))
        return await self._steps(runner.key, runner.evaluate)

    def on_signals(self, runner: StrategyRunner, signals: list[Signal]) -> None:
        """Signals of a tick: the same steps, at once, without waiting for the next cycle."""
        fresh = _one_each([s for s in signals if (runner.key, _symbol(s)) not in self._busy])
        if not fresh or self.suspension is not None:
            return
        names = {(runner.key, _symbol(signal)) for signal in fresh}

        async def wanted() -> list[Signal]:
            return fresh

        def over(task: asyncio.Task[Cycle]) -> None:
            self._tasks.discard(task)
            self._busy -= names

        task = asyncio.create_task(self._steps(runner.key, wanted))
        task.add_done_callback(over)  # also of one that is cancelled before it begins
        self._tasks.add(task)
        self._busy |= names

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._config.fill_timeout_s)

    async def _steps(self, key: str, wanted: Callable[[], Awaitable[list[Signal]]]) -> Cycle:
        self._number += 1
        number, began_ns = self._number, self._clock.monotonic_ns()
        cycle = Cycle(number=number, strategy_key=key, started_at=self._clock.now())
        try:
            cycle = await self._decided(cycle, wanted)
            cycle = await act(cycle, self._trader, self._config.fill_timeout_s)
        except StepFailedError as error:
            cycle = replace(cycle, code=error.code, error=str(error))
            log.error("a cycle failed", strategy=key, code=error.code, error=str(error))
            await self._raise(error.code, str(error))
        except QtsError as error:
            cycle = replace(cycle, code="FS040", error=str(error))
            log.error("a cycle could not act", strategy=key, error=str(error))
        except Exception as error:
            cycle = replace(cycle, code="FS030", error=repr(error))
            log.error("a cycle broke", strategy=key, exc_info=True)
            await self._raise("FS030", repr(error))
        cycle = replace(cycle, took_ms=(self._clock.monotonic_ns() - began_ns) / 1e6)
        _CYCLES.labels(key, cycle.code or "ok").inc()
        self.cycles.append(replace(cycle, raw=None))
        self.on_cycle(cycle)
        return cycle

    async def _decided(self, cycle: Cycle, wanted: Callable[[], Awaitable[list[Signal]]]) -> Cycle:
        """All steps but the last; what they were handed and made of it goes into the journal."""
        number, key = cycle.number, cycle.strategy_key
        signals: list[Signal] = []
        leave, view = DecisionPolicy(), self._world.view()
        self.note(ExtractEntry(number, key, cycle.started_at, view.version, view.now))

        def decided(code: str = "") -> None:
            version = self._world.version
            self.note(DecideEntry(number, version, tuple(signals), leave, cycle.decisions, code))

        try:
            cycle = extract(cycle, view)
            self.emit("EXTRACT_COMPLETE", p.StepComplete(cycle=number))
            cycle = transform(cycle)
            self.emit("TRANSFORM_COMPLETE", p.StepComplete(cycle=number))
            signals, leave = await wanted(), self._leave()
            cycle = evaluate(cycle, signals, self._limits, self._world.owners)
            self._tell_signals(cycle)
            cycle = decide(cycle, leave)
        except StepFailedError as error:
            decided(error.code)
            raise
        except Exception:
            decided("FS030")
            raise
        decided()
        self._tell_decisions(cycle)
        return cycle

    def _tell_signals(self, cycle: Cycle) -> None:
        for each in cycle.evaluations:
            self.emit(
                "STRATEGY_SIGNAL",
                p.SignalPayload(
                    symbol=each.signal.symbol,
                    side=each.signal.side,
                    strategy_type=cycle.strategy_key,
                    strength=each.signal.confidence,
                    price=float(each.price or 0),
                ),
            )

    def _tell_decisions(self, cycle: Cycle) -> None:
        for each in cycle.decisions:
            if each.proposal is not None:
                self.emit(
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
        log.warning("a cycle took longer than its interval", strategy=key, seconds=round(took_s, 3))
        allowed = interval_s * ANOMALY + self._config.fill_timeout_s
        if took_s > allowed:
            await self._raise("AN040", f"a cycle of {key} took {took_s:.1f} s")

    async def _raise(self, code: str, text: str) -> None:
        if self.trip is not None:
            await self.trip(code, text)


def _one_each(signals: list[Signal]) -> list[Signal]:
    """Of what was heard together the latest of a symbol and side; beside an exit, no entry.

    Two entries of opposite sides stay: they are refused together (GR030).
    """
    leaving = {_symbol(each) for each in signals if _is_exit(each)}
    kept = [each for each in signals if _is_exit(each) or _symbol(each) not in leaving]
    return list({(_symbol(each), getattr(each, "side", None)): each for each in kept}.values())


def _symbol(signal: Signal) -> str:
    """A strategy may have given something else: a later step tells."""
    return getattr(signal, "symbol", "")


def _is_exit(signal: Signal) -> bool:
    return getattr(getattr(signal, "intent_type", None), "is_exit", False)
