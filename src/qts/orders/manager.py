"""Submission of approved orders: durable before anything is sent.

    submit ── one statement ──▶ signal, intent, attempt (SENT), claimed command ──▶ request
       └── where that cannot be: signal, intent, attempt (PREPARED), command for a worker

The first way also compares the facts that the order was approved on (ApprovedOrder.facts) with the
ledger, in the same statement. When they have changed, nothing is stored and the caller decides
again. executor.py says what holds for the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha1
from typing import Any, NamedTuple, TypeVar
from uuid import NAMESPACE_OID, UUID

import msgspec

from qts import telemetry
from qts.brokers import AccountTakenError, is_account_locked
from qts.database import Connection, Database
from qts.domain import (
    AccountKey,
    AttemptState,
    Clock,
    OrderRequest,
    OutcomeUnknownError,
    RefusedError,
    Side,
    SystemClock,
    good_until,
)
from qts.orders.attempts import (
    AttemptTransitions,
    OrderAttempt,
    cancel_event,
    create_event,
    lock_attempt,
    new_client_order_id,
)
from qts.orders.config import OrdersConfig
from qts.orders.executor import OrderExecutor
from qts.orders.failpoints import failpoint
from qts.orders.ledger_values import SQL, OrderListener, OrderUpdate
from qts.orders.messages import CancelStopOrder
from qts.outbox import TRADE_EXIT, EventBus, OutboxEvent, uuid7
from qts.risk import AccountFacts, ApprovedOrder, OrderProposal

COMMIT_RETRIES = 5  # of a commit whose outcome was lost
COMMIT_RETRY_INTERVAL_S = 0.2

# Parts of uuid5(NAMESPACE_OID, name): it would hash the namespace and look up the hash every time.
_NAMESPACE = sha1(NAMESPACE_OID.bytes, usedforsecurity=False)
_VERSION_5 = 0x8000 << 48 | 5 << 76
_HASHED_BITS = 2**128 - 1 ^ (0xC000 << 48 | 0xF000 << 64)

log = telemetry.logger("orders")
R = TypeVar("R")


class SubmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a submission; `is_new` is False when the signal was acted on before."""

    intent_id: UUID
    attempt_id: UUID | None
    is_new: bool = True
    stopped: str = ""  # why there is no attempt
    is_outdated: bool = False  # the facts have changed: nothing is stored


def signal_id_for(strategy_key: str, symbol: str, side: Side, at: datetime, leg: str = "") -> UUID:
    """Return the same id for the same decision, so that repeating it orders nothing.

    `at` is the time that was decided on, such as the close of a bar; `leg` separates orders of one
    decision.
    """
    digest = _NAMESPACE.copy()  # a uuid5
    digest.update("\x1f".join((strategy_key, symbol, side, at.isoformat(), leg)).encode())
    return UUID(int=int.from_bytes(digest.digest()[:16], "big") & _HASHED_BITS | _VERSION_5)


class _Draft(NamedTuple):
    """An order to store; retries of a lost commit store the same one."""

    approved: ApprovedOrder
    intent_id: UUID
    attempt_id: UUID
    request: OrderRequest
    command: OutboxEvent

    @property
    def proposal(self) -> OrderProposal:
        return self.approved.proposal

    @property
    def expires_at(self) -> datetime:
        until, expires_at = self.request.good_until, self.proposal.expires_at
        return min(expires_at, until or expires_at)


@contextmanager
def _commit_span(draft: _Draft) -> Iterator[telemetry.Span]:
    """Trace the statement of an order; its request follows by the id of the intent."""
    with telemetry.span("commit", intent_id=draft.intent_id) as commit:
        commit.remember(draft.intent_id)
        yield commit


