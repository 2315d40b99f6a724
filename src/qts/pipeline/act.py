"""Act: check a proposal at the gate, submit it, wait for its fill."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from decimal import Decimal
from typing import Protocol
from uuid import UUID
from weakref import WeakValueDictionary

from msgspec.structs import replace

from qts import telemetry
from qts.domain import Side
from qts.orders import SubmitResult
from qts.pipeline.cycle import Cycle, Execution
from qts.pipeline.decision_journal import Entry, GateEntry
from qts.risk import (
    REASONS,
    ApprovedOrder,
    Exposure,
    OrderProposal,
    PreTradeGate,
    Reason,
    Refusal,
    RiskSnapshot,
)

log = telemetry.logger("pipeline")
_REFUSED = telemetry.counter("qts_gate_refusals_total", "reasons the gate gave", ("code",))

AsyncContext = AbstractAsyncContextManager[None]

FILL_TIMEOUT_S = 5.0
MAX_CHECKS = 3  # of a proposal whose facts change meanwhile
MAX_FACTS_AGE_MS = 500.0  # a refusal on older ones is checked again
_MAX_TRACKED = 2_000


class OrderSink(Protocol):
    """What takes approved orders: the order manager, or a backtest's."""

    async def submit(self, approved: ApprovedOrder) -> SubmitResult: ...


class SnapshotReader(Protocol):
    """What reads the snapshot that a proposal is checked against."""

    async def __call__(self, proposal: OrderProposal, *, fresh: bool) -> RiskSnapshot:
        """Return a snapshot; with `fresh`, of facts that are read now."""
        ...


class _IntentState:
    """Progress of an intent; `changed` is set by every update."""

    def __init__(self, ended: str = "", reason: str = "") -> None:
        self.filled = Decimal(0)
        self.ended = ended
        self.reason = reason
        self.changed = asyncio.Event()


