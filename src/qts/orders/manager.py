"""Submission of approved orders: durable before anything is sent.

submit ── one statement ──▶ signal, intent, attempt (PREPARED), command on the bus
"""

from __future__ import annotations

from datetime import datetime
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import (
    AccountKey,
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
    cancel_event,
    create_event,
    lock_attempt,
    new_client_order_id,
)
from qts.orders.config import OrdersConfig
from qts.orders.queries import SQL
from qts.orders.updates import OrderListener, OrderUpdate, ignore_update
from qts.outbox import EventBus, OutboxEvent, uuid7
from qts.risk import ApprovedOrder, OrderProposal

COMMIT_RETRIES = 5  # of a commit whose outcome was lost
COMMIT_RETRY_INTERVAL_S = 0.2

log = telemetry.logger("orders")


class SubmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a submission; `is_new` is False when the signal was acted on before."""

    intent_id: UUID
    attempt_id: UUID | None
    is_new: bool = True
    stopped: str = ""  # why there is no attempt


def signal_id_for(strategy_key: str, symbol: str, side: Side, at: datetime, leg: str = "") -> UUID:
    """Return the same id for the same decision, so that repeating it orders nothing.

    `at` is the time that was decided on, such as the close of a bar; `leg` separates orders of one
    decision.
    """
    return uuid5(NAMESPACE_OID, "\x1f".join((strategy_key, symbol, side, at.isoformat(), leg)))


class OrderManager:
    """Takes approved orders for one account."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        key: AccountKey,
        on_change: OrderListener = ignore_update,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._bus = bus
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
        ids = uuid7(), uuid7()
        for left in reversed(range(COMMIT_RETRIES)):
            try:
                return await self._submit(approved, *ids)
            except OutcomeUnknownError as error:
                # Repeating it tells whether it is stored: a signal is stored once.
                if not left:
                    raise
                log.warning("commit outcome unknown; retrying", error=str(error))
                await self._clock.sleep(COMMIT_RETRY_INTERVAL_S)
        raise AssertionError("the last attempt returns or raises")

    async def cancel(self, intent_id: UUID) -> bool:
        """Request a cancel; return False when there is nothing left to cancel.

        An order that was not sent is stopped at once. One that the venue has, or may have, is
        cancelled there, and ends with the venue's report.
        """
        changes: list[OrderUpdate] = []
        async with self._database.transaction() as tx:
            live = await tx.fetchval(SQL.live_attempt, intent_id)
            attempt = await lock_attempt(tx, live) if live is not None else None
            if attempt is None:
                if not await tx.fetchval("SELECT true FROM order_intent WHERE id = $1", intent_id):
                    raise RefusedError(f"no order {intent_id}; see qts orders list")
                return False
            await tx.execute(SQL.request_cancel, intent_id, self._clock.now())
            transitions = AttemptTransitions(tx, self._bus, OrdersConfig(), self._clock.now())
            if not await transitions.suspended(attempt, "CANCELLED"):
                await self._bus.publish(tx, cancel_event(attempt))
            changes = transitions.changes
        for change in changes:
            self._on_change(change)
        return True

    async def _submit(
        self, approved: ApprovedOrder, intent_id: UUID, attempt_id: UUID
    ) -> SubmitResult:
        proposal = approved.proposal
        command = create_event(attempt_id, self._key, proposal)
        stopped = await self._write(approved, intent_id, attempt_id, command)
        if stopped is None:
            return await self._existing(proposal, intent_id)
        return SubmitResult(
            intent_id=intent_id, attempt_id=None if stopped else attempt_id, stopped=stopped
        )

    async def _write(
        self, approved: ApprovedOrder, intent_id: UUID, attempt_id: UUID, command: OutboxEvent
    ) -> str | None:
        """Store the order; return why it has no attempt, "", or None for a known signal."""
        proposal = approved.proposal
        until = good_until(proposal.time_in_force, approved.at)
        request = OrderRequest(
            client_order_id=new_client_order_id(),
            symbol=proposal.symbol,
            side=proposal.side,
            type=proposal.type,
            quantity=proposal.quantity,
            price=proposal.price,
            is_exit=proposal.intent_type.is_exit,
            time_in_force=proposal.time_in_force,
            good_until=until,
        )
        rows = await self._database.fetch_idempotent(
            SQL.submit,
            proposal.signal_id,
            proposal.strategy_key,
            proposal.symbol,
            proposal.side,
            proposal.reason,
            proposal.decided_at,
            intent_id,
            proposal.intent_type,
            *self._key,
            proposal.type,
            proposal.quantity,
            proposal.price,
            approved.at,
            min(proposal.expires_at, until or proposal.expires_at),
            attempt_id,
            request.client_order_id,
            request,
            *self._bus.row_of(command),
        )
        return rows[0]["reason_code"] if rows else None

    async def _existing(self, proposal: OrderProposal, intent_id: UUID) -> SubmitResult:
        """Return the stored order of the signal; ours if only the reply of its commit was lost."""
        row = await self._database.fetchrow(
            SQL.submitted, proposal.signal_id, proposal.intent_type, *self._key
        )
        if row is None:
            raise AssertionError("the conflicting intent is missing")
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
