"""Act: check a proposal at the gate, submit it, wait for its fill."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from decimal import Decimal
from typing import Protocol
from uuid import UUID
from weakref import WeakValueDictionary

from msgspec.structs import replace

from qts import telemetry
from qts.domain import AttemptState, OrderState, Side
from qts.orders import AttemptChanged, FillApplied, OrderChanged, OrderUpdate, SubmitResult
from qts.pipeline.cycle import Cycle, Execution
from qts.pipeline.decision_journal import Entry, GateEntry
from qts.risk import ApprovedOrder, Exposure, OrderProposal, PreTradeGate, Refusal, RiskSnapshot

log = telemetry.logger("pipeline")
_REFUSED = telemetry.counter("qts_gate_refusals_total", "reasons the gate gave", ("code",))

FILL_TIMEOUT_S = 5.0
_MAX_TRACKED = 2_000
_ENDED = {
    AttemptState.REJECTED: "REJECTED",
    AttemptState.ABSENT: "REJECTED",
    AttemptState.SUSPENDED: "STOPPED",
}


class OrderSink(Protocol):
    """What takes approved orders: the order manager, or a backtest's."""

    async def submit(self, approved: ApprovedOrder) -> SubmitResult: ...


class _IntentState:
    """Progress of an intent; `changed` is set by every update."""

    def __init__(self, ended: str = "", reason: str = "") -> None:
        self.filled = Decimal(0)
        self.ended = ended
        self.reason = reason
        self.changed = asyncio.Event()


class IntentTracker:
    """Progress of the latest intents, from order updates; for one event loop."""

    def __init__(self) -> None:
        self._intents: OrderedDict[UUID, _IntentState] = OrderedDict()
        self._intent_of: OrderedDict[UUID, UUID] = OrderedDict()

    def submitted(self, submitted: SubmitResult) -> None:
        if submitted.attempt_id:
            self._belongs(submitted.attempt_id, submitted.intent_id)

    def note(self, change: OrderUpdate) -> None:
        """Apply an order update; called after its commit."""
        match change:
            case AttemptChanged():
                self._belongs(change.attempt_id, change.intent_id)
                if change.state in _ENDED:
                    state = self._state(change.attempt_id)
                    state.ended, state.reason = _ENDED[change.state], change.code or change.reason
                    state.changed.set()
            case FillApplied(attempt_id=UUID() as attempt):
                state = self._state(attempt)
                state.filled += change.fill.quantity
                state.changed.set()
            case OrderChanged(attempt_id=UUID() as attempt, state=OrderState.CANCELLED):
                state = self._state(attempt)
                state.ended, state.reason = "CANCELLED", "the rest was cancelled"
                state.changed.set()
            case _:
                return

    async def wait(
        self, submitted: SubmitResult, quantity: Decimal, seconds: float
    ) -> _IntentState:
        """Wait until the intent is filled or ended, at most `seconds`."""
        if submitted.attempt_id is None:
            return _IntentState(ended="STOPPED", reason=submitted.stopped)
        state = self._state(submitted.attempt_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not state.ended and state.filled < quantity:
                    state.changed.clear()
                    await state.changed.wait()
        return state

    def _belongs(self, attempt_id: UUID, intent_id: UUID) -> None:
        """Link an attempt to its intent; a fill may have arrived before."""
        early = self._intents.pop(attempt_id, None)
        self._intent_of[attempt_id] = intent_id
        if early is not None:
            state = self._state(attempt_id)
            state.filled += early.filled
            state.ended, state.reason = early.ended or state.ended, early.reason or state.reason
            state.changed.set()
        while len(self._intent_of) > _MAX_TRACKED:
            self._intent_of.popitem(last=False)

    def _state(self, attempt_id: UUID) -> _IntentState:
        """Return the state of the attempt's intent; kept by attempt until that is known."""
        state = self._intents.setdefault(
            self._intent_of.get(attempt_id, attempt_id), _IntentState()
        )
        while len(self._intents) > _MAX_TRACKED:
            self._intents.popitem(last=False)
        return state


class OrderSubmitter:
    """Checks proposals at the gate and submits what is approved; `record` journals each check.

    One at a time from snapshot to submit: two orders that each fit may not fit together. Entries
    share the limits of the account and wait for each other. Orders of one side of a symbol share
    the position that they reduce and wait for each other as well, so nothing is sold twice. An
    exit waits for those alone, not for an entry.
    """

    def __init__(
        self,
        gate: PreTradeGate,
        orders: OrderSink,
        read_snapshot: Callable[[OrderProposal], Awaitable[RiskSnapshot]],
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
        async with self._turn(proposal):
            snapshot = await self._read_snapshot(proposal)
            if leave is not None:
                left = _beyond(leave, snapshot.exposure)
                if left <= 0:
                    return Execution(proposal, "PENDING", reason="all of it is on its way out")
                proposal = replace(proposal, quantity=min(proposal.quantity, left))
            checked = self._gate.check(proposal, snapshot)
            codes = (
                tuple(reason.code for reason in checked.reasons)
                if isinstance(checked, Refusal)
                else ()
            )
            if self._record is not None:
                self._record(GateEntry(proposal, snapshot, codes))
            if isinstance(checked, Refusal):
                return self._refused(proposal, codes)
            submitted = await self._orders.submit(checked)
            if not submitted.is_new:
                return Execution(proposal, "REJECTED", reason="this signal was acted on before")
            self._tracker.submitted(submitted)
            self._on_submitted(proposal, submitted)
        state = await self._tracker.wait(submitted, proposal.quantity, timeout_s)
        return _execution(proposal, state)

    @asynccontextmanager
    async def _turn(self, proposal: OrderProposal) -> AsyncIterator[None]:
        """Wait for the orders that share a limit or a position with this one."""
        side = self._sides.setdefault((proposal.symbol, proposal.side), asyncio.Lock())
        async with AsyncExitStack() as locks:
            if not proposal.intent_type.is_exit:
                await locks.enter_async_context(self._entries)
            await locks.enter_async_context(side)
            yield

    def _refused(self, proposal: OrderProposal, codes: tuple[str, ...]) -> Execution:
        for code in codes:
            _REFUSED.labels(code).inc()
            self.refusals[code] += 1
        log.debug("proposal refused", symbol=proposal.symbol, side=proposal.side, codes=codes)
        return Execution(proposal, "REJECTED", reason=" ".join(codes))


def _beyond(leave: Decimal, exposure: Exposure) -> Decimal:
    """Return how much of the position beyond `leave` is not on its way out yet."""
    held = exposure.position
    return abs(held) - leave - (exposure.pending_sell if held > 0 else exposure.pending_buy)


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


async def act(cycle: Cycle, submitter: OrderSubmitter, timeout_s: float = FILL_TIMEOUT_S) -> Cycle:
    """Submit every proposal of the cycle concurrently; a symbol has at most one."""
    proposals = [each.proposal for each in cycle.decisions if each.proposal is not None]
    done = await asyncio.gather(*(submitter.submit(each, timeout_s) for each in proposals))
    return replace(cycle, executions=tuple(done))