class IntentTracker:
    """Progress of the latest intents, from the events of lane P0; for one event loop."""

    def __init__(self) -> None:
        self._intents: OrderedDict[UUID, _IntentState] = OrderedDict()

    def filled(self, intent_id: UUID, quantity: Decimal) -> None:
        """Add a fill of the intent, which may come before its submission returns."""
        state = self._state(intent_id)
        state.filled += quantity
        state.changed.set()

    def ended(self, intent_id: UUID, outcome: str, reason: str, filled: Decimal) -> None:
        """Record that nothing more will be filled, and what was."""
        state = self._state(intent_id)
        state.ended, state.reason = outcome, reason
        state.filled = max(state.filled, filled)
        state.changed.set()

    async def wait_ended(self, intent_id: UUID, seconds: float) -> Decimal | None:
        """Wait until the order has ended; return what was filled, None if it may still be open."""
        state = self._state(intent_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not state.ended:
                    state.changed.clear()
                    await state.changed.wait()
        return state.filled if state.ended else None

    async def wait(
        self, submitted: SubmitResult, quantity: Decimal, seconds: float
    ) -> _IntentState:
        """Wait until the intent is filled or ended, at most `seconds`."""
        if submitted.attempt_id is None:
            return _IntentState(ended="STOPPED", reason=submitted.stopped)
        state = self._state(submitted.intent_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not state.ended and state.filled < quantity:
                    state.changed.clear()
                    await state.changed.wait()
        return state

    def _state(self, intent_id: UUID) -> _IntentState:
        state = self._intents.setdefault(intent_id, _IntentState())
        while len(self._intents) > _MAX_TRACKED:
            self._intents.popitem(last=False)
        return state


class OrderSubmitter:
    """Checks proposals at the gate and submits what is approved; `record` journals each check.

    An order is decided on facts in memory; the statement that stores it compares them with the
    ledger. One at a time from snapshot to submit: two orders that each fit may not fit together.
    Entries share the limits of the account and wait for each other. Orders of one side of a symbol
    share the position that they reduce and wait for each other as well, so nothing is sold twice.
    An exit waits for those alone, not for an entry.
    """

    def __init__(
        self,
        gate: PreTradeGate,
        orders: OrderSink,
        read_snapshot: SnapshotReader,
        tracker: IntentTracker,
        on_submitted: Callable[[OrderProposal, SubmitResult], None],
        record: Callable[[Entry], None] | None,
    ) -> None:
        self._gate = gate
        self._orders = orders
        self._read_snapshot = read_snapshot
        self._tracker = tracker
        self._on_submitted = on_submitted
        self._record = record
        self._entries = asyncio.Lock()
        self._sides: WeakValueDictionary[tuple[str, Side], asyncio.Lock] = WeakValueDictionary()
        self.refusals: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # by strategy and code

    async def submit(
        self,
        proposal: OrderProposal,
        timeout_s: float = FILL_TIMEOUT_S,
        *,
        leave: Decimal | None = None,
    ) -> Execution:
        """Check, submit and wait for fills, at most `timeout_s`.

        `leave` is the position that must remain: the quantity is reduced by what is already on its
        way out.
        """
        with _gate_span(proposal) as gate:
            entries, side = self._turn(proposal)
            async with entries, side:
                submitted = await self._decide(proposal, leave)
                if isinstance(submitted, Execution):
                    gate.set(outcome=submitted.outcome, reason=submitted.reason)
                    return submitted
                proposal, result = submitted
                if not result.is_new:
                    gate.set(outcome="REJECTED", reason="G_REPEATED")
                    return self._refused(proposal, (Reason("G_REPEATED", REASONS["G_REPEATED"]),))
                self._on_submitted(proposal, result)
        state = await self._tracker.wait(result, proposal.quantity, timeout_s)
        return _execution(proposal, state)

    async def refusals_of(self, proposal: OrderProposal) -> tuple[Reason, ...]:
        """Return why the gate would refuse a proposal now; nothing is submitted."""
        checked = self._gate.check(proposal, await self._read_snapshot(proposal, fresh=True))
        return checked.reasons if isinstance(checked, Refusal) else ()

    async def _decide(
        self, proposed: OrderProposal, leave: Decimal | None
    ) -> Execution | tuple[OrderProposal, SubmitResult]:
        """Check and submit; once more on fresh facts where those in memory are old or changed.

        The last check submits without facts to compare: a worker sends such an order.
        """
        fresh = False
        for left in reversed(range(MAX_CHECKS)):
            snapshot = await self._read_snapshot(proposed, fresh=fresh)
            may_read_again = left and not fresh and _is_old(snapshot)
            proposal = _beyond(leave, proposed, snapshot.exposure)
            if proposal is None:
                if not may_read_again:
                    return Execution(proposed, "PENDING", reason="all of it is on its way out")
            else:
                checked = self._check(proposal, snapshot if left else replace(snapshot, facts=None))
                if isinstance(checked, ApprovedOrder):
                    submitted = await self._orders.submit(checked)
                    if not submitted.is_outdated:
                        return proposal, submitted
                elif not may_read_again:
                    return self._refused(proposal, checked.reasons)
            fresh = True
        raise AssertionError("an order without facts is not outdated")

    def _check(self, proposal: OrderProposal, snapshot: RiskSnapshot) -> ApprovedOrder | Refusal:
        checked = self._gate.check(proposal, snapshot)
        if self._record is not None:
            codes = _codes(checked) if isinstance(checked, Refusal) else ()
            self._record(GateEntry(proposal, snapshot, codes))
        return checked

    def _turn(self, proposal: OrderProposal) -> tuple[AsyncContext, AsyncContext]:
        """Return what to hold, in this order, for the orders that share a limit or a position."""
        side = self._sides.setdefault((proposal.symbol, proposal.side), asyncio.Lock())
        return nullcontext() if proposal.intent_type.is_exit else self._entries, side

    def _refused(self, proposal: OrderProposal, reasons: tuple[Reason, ...]) -> Execution:
        codes = tuple(reason.code for reason in reasons)
        for code in codes:
            _REFUSED.labels(code).inc()
            self.refusals[code] += 1
            self.refused[proposal.strategy_key, code] += 1
        log.debug("proposal refused", symbol=proposal.symbol, side=proposal.side, codes=codes)
        return Execution(proposal, "REJECTED", reason=" ".join(codes), refusals=reasons)


def _gate_span(proposal: OrderProposal) -> telemetry.Span:
    """Return the span from a proposal to its stored order, with the wait for its turn."""
    return telemetry.span(
        "gate",
        follows=proposal.signal_id,
        strategy=proposal.strategy_key,
        symbol=proposal.symbol,
        side=proposal.side,
    )


def _codes(refusal: Refusal) -> tuple[str, ...]:
    return tuple(reason.code for reason in refusal.reasons)


def _is_old(snapshot: RiskSnapshot) -> bool:
    """Return whether another process may have changed what was read."""
    return snapshot.facts is not None and snapshot.facts.age_ms > MAX_FACTS_AGE_MS


def _beyond(
    leave: Decimal | None, proposal: OrderProposal, exposure: Exposure
) -> OrderProposal | None:
    """Return the order for what is beyond `leave` and not on its way out yet; None for nothing."""
    if leave is None:
        return proposal
    held = exposure.position
    left = abs(held) - leave - (exposure.pending_sell if held > 0 else exposure.pending_buy)
    return replace(proposal, quantity=min(proposal.quantity, left)) if left > 0 else None


def _execution(proposal: OrderProposal, state: _IntentState) -> Execution:
    if state.filled >= proposal.quantity:
        return Execution(proposal, "FILLED", state.filled)
    if state.ended == "STOPPED":
        return Execution(proposal, "STOPPED", state.filled, state.reason)
    if state.filled:
        return Execution(proposal, "PARTIAL", state.filled, state.reason)
    if state.ended == "CANCELLED":
        return Execution(proposal, "CANCELLED", state.filled, state.reason)
    if state.ended:
        return Execution(proposal, "REJECTED", state.filled, state.reason)
    return Execution(proposal, "TIMEOUT", state.filled)


async def act(
    cycle: Cycle,
    submitter: OrderSubmitter,
    timeout_s: float = FILL_TIMEOUT_S,
    order_ended: Callable[[OrderProposal], None] | None = None,
) -> Cycle:
    """Submit every proposal of the cycle concurrently; a side of a symbol has at most one.

    `order_ended` is called with each that is no longer waited for.
    """

    async def submit(proposal: OrderProposal) -> Execution:
        try:
            return await submitter.submit(proposal, timeout_s)
        finally:
            if order_ended is not None:
                order_ended(proposal)

    submits = [submit(each.proposal) for each in cycle.decisions if each.proposal is not None]
    # One alone needs no task, which would start a turn of the loop later.
    done = [await submits[0]] if len(submits) == 1 else await asyncio.gather(*submits)
    return replace(cycle, executions=tuple(done))
