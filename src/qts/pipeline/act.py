"""Act: through the gate to the desk, and then at most five seconds of waiting for the fill."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from typing import Protocol
from uuid import UUID

from msgspec.structs import replace

from qts import telemetry
from qts.domain import AttemptState, OrderState
from qts.orders import AttemptChanged, FillApplied, OrderChanged, OrderUpdate, SubmitResult
from qts.pipeline.cycle import Cycle, Execution
from qts.pipeline.decision_journal import Entry, GateEntry
from qts.risk import ApprovedOrder, OrderProposal, PreTradeGate, Refusal, RiskSnapshot

log = telemetry.logger("pipeline")
_REFUSED = telemetry.counter("qts_gate_refusals_total", "reasons the gate gave", ("code",))

FILL_WAIT_S = 5.0
_REMEMBERED = 2_000
_OVER = {
    AttemptState.REJECTED: "REJECTED",
    AttemptState.ABSENT: "REJECTED",
    AttemptState.SUSPENDED: "STOPPED",
}


class OrderSink(Protocol):
    """The desk."""

    async def submit(self, approved: ApprovedOrder) -> SubmitResult: ...


class _Seen:
    """What is known of an intent, and a bell for those who wait for more."""

    def __init__(self, over: str = "", reason: str = "") -> None:
        self.filled = Decimal(0)
        self.over = over
        self.reason = reason
        self.news = asyncio.Event()


class IntentTracker:
    """What became of the latest intents, as the orders room told it; on one loop."""

    def __init__(self) -> None:
        self._intents: OrderedDict[UUID, _Seen] = OrderedDict()
        self._intent_of: OrderedDict[UUID, UUID] = OrderedDict()

    def submitted(self, submitted: SubmitResult) -> None:
        if submitted.attempt_id:
            self._belongs(submitted.attempt_id, submitted.intent_id)

    def note(self, change: OrderUpdate) -> None:
        """Called by whoever changes orders, once it is committed."""
        match change:
            case AttemptChanged():
                self._belongs(change.attempt_id, change.intent_id)
                if change.state in _OVER:
                    seen = self._seen(change.attempt_id)
                    seen.over, seen.reason = _OVER[change.state], change.code or change.reason
                    seen.news.set()
            case FillApplied(attempt_id=UUID() as attempt):
                seen = self._seen(attempt)
                seen.filled += change.fill.quantity
                seen.news.set()
            case OrderChanged(attempt_id=UUID() as attempt, state=OrderState.CANCELLED):
                seen = self._seen(attempt)
                seen.over = "CANCELLED"
                seen.news.set()
            case _:
                return

    async def wait(self, submitted: SubmitResult, quantity: Decimal, seconds: float) -> _Seen:
        """Until it is over or all is filled, or the time is."""
        if submitted.attempt_id is None:
            return _Seen(over="STOPPED", reason=submitted.stopped)
        seen = self._seen(submitted.attempt_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not seen.over and seen.filled < quantity:
                    seen.news.clear()
                    await seen.news.wait()
        return seen

    def _belongs(self, attempt_id: UUID, intent_id: UUID) -> None:
        """A fill may be told before the attempt that it belongs to."""
        early = self._intents.pop(attempt_id, None)
        self._intent_of[attempt_id] = intent_id
        if early is not None:
            seen = self._seen(attempt_id)
            seen.filled += early.filled
            seen.over, seen.reason = early.over or seen.over, early.reason or seen.reason
            seen.news.set()
        while len(self._intent_of) > _REMEMBERED:
            self._intent_of.popitem(last=False)

    def _seen(self, attempt_id: UUID) -> _Seen:
        """Of the intent; under the attempt's own name until its intent is known."""
        seen = self._intents.setdefault(self._intent_of.get(attempt_id, attempt_id), _Seen())
        while len(self._intents) > _REMEMBERED:
            self._intents.popitem(last=False)
        return seen


class OrderSubmitter:
    """Takes proposals to the gate and what passes to the desk."""

    def __init__(
        self,
        gate: PreTradeGate,
        desk: OrderSink,
        facts: Callable[[OrderProposal], Awaitable[RiskSnapshot]],
        outcomes: IntentTracker,
        sent: Callable[[OrderProposal, SubmitResult], None] = lambda _proposal, _submitted: None,
    ) -> None:
        self._gate = gate
        self._desk = desk
        self._facts = facts
        self._outcomes = outcomes
        self._sent = sent
        self._one_at_a_time = asyncio.Lock()
        self.refusals: Counter[str] = Counter()
        self.note: Callable[[Entry], None] = lambda _entry: None

    async def submit(self, proposal: OrderProposal, wait_s: float = FILL_WAIT_S) -> Execution:
        # One at a time from the facts to the desk: of two that fit alone, both may be too much.
        async with self._one_at_a_time:
            facts = await self._facts(proposal)
            answer = self._gate.check(proposal, facts)
            if isinstance(answer, Refusal):
                return self._refused(proposal, facts, answer)
            self.note(GateEntry(proposal, facts, ()))
            submitted = await self._desk.submit(answer)
            if not submitted.is_new:
                return Execution(proposal, "REJECTED", reason="this signal was acted on before")
            self._outcomes.submitted(submitted)
            self._sent(proposal, submitted)
        seen = await self._outcomes.wait(submitted, proposal.quantity, wait_s)
        return _execution(proposal, seen)

    def _refused(self, proposal: OrderProposal, facts: RiskSnapshot, answer: Refusal) -> Execution:
        codes = [reason.code for reason in answer.reasons]
        self.note(GateEntry(proposal, facts, tuple(codes)))
        for code in codes:
            _REFUSED.labels(code).inc()
            self.refusals[code] += 1
        log.debug("refused", symbol=proposal.symbol, side=proposal.side, codes=codes)
        return Execution(proposal, "REJECTED", reason=" ".join(codes))


def _execution(proposal: OrderProposal, seen: _Seen) -> Execution:
    if seen.filled >= proposal.quantity:
        return Execution(proposal, "FILLED", seen.filled)
    if seen.over == "STOPPED":
        return Execution(proposal, "STOPPED", seen.filled, seen.reason)
    if seen.filled:
        return Execution(proposal, "PARTIAL", seen.filled, seen.reason)
    if seen.over:
        return Execution(proposal, "REJECTED", seen.filled, seen.reason)
    return Execution(proposal, "TIMEOUT", seen.filled)


async def act(cycle: Cycle, trader: OrderSubmitter, wait_s: float = FILL_WAIT_S) -> Cycle:
    """Every decision that has a proposal, all at once; one symbol has at most one."""
    wanted = [each.proposal for each in cycle.decisions if each.proposal is not None]
    done = await asyncio.gather(*(trader.submit(proposal, wait_s) for proposal in wanted))
    return replace(cycle, executions=tuple(done))
