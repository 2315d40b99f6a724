"""Executes order commands at the venue.

    direct   one statement: SENT, command claimed ── committed ──▶ place ──▶ outcome, command done
    command ─▶ PREPARED ─▶ SENT ── committed ──▶ place ──▶ ACKED, REJECTED, THROTTLED or UNKNOWN
                 │  last check: switches,          outside any transaction,
                 │  suspension, expiry, ledger     with a deadline
                 └─▶ SUSPENDED

Invariant: the request of an attempt leaves at most once. It is sent by the process whose statement
moved the attempt to SENT, within `send_within_s` of the start of that statement, while the lease of
the account is held and the ledger is reconciled. The statement compares the epoch of the lease, and
the deadline is checked again as the body is written (qts/brokers/lease.py says why). A process that
dies in between leaves SENT and a claimed command. The worker that takes the command when its claim
ends finds SENT: the attempt becomes UNKNOWN and is looked up at the venue, never sent again.

Both ways exist because the direct one needs a bus in PostgreSQL, the lease and a reconciled ledger:
an order without them, one that follows a THROTTLED attempt, and one behind an unfinished command of
its symbol are PREPARED and wait for a worker.

Exits and cancels have a separate stream with separate workers: an entry that the venue does not
answer holds back neither. Entries of one symbol are executed one after another. A command may be
delivered twice: only the delivery that moves PREPARED to SENT sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import msgspec

from qts import telemetry
from qts.brokers import VenueBlockedError
from qts.database import Row
from qts.domain import (
    AccountKey,
    AttemptState,
    BrokerOrder,
    OperationError,
    OrderState,
    TimeLimit,
    UnreachableError,
)
from qts.orders.attempts import (
    AttemptTransitions,
    OrderAttempt,
    lock_attempt,
    mark_sent,
    moved,
    stop_code,
)
from qts.orders.context import (
    NOT_RECONCILED,
    ExecutionContext,
    HeldLease,
    PlaceMonitor,
    PlaceOutcome,
    PlaceOutcomeKind,
    classify_place_error,
    halt_venue,
    raise_ghost,
)
from qts.orders.failpoints import failpoint
from qts.orders.ledger_values import SQL
from qts.orders.messages import CancelOrder, CreateOrderAttempt, RaiseCode, Reconcile
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EXIT,
    BornClaim,
    Delivery,
    Dispatcher,
    OutboxEvent,
    PostgresBus,
    RetryableError,
)
from qts.venues import RateLimitedError, VenueRejectedError

SETTLE_TRIES = 4
SETTLE_PAUSE_S = 0.1
MAX_DIRECT = 10  # entries, and as many exits, that are sent directly at the same time

log = telemetry.logger("orders")


class OrderExecutor:
    """Executor of one account; `request_reconcile` schedules a reconciliation.

    `lease` is that of the account, which the process holds.
    """

    def __init__(
        self,
        context: ExecutionContext,
        is_reconciled: Callable[[], bool],
        request_reconcile: Callable[[str], None],
        lease: HeldLease,
    ) -> None:
        self._context = context
        self.lease = lease
        self._is_reconciled = is_reconciled
        self._request_reconcile = request_reconcile
        bus = context.bus
        self._bus = bus if isinstance(bus, PostgresBus) and context.order_database else None
        self._sending: dict[bool, set[asyncio.Task[None]]] = {False: set(), True: set()}
        self._monitor = PlaceMonitor(context)

    def register(self, dispatcher: Dispatcher) -> None:
        for stream in (TRADE_COMMAND, TRADE_EXIT):
            dispatcher.on(stream, CreateOrderAttempt)(self.create)
            dispatcher.on(stream, CancelOrder)(self.cancel)
        dispatcher.on(TRADE_COMMAND, Reconcile)(self.reconcile)
        dispatcher.on(TRADE_COMMAND, RaiseCode)(self.raise_code)

    async def end_former_claims(self) -> None:
        """End what former holders of the account had claimed: nothing of theirs is sent any more.

        Their entries would hold up those of the same symbols until the claims expire.
        """
        bus, account = self._context.bus, str(self._context.broker.key)
        if isinstance(bus, PostgresBus):
            count = await bus.end_claims((TRADE_COMMAND, TRADE_EXIT), account)
            if count:
                log.info("claims of former holders ended", account=account, count=count)

    # --- direct ---------------------------------------------------------------------------------

    def accepts(self, *, is_exit: bool) -> bool:
        """Return whether an order may be sent directly now."""
        has_capacity = len(self._sending[is_exit]) < MAX_DIRECT
        return self._bus is not None and has_capacity and self._is_reconciled()

    def claim(self, command: OutboxEvent) -> BornClaim:
        """Return the claim of a command that is sent directly; it outlasts the request."""
        if self._bus is None:
            raise AssertionError("a command is claimed at birth on PostgreSQL alone")
        config = self._context.config
        return self._bus.claim_at_birth(command, config.send_within_s + config.place_timeout_s + 1)

    async def store_sent(self, *parameters: object) -> str:
        """Store an order as SENT with its claimed command; return why it is not stored, or ""."""
        database = self._context.order_database
        if database is None:
            raise AssertionError("orders have no reserved connection")
        (row,) = await database.fetch_idempotent(SQL.send_directly, *parameters, self.lease.epoch)
        return str(row["code"])

    def deadline(self) -> TimeLimit:
        """Return until when a request may leave, for an attempt whose statement begins now."""
        return TimeLimit(self._context.clock, self._context.config.send_within_s)

    async def start(self, attempt: OrderAttempt, claim: BornClaim, deadline: TimeLimit) -> None:
        """Send an attempt that the caller's statement stored as SENT.

        Return once the request is on its way, before its reply.
        """
        sending = self._sending[attempt.intent_type.is_exit]
        task = asyncio.create_task(self._send_directly(attempt, claim, deadline))
        sending.add(task)
        task.add_done_callback(sending.discard)
        await asyncio.sleep(0)  # the request first, then those who follow the order
        self._context.ledger.notify([moved(attempt, AttemptState.SENT)])

    async def close(self) -> None:
        """Wait for requests in flight."""
        if tasks := self._sending[False] | self._sending[True]:
            await asyncio.wait(tasks)

    async def _send_directly(
        self, attempt: OrderAttempt, claim: BornClaim, deadline: TimeLimit
    ) -> None:
        try:
            failpoint("before_send")
            placed_ns = self._context.clock.monotonic_ns()
            if self._is_reconciled():
                outcome = await self._place(attempt, deadline)
            else:
                text = "the lease of the account or the reconciliation was lost"
                outcome = PlaceOutcome(PlaceOutcomeKind.NOT_PLACED, code=NOT_RECONCILED, text=text)
            failpoint("after_send")
            await self._settle(attempt, outcome, placed_ns, claim)
        except Exception:
            log.error(
                "outcome of an order not recorded; it is looked up when its claim ends",
                attempt_id=str(attempt.id),
                symbol=attempt.symbol,
                exc_info=True,
            )

    # --- commands -------------------------------------------------------------------------------

    async def create(self, command: CreateOrderAttempt, delivery: Delivery) -> None:
        deadline = self.deadline()
        attempt = await self._begin(command.order_attempt_id, delivery)
        if attempt is None:
            return
        failpoint("before_send")
        placed_ns = self._context.clock.monotonic_ns()
        outcome = await self._place(attempt, deadline)
        failpoint("after_send")
        await self._settle(attempt, outcome, placed_ns)

    async def cancel(self, command: CancelOrder, delivery: Delivery) -> None:
        """Cancel at the venue, whatever the switches say; the venue's report ends the order.

        The outcome of an earlier request may be unknown: then the order is looked up first.
        """
        row = await self._context.database.fetchrow(SQL.cancellable, command.order_attempt_id)
        if row is None:
            return  # ended, or not acknowledged yet: then it is cancelled on acknowledgement
        self._check_account(command.order_attempt_id, AccountKey(row["broker"], row["account"]))
        if not self.lease.is_held:
            raise RetryableError("the lease of the account was lost", code="CANCEL")
        timeout_s = self._context.config.place_timeout_s
        requested_at = row["cancel_requested_at"] or self._context.clock.now()
        waited_s = (self._context.clock.now() - requested_at).total_seconds()
        try:
            async with asyncio.timeout(timeout_s):
                if (delivery.attempt > 1 or waited_s > timeout_s) and await self._has_ended(row):
                    return
                await self._context.broker.cancel(row["broker_order_id"])
        except VenueRejectedError as error:
            if error.code == "settings":  # not of the venue: a wrong key or address
                raise RetryableError(str(error), code="CANCEL") from None
            log.info(
                "nothing left to cancel", broker_order_id=row["broker_order_id"], error=str(error)
            )
        except VenueBlockedError as error:
            await halt_venue(self._context, str(error))
            raise RetryableError(str(error), code="BLOCKED") from None
        except (RateLimitedError, UnreachableError, TimeoutError) as error:
            text = str(error) or "the venue did not answer in time"
            raise RetryableError(text, code="CANCEL") from None
        self._request_reconcile("cancel requested")

    async def _has_ended(self, row: Row) -> bool:
        """Look up the order at the venue and record it; return whether it is closed."""
        for order in await self._context.broker.orders(row["placed_at"]):
            if order.broker_order_id == row["broker_order_id"]:
                await self._context.ledger.record_order(order)
                if order.state is not OrderState.OPEN:
                    self._request_reconcile("order closed at the venue")
                    return True
        return False

    async def raise_code(self, command: RaiseCode, _delivery: Delivery) -> None:
        await self._context.safety.raise_code(command.code, command.text)

    async def reconcile(self, _command: Reconcile, _delivery: Delivery) -> None:
        self._request_reconcile("requested by command")

    async def _begin(self, attempt_id: UUID, delivery: Delivery) -> OrderAttempt | None:
        """Move the attempt to SENT durably and return it; None when it must not be sent."""
        context = self._context
        if self._is_reconciled():
            attempt = await mark_sent(
                context.database,
                context.broker.key,
                attempt_id,
                context.clock.now(),
                self.lease.epoch,
            )
            if attempt is not None:
                context.ledger.notify([moved(attempt, AttemptState.SENT)])
                return attempt
        await self._refuse(attempt_id, delivery)
        return None

    async def _refuse(self, attempt_id: UUID, delivery: Delivery) -> None:
        """Record why an attempt is not sent; raise RetryableError while it may be sent later."""
        context = self._context
        async with context.database.transaction(durable=True) as tx:
            attempt = await lock_attempt(tx, attempt_id)
            if attempt is None:
                return
            self._check_account(attempt_id, attempt.key)
            if attempt.state not in (AttemptState.PREPARED, AttemptState.SENT):
                return
            now = context.clock.now()
            transitions = AttemptTransitions(tx, context.bus, context.config, now)
            if attempt.state is AttemptState.SENT:
                await transitions.unknown(attempt, "its sender died before it recorded an outcome")
            elif attempt.is_cancelled:
                await transitions.suspended(attempt, "CANCELLED")
            elif now >= attempt.expires_at:
                await transitions.suspended(attempt, "EXPIRED")
            elif code := await stop_code(tx, attempt):
                await transitions.suspended(attempt, code)
            elif not self._is_reconciled():
                await self._wait_for_reconciliation(transitions, attempt, delivery)
            else:  # another run holds the account, or what stopped the attempt has ended since
                raise RetryableError("the attempt was not sent", code="NOT_SENT")
        context.ledger.notify(transitions.changes)
        if attempt.state is AttemptState.SENT:
            self._request_reconcile("unknown outcome")

    def _check_account(self, attempt_id: UUID, key: AccountKey) -> None:
        """Raise for an attempt of another account: its own executor retries it."""
        ours = self._context.broker.key
        if key != ours:
            text = f"attempt {attempt_id} belongs to account {key}, not to {ours}"
            raise RetryableError(text, code="OTHER_ACCOUNT")

    async def _wait_for_reconciliation(
        self, transitions: AttemptTransitions, attempt: OrderAttempt, delivery: Delivery
    ) -> None:
        if delivery.attempt >= delivery.max_attempts:
            await transitions.suspended(attempt, "NOT_RECONCILED")
            return
        self._request_reconcile("an order waits")
        raise RetryableError("not reconciled with the venue yet", code="NOT_RECONCILED")

    async def _place(self, attempt: OrderAttempt, deadline: TimeLimit) -> PlaceOutcome:
        context = self._context
        if deadline.is_over(context.clock):
            late_s = context.config.send_within_s - deadline.left_s(context.clock)
            text = f"delayed for {late_s:.1f} s before the request"
            return PlaceOutcome(PlaceOutcomeKind.NOT_PLACED, code="LATE", text=text)
        request = msgspec.structs.replace(
            attempt.request, expires_at=attempt.expires_at, send_by=(deadline, self.lease.send_by)
        )
        try:
            intent_id = attempt.intent_id
            with telemetry.span("request", follows=intent_id, attempt_id=attempt.id) as sent:
                sent.remember(intent_id)  # of its fills, and of an attempt after this one
                async with asyncio.timeout(context.config.place_timeout_s):
                    order_id = await context.broker.place(request)
                sent.set(broker_order_id=order_id)
        except Exception as error:  # noqa: BLE001 - it may have been placed
            return classify_place_error(error)
        if not order_id:
            return PlaceOutcome(
                PlaceOutcomeKind.UNKNOWN, text="the venue accepted it without an order id"
            )
        return PlaceOutcome(PlaceOutcomeKind.ACCEPTED, order_id=order_id)

    async def _settle(
        self,
        attempt: OrderAttempt,
        outcome: PlaceOutcome,
        placed_ns: int,
        claim: BornClaim | None = None,
    ) -> None:
        """Record the outcome; retry while the database is unreachable."""
        took_s = (self._context.clock.monotonic_ns() - placed_ns) / 1e9
        for tried in range(1, SETTLE_TRIES + 1):
            try:
                async with self._context.ledger.in_order(attempt.symbol):
                    given_up = await self._write(attempt.id, outcome, claim)
                break
            except OperationError as error:
                if tried == SETTLE_TRIES:
                    raise
                log.warning("outcome not recorded; retrying", error=str(error))
                await self._context.clock.sleep(SETTLE_PAUSE_S * 2**tried)
        if given_up:
            await raise_ghost(self._context, outcome.order_id, attempt.id, given_up)
        await self._monitor.note(attempt, outcome, took_s)
        if outcome.kind is PlaceOutcomeKind.BLOCKED:
            await halt_venue(self._context, outcome.text)
        elif outcome.kind is PlaceOutcomeKind.UNKNOWN:
            self._request_reconcile("unknown outcome")

    async def _write(self, attempt_id: UUID, outcome: PlaceOutcome, claim: BornClaim | None) -> str:
        """Write the outcome; return the state of an attempt that was given up but has an order."""
        context, is_ghost = self._context, False
        async with context.database.transaction() as tx:
            attempt = await lock_attempt(tx, attempt_id)
            if attempt is None:
                raise AssertionError("an attempt is never deleted")
            transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
            if outcome.kind is PlaceOutcomeKind.ACCEPTED:
                is_ghost = not await transitions.accepted(attempt, outcome.order_id)
                is_ghost &= attempt.order_id != outcome.order_id
                order = order_from_ack(attempt, outcome.order_id)
                # The attempt has another order by now: this one is foreign, and raised below.
                is_its = attempt.order_id in (None, outcome.order_id)
                transitions.changes += await context.ledger.apply_order(
                    tx, order, attempt.id if is_its else None
                )
            elif outcome.kind in (PlaceOutcomeKind.REJECTED, PlaceOutcomeKind.BLOCKED):
                await transitions.rejected(attempt, outcome.code, outcome.text)
            elif outcome.kind is PlaceOutcomeKind.NOT_PLACED:
                await transitions.not_placed(attempt, outcome.code, outcome.text, outcome.pause_s)
            else:
                await transitions.unknown(attempt, outcome.text)
            if claim is not None and self._bus is not None:
                await self._bus.complete(tx, claim)
            failpoint("before_commit")
        failpoint("after_commit")
        context.ledger.notify(transitions.changes)
        return attempt.state if is_ghost else ""


def order_from_ack(attempt: OrderAttempt, order_id: str) -> BrokerOrder:
    """Return the order as the acknowledgement alone describes it."""
    if attempt.sent_at is None:
        raise AssertionError("the attempt was not sent")
    return BrokerOrder.of(attempt.request, order_id, attempt.sent_at)