class OrderManager:
    """Takes approved orders for one account; `executor` sends those that it accepts directly.

    `on_change` is None where nothing in this process follows the account.
    """

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        key: AccountKey,
        on_change: OrderListener | None,
        clock: Clock | None = None,
        executor: OrderExecutor | None = None,
    ) -> None:
        self._database = database
        self._bus = bus
        self._executor = executor
        self._key = key
        self._on_change = on_change
        self._clock = clock or SystemClock()

    async def submit(self, approved: ApprovedOrder) -> SubmitResult:
        """Submit an approved order; repeating it has no effect."""
        if type(approved) is not ApprovedOrder:
            raise RefusedError(
                "submit() takes an ApprovedOrder from PreTradeGate.check(), not "
                f"{type(approved).__name__}"
            )
        draft = self._draft(approved)
        if approved.facts is not None and self._executor is not None:
            is_exit = draft.proposal.intent_type.is_exit
            if self._executor.accepts(is_exit=is_exit):
                sent = await self._send(draft, approved.facts, self._executor)
                if sent is not None:
                    return sent
        return await self._retried(lambda: self._submit(draft))

    async def _retried(self, store: Callable[[], Awaitable[R]]) -> R:
        """Repeat a statement whose commit was lost: a signal is stored once."""
        for left in reversed(range(COMMIT_RETRIES)):
            try:
                return await store()
            except OutcomeUnknownError as error:
                if not left:
                    raise
                log.warning("commit outcome unknown; retrying", error=str(error))
                await self._clock.sleep(COMMIT_RETRY_INTERVAL_S)
        raise AssertionError("the last attempt returns or raises")

    async def cancel(self, intent_id: UUID) -> bool:
        """Request a cancel; return False when there is nothing left to cancel.

        An order that was not sent is stopped at once. One that the venue has, or may have, is
        cancelled there, and ends with the venue's report. A stop order that waits is cancelled by
        the run of its account; where there is none, at once.
        """
        changes: list[OrderUpdate] = []
        async with self._database.transaction() as tx:
            live = await tx.fetchval(SQL.live_attempt, intent_id)
            attempt = await lock_attempt(tx, live) if live is not None else None
            if attempt is None:
                if await tx.fetchval("SELECT true FROM order_intent WHERE id = $1", intent_id):
                    return False
                await self._cancel_stop_order(tx, intent_id)
                return True
            await tx.execute(SQL.request_cancel, intent_id, self._clock.now())
            transitions = AttemptTransitions(tx, self._bus, OrdersConfig(), self._clock.now())
            if not await transitions.suspended(attempt, "CANCELLED"):
                await self._bus.publish(tx, cancel_event(attempt))
            changes = transitions.changes
        if self._on_change is not None:
            for change in changes:
                self._on_change(change)
        return True

    async def _cancel_stop_order(self, tx: Connection, id_: UUID) -> None:
        row = await tx.fetchrow(SQL.waiting_stop_order, id_)
        if row is None:
            raise RefusedError(f"no order {id_}; see qts orders list")
        key = AccountKey(row["broker"], row["account"])
        if not await is_account_locked(self._database, key):
            await tx.execute("DELETE FROM stop_order WHERE id = $1", id_)
        # In any case: a run may have read the row a moment ago.
        event = OutboxEvent.of(
            TRADE_EXIT,
            CancelStopOrder(id_),
            ("StopOrder", str(id_)),
            account=key,
            market=row["symbol"],
        )
        await self._bus.publish(tx, event)

    def _draft(self, approved: ApprovedOrder) -> _Draft:
        proposal, attempt_id = approved.proposal, uuid7()
        request = OrderRequest(
            client_order_id=new_client_order_id(),
            symbol=proposal.symbol,
            side=proposal.side,
            type=proposal.type,
            quantity=proposal.quantity,
            price=proposal.price,
            is_exit=proposal.intent_type.is_exit,
            time_in_force=proposal.time_in_force,
            good_until=good_until(proposal.time_in_force, approved.at),
            exits=proposal.exits,
        )
        command = create_event(attempt_id, self._key, proposal)
        return _Draft(approved, uuid7(), attempt_id, request, command)

    async def _send(
        self, draft: _Draft, facts: AccountFacts, executor: OrderExecutor
    ) -> SubmitResult | None:
        """Store the order as SENT and start its request; None when a worker has to send it."""
        deadline, now = executor.deadline(), self._clock.now()
        claim, proposal = executor.claim(draft.command), draft.proposal
        parameters = (
            *self._row(draft)[:-1],
            now,
            claim.token,
            claim.ttl,
            facts.position,
            facts.pending_buy,
            facts.pending_sell,
            facts.held,
            facts.pending,
            facts.pending_orders,
            facts.latest_since,
            facts.latest_orders,
        )
        failpoint("before_statement")
        with _commit_span(draft) as commit:
            code = await self._retried(lambda: executor.store_sent(*parameters))
            commit.set(code=code)
        failpoint("after_statement")
        sent = SubmitResult(intent_id=draft.intent_id, attempt_id=draft.attempt_id)
        if code == "CHANGED":
            return msgspec.structs.replace(sent, attempt_id=None, is_outdated=True)
        if code == "KNOWN":  # also when the reply to the first try was lost
            sent = await self._existing(proposal, draft.intent_id)
            if not sent.is_new:
                return sent
        elif code:
            return None
        attempt = OrderAttempt(
            id=draft.attempt_id,
            intent_id=draft.intent_id,
            no=1,
            key=self._key,
            request=draft.request,
            state=AttemptState.SENT,
            order_id=None,
            sent_at=now,
            strategy_key=proposal.strategy_key,
            intent_type=proposal.intent_type,
            side=proposal.side,
            quantity=proposal.quantity,
            expires_at=draft.expires_at,
            is_cancelled=False,
        )
        await executor.start(attempt, claim, deadline)
        return sent

    async def _submit(self, draft: _Draft) -> SubmitResult:
        """Store the order as PREPARED, with a command for a worker."""
        with _commit_span(draft):
            epoch = None if self._executor is None else self._executor.lease.epoch
            row = self._row(draft)
            rows = await self._database.fetch_idempotent(SQL.submit, *row, epoch)
        if not rows:
            return await self._existing(draft.proposal, draft.intent_id)
        stopped: str = rows[0]["reason_code"]
        attempt_id = None if stopped else draft.attempt_id
        return SubmitResult(intent_id=draft.intent_id, attempt_id=attempt_id, stopped=stopped)

    def _row(self, draft: _Draft) -> tuple[Any, ...]:
        """Return the parameters that both statements have in common."""
        proposal = draft.proposal
        return (
            proposal.signal_id,
            proposal.strategy_key,
            proposal.symbol,
            proposal.side,
            proposal.reason,
            proposal.decided_at,
            draft.intent_id,
            proposal.intent_type,
            *self._key,
            proposal.type,
            proposal.quantity,
            proposal.price,
            draft.approved.at,
            draft.expires_at,
            draft.attempt_id,
            draft.request.client_order_id,
            draft.request,
            *self._bus.row_of(draft.command),
        )

    async def _existing(self, proposal: OrderProposal, intent_id: UUID) -> SubmitResult:
        """Return the stored order of the signal; ours if only the reply of its commit was lost."""
        row = await self._database.fetchrow(
            SQL.submitted, proposal.signal_id, proposal.intent_type, *self._key
        )
        if row is None:
            raise AccountTakenError(f"another run holds account {self._key}; nothing was stored")
        # The quantity may differ: a repeated decision has other figures and orders nothing.
        if (row["symbol"], row["side"]) != (proposal.symbol, proposal.side):
            raise RefusedError(
                f"signal {proposal.signal_id} already stands for {row['side']} {row['symbol']}; "
                "another order needs another signal_id"
            )
        return SubmitResult(
            intent_id=row["id"],
            attempt_id=row["attempt_id"],
            is_new=row["id"] == intent_id,
            stopped=row["reason_code"] if row["attempt_id"] is None else "",
        )
