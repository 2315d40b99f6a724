"""The ETEDA pipeline of an account: the five steps for its signals, unless it is suspended.

RUNNING ──suspend──▶ SUSPENDED ──release of the lockdown by the operator──▶ RUNNING
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from qts import telemetry
from qts.domain import Clock, QtsError
from qts.events import Payload
from qts.pipeline.act import OrderSubmitter, act
from qts.pipeline.cycle import Cycle, CycleReporter, StepFailedError
from qts.pipeline.decision_journal import DecideEntry, Entry, ExtractEntry
from qts.pipeline.order_changer import CancelOrder, OrderChanger
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.steps import (
    DecisionPolicy,
    OrderSlot,
    decide,
    evaluate,
    extract,
    one_of_each,
    slots_of,
    symbol_of,
    transform,
)
from qts.pipeline.stop_orders import StopOrders
from qts.pipeline.strategy_config import PipelineConfig
from qts.risk import CODES, GUARDRAILS, OrderProposal, RiskLimits
from qts.strategies import Cancel, Replace, Signal

log = telemetry.logger("pipeline")
_CYCLES = telemetry.counter("qts_cycles_total", "cycles by how they ended", ("strategy", "end"))
_OVERRUNS = telemetry.counter(
    "qts_cycle_overruns_total", "cycles that took too long", ("strategy",)
)

RECENT_CYCLES = 500
ANOMALY = 3  # times the interval
FAR_TOO_LONG = 10
_OF_THE_ACCOUNT = frozenset(("GR001", "GR020", "GR061", "GR062"))  # not of one symbol

GUARDRAIL_INTERVAL_S = 600.0  # between two of a code for a symbol, or for the account

Settled = Callable[[Signal], object]


def _ignore(_signal: Signal) -> None:
    """Take a signal that nobody waits for."""


def _settle(signals: Iterable[Signal], settled: Settled) -> None:
    for each in signals:
        settled(each)


class PipelineSuspension(msgspec.Struct, frozen=True):
    reason: str
    source: str


class PipelineHooks(NamedTuple):
    """What a pipeline asks and where it reports: policy, events, codes, the journal if any."""

    policy: Callable[[], DecisionPolicy]
    emit: Callable[[str, Payload], object]
    trip: Callable[[str, str], object]
    record: Callable[[Entry], None] | None
    precheck: Callable[[Cycle], Awaitable[Cycle]]  # takes out what the cache refuses
    is_ready: Callable[[], bool]  # positions and cash are known
    next_number: Callable[[], int]  # of a cycle, unique in the run
    cancel: CancelOrder
    stop_orders: StopOrders


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
        self._policy, self._trip = hooks.policy, hooks.trip
        self._reporter = CycleReporter(hooks.emit)
        self._record, self._precheck = hooks.record, hooks.precheck
        self._is_ready, self._next_number = hooks.is_ready, hooks.next_number
        self._clock = clock
        self._suspension: PipelineSuspension | None = None
        self._busy: set[OrderSlot] = set()  # with an order in flight
        self._waiting: dict[OrderSlot, list[tuple[Signal, Settled]]] = {}  # for an order in flight
        self._stop_orders = stop_orders = hooks.stop_orders
        cancel = stop_orders.cancelling(hooks.cancel)
        self._changer = OrderChanger(cancel, portfolio, self.on_signals, clock)
        self._tasks: set[asyncio.Task[Cycle]] = set()
        self._throttle = telemetry.LogThrottle(clock.monotonic_ns)
        self.cycles: deque[Cycle] = deque(maxlen=RECENT_CYCLES)

    # --- suspension -----------------------------------------------------------------------------

    @property
    def suspension(self) -> PipelineSuspension | None:
        return self._suspension

    @property
    def may_start(self) -> bool:
        """Return whether a cycle may start: not suspended, and positions and cash are known."""
        return self._suspension is None and self._is_ready()

    def suspend(self, reason: str, source: str) -> None:
        """Start no cycle until the operator resumes."""
        if self._suspension is None:
            self._suspension = PipelineSuspension(reason, source)
            log.warning("pipeline suspended", reason=reason, source=source)
            self._trip("FS103", f"{reason} ({source})")

    def stop(self) -> None:
        """Start no further cycle: the run ends."""
        self._suspension = PipelineSuspension("stopping", "app")

    def resume(self, actor: str) -> None:
        self._suspension = None
        log.warning("pipeline resumed", actor=actor)

    # --- cycles ---------------------------------------------------------------------------------

    def start(
        self, key: str, signals: Callable[[], Awaitable[list[Signal]]]
    ) -> asyncio.Task[Cycle]:
        """Start a cycle of a strategy, which ends at the step that fails; `close` waits for it."""
        return self._tracked(self._timed(key, signals))

    async def _timed(self, key: str, signals: Callable[[], Awaitable[list[Signal]]]) -> Cycle:
        began_ns, interval_s = self._clock.monotonic_ns(), self._config.interval_ms / 1000
        cycle = await self._steps(key, signals)
        took_s = (self._clock.monotonic_ns() - began_ns) / 1e9
        if took_s > interval_s:
            self._overran(key, took_s, interval_s)
        return cycle

    def on_signals(
        self,
        runner: StrategyRunner,
        signals: list[Signal],
        *,
        after_order: bool = False,
        settled: Settled = _ignore,
    ) -> None:
        """Run the steps at once for signals of a tick, a fill or an order.

        A signal of a symbol whose order is in flight is dropped, since the next tick may give
        another. One that answers a fill or an order is given once: it waits for that order. A
        limit order is in flight on its side alone, and until it has ended or the fill timeout.

        `settled` is called with each signal once it is dropped, refused or acted on.
        """
        if not self.may_start:
            self._stop_orders.wait_again(runner.key, signals)
            _settle(signals, settled)
            return
        fresh = self._free(runner.key, signals, after_order, settled)
        if not fresh:
            return
        taken = {slot for signal in fresh for slot in slots_of(runner.key, signal)}

        async def evaluate_signals() -> list[Signal]:
            return fresh

        def release(slots: Iterable[OrderSlot]) -> None:
            freed = taken.intersection(slots)
            taken.difference_update(freed)
            self._busy -= freed
            waited = [each for slot in freed for each in self._waiting.pop(slot, ())]
            for settle, pairs in groupby(waited, key=itemgetter(1)):
                again = [signal for signal, _ in pairs]
                self.on_signals(runner, again, after_order=True, settled=settle)

        def order_ended(proposal: OrderProposal) -> None:
            release(slots_of(runner.key, proposal))

        task = self._tracked(self._steps(runner.key, evaluate_signals, order_ended))
        task.add_done_callback(partial(self._stop_orders.settled, runner.key, fresh))
        # Runs for a task cancelled before its start, too.
        task.add_done_callback(lambda _task: release(tuple(taken)))
        task.add_done_callback(lambda ended: _settle(() if ended.cancelled() else fresh, settled))
        self._busy |= taken

    def _free(
        self, key: str, signals: list[Signal], after_order: bool, settled: Settled
    ) -> list[Signal]:
        """Return the signals that no order in flight holds up, one of each slot."""
        free = []
        for each in signals:
            slots = slots_of(key, each)
            if slots.isdisjoint(self._busy):
                free.append(each)
            elif after_order:
                busy = next(slot for slot in slots if slot in self._busy)
                self._waiting.setdefault(busy, []).append((each, settled))
            else:
                settled(each)
        chosen = one_of_each(free)
        displaced = [each for each in free if each not in chosen]
        self._stop_orders.displaced(key, displaced)
        _settle(displaced, settled)
        return chosen

    def change_orders(
        self, runner: StrategyRunner, changes: Iterable[Cancel | Replace]
    ) -> list[asyncio.Task[None]]:
        """Cancel and replace orders, also while no cycle may start; return what was started."""
        return self._changer.apply(runner, changes)

    async def close(self) -> None:
        """Wait for cycles and changes of orders in flight, as long as cycles wait for fills.

        Then none is left to act.
        """
        if tasks := self._tasks | self._changer.tasks:
            _, left = await asyncio.wait(tasks, timeout=self._config.fill_timeout_s)
            for task in left:
                task.cancel()
            if left:
                log.warning("cycles ended by the stop", count=len(left))
                await asyncio.wait(left)

    def _tracked(self, cycle: Coroutine[Any, Any, Cycle]) -> asyncio.Task[Cycle]:
        task = asyncio.create_task(cycle)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _steps(
        self,
        key: str,
        signals: Callable[[], Awaitable[list[Signal]]],
        order_ended: Callable[[OrderProposal], None] | None = None,
    ) -> Cycle:
        number, began_ns = self._next_number(), self._clock.monotonic_ns()
        cycle = Cycle(number=number, strategy_key=key, started_at=self._clock.now())
        try:
            cycle = await self._stop_orders.place(await self._decided(cycle, signals))
            cycle = await self._precheck(cycle)
            cycle = await act(cycle, self._submitter, self._config.fill_timeout_s, order_ended)
        except StepFailedError as error:
            cycle = replace(cycle, code=error.code, error=str(error))
            log.error("cycle failed", strategy=key, code=error.code, error=str(error))
            self._trip(error.code, str(error))
        except QtsError as error:
            cycle = replace(cycle, code="FS040", error=str(error))
            log.error("cycle could not act", strategy=key, error=str(error))
        except Exception as error:
            cycle = replace(cycle, code="FS030", error=repr(error))
            log.error("cycle raised", strategy=key, exc_info=True)
            self._trip("FS030", repr(error))
        self._raise_guardrails(cycle)
        cycle = replace(cycle, took_ms=(self._clock.monotonic_ns() - began_ns) / 1e6)
        _CYCLES.labels(key, cycle.code or "ok").inc()
        self.cycles.append(replace(cycle, raw=None))
        return cycle

    async def _decided(
        self, cycle: Cycle, read_signals: Callable[[], Awaitable[list[Signal]]]
    ) -> Cycle:
        """Run Extract to Decide and journal their inputs and results."""
        number, key, report = cycle.number, cycle.strategy_key, self._reporter
        signals: list[Signal] = []
        policy, view = DecisionPolicy(), self._portfolio.view()
        if self._record is not None:
            self._record(
                ExtractEntry(
                    number,
                    key,
                    cycle.started_at,
                    view.version,
                    view.now,
                    self._portfolio.account,
                )
            )

        version: int | None = None

        def record_decision(code: str = "") -> None:
            if self._record is not None:
                at = self._portfolio.owners_at()[1] if version is None else version
                decided = cycle.decisions
                rules = tuple({self._portfolio.instruments[symbol_of(each)] for each in signals})
                self._record(DecideEntry(number, at, tuple(signals), policy, decided, code, rules))

        try:
            began_ns = self._clock.monotonic_ns()
            cycle = extract(cycle, view)
            report.step("EXTRACT_COMPLETE", number, self._clock.monotonic_ns() - began_ns)
            began_ns = self._clock.monotonic_ns()
            cycle = transform(cycle)
            report.step("TRANSFORM_COMPLETE", number, self._clock.monotonic_ns() - began_ns)
            signals, policy = await read_signals(), self._policy()
            report.generated(cycle, signals)
            owners, version = self._portfolio.owners_at()
            cycle = evaluate(cycle, signals, self._limits, self._portfolio.instruments, owners)
            report.sized(cycle)
            cycle = decide(cycle, policy)
        except StepFailedError as error:
            record_decision(error.code)
            raise
        except Exception:
            record_decision("FS030")
            raise
        record_decision()
        report.decided(cycle)
        return cycle

    def _raise_guardrails(self, cycle: Cycle) -> None:
        """Raise the guardrails that refused proposals of the cycle."""
        for code, symbol in _guardrails(cycle):
            scope = "" if code in _OF_THE_ACCOUNT else symbol
            if self._throttle.every(GUARDRAIL_INTERVAL_S, (code, scope)):
                self._trip(code, f"an order of {cycle.strategy_key} for {symbol} is refused")

    def _overran(self, key: str, took_s: float, interval_s: float) -> None:
        _OVERRUNS.labels(key).inc()
        log.warning("cycle exceeded its interval", strategy=key, duration_s=round(took_s, 3))
        allowed = interval_s * ANOMALY + self._config.fill_timeout_s
        if took_s > interval_s * FAR_TOO_LONG + self._config.fill_timeout_s:
            self._trip("FS060", f"a cycle of {key} took {took_s:.1f} s")
        elif took_s > allowed:
            self._trip("AN040", f"a cycle of {key} took {took_s:.1f} s")


def _guardrails(cycle: Cycle) -> Iterator[tuple[str, str]]:
    """Yield code and symbol of the guardrails and anomalies in the reasons of a cycle."""
    reasons = [(each.signal.symbol, each.reason) for each in cycle.decisions]
    reasons += [(each.proposal.symbol, each.reason) for each in cycle.executions]
    for symbol, reason in reasons:
        for word in reason.split():
            code = GUARDRAILS.get(word, word)
            if code in CODES:
                yield code, symbol
