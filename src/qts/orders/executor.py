"""Carries commands out at the venue.

    command ─▶ PREPARED ─▶ SENT ── committed ──▶ place ──▶ ACKED, REJECTED, THROTTLED or UNKNOWN
                 │  the last look: switches,       outside of any transaction,
                 │  market, expiry, books          with a deadline
                 └─▶ SUSPENDED

A command may come twice: only who moves PREPARED to SENT may send. An attempt that is found SENT
was begun by somebody who did not live to tell how it ended: it is UNKNOWN, and never sent again.
Whoever is held up between the commit and the call sends nothing: by then it may have been given
up as absent.

What an answer of a venue, or the lack of one, means for an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from uuid import UUID

import msgspec

from qts import telemetry
from qts.brokers import VenueBlockedError
from qts.domain import (
    AttemptState,
    BrokerOrder,
    OperationError,
    OrderState,
    OutcomeUnknownError,
    RefusedError,
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
from qts.orders.context import ExecutionContext
from qts.orders.failpoints import failpoint
from qts.orders.halts import halt_venue
from qts.orders.messages import CancelOrder, CreateOrderAttempt, Reconcile
from qts.orders.queries import SQL
from qts.outbox import TRADE_COMMAND, Delivery, Dispatcher, RetryableError
from qts.venues import RateLimitedError, VenueRejectedError


class PlaceOutcomeKind(Enum):
    ACCEPTED = auto()
    REJECTED = auto()
    BLOCKED = auto()  # declined, and so will be everything else
    NOT_PLACED = auto()  # certainly: another attempt may take over
    UNKNOWN = auto()


class PlaceOutcome(msgspec.Struct, frozen=True):
    kind: PlaceOutcomeKind
    order_id: str = ""
    code: str = ""
    text: str = ""
    pause_s: float | None = None


def classify_place_error(error: Exception) -> PlaceOutcome:
    """Only what a venue is known to mean by "no" is a no: everything else may have been placed."""
    text = str(error) or type(error).__name__
    if isinstance(error, RateLimitedError):
        return PlaceOutcome(
            PlaceOutcomeKind.NOT_PLACED, code="THROTTLED", text=text, pause_s=error.retry_after_s
        )
    if isinstance(error, VenueBlockedError):
        return PlaceOutcome(PlaceOutcomeKind.BLOCKED, code="BLOCKED", text=text)
    if isinstance(error, VenueRejectedError):
        return PlaceOutcome(PlaceOutcomeKind.REJECTED, code=error.code or "REJECTED", text=text)
    if isinstance(error, RefusedError):
        return PlaceOutcome(PlaceOutcomeKind.REJECTED, code="REFUSED", text=text)
    if isinstance(error, UnreachableError) and not isinstance(error, OutcomeUnknownError):
        return PlaceOutcome(PlaceOutcomeKind.NOT_PLACED, code="UNREACHABLE", text=text)
    if isinstance(error, TimeoutError):
        text = "the venue did not answer in time"
    return PlaceOutcome(PlaceOutcomeKind.UNKNOWN, code="UNKNOWN", text=text)


SETTLE_TRIES = 4
SETTLE_PAUSE_S = 0.1

log = telemetry.logger("orders")


class OrderExecutor:
    """For one broker. `may_trade` says whether the books agree; `look` has them compared soon."""

    def __init__(
        self, floor: ExecutionContext, may_trade: Callable[[], bool], look: Callable[[str], None]
    ) -> None:
        self._floor = floor
        self._may_trade = may_trade
        self._look = look

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(TRADE_COMMAND, CreateOrderAttempt)(self.create)
        dispatcher.on(TRADE_COMMAND, CancelOrder)(self.cancel)
        dispatcher.on(TRADE_COMMAND, Reconcile)(self.reconcile)

    async def create(self, command: CreateOrderAttempt, delivery: Delivery) -> None:
        began_ns = self._floor.clock.monotonic_ns()
        one = await self._begin(command.order_attempt_id, delivery)
        if one is None:
            return
        failpoint("before_send")
        outcome = await self._place(one, began_ns)
        failpoint("after_send")
        await self._settle(one.id, outcome)

    async def cancel(self, command: CancelOrder, _delivery: Delivery) -> None:
        """Flows whatever the switches say. It is over when the venue says so, not when we asked."""
        row = await self._floor.database.fetchrow(SQL.cancellable, command.order_attempt_id)
        if row is None:
            return  # ended; or not acknowledged yet, and then cancelled as soon as it is
        try:
            async with asyncio.timeout(self._floor.config.place_timeout_s):
                await self._floor.broker.cancel(row["broker_order_id"])
        except VenueRejectedError as error:
            if error.code == "settings":  # not the venue's word: a wrong key, another address
                raise RetryableError(str(error), code="CANCEL") from None
            log.info("nothing left to cancel", order=row["broker_order_id"], reason=str(error))
        except VenueBlockedError as error:
            await halt_venue(self._floor, str(error))
            raise RetryableError(str(error), code="BLOCKED") from None
        except (RateLimitedError, UnreachableError, TimeoutError) as error:
            # To ask for it twice does no harm.
            text = str(error) or "the venue did not answer in time"
            raise RetryableError(text, code="CANCEL") from None
        self._look("a cancel was asked for")

    async def reconcile(self, _command: Reconcile, _delivery: Delivery) -> None:
        self._look("asked for")

    async def _begin(self, attempt_id: UUID, delivery: Delivery) -> OrderAttempt | None:
        """Move it to SENT, for good, or say why not; None when there is nothing to send."""
        floor = self._floor
        if self._may_trade():
            one = await mark_sent(floor.database, attempt_id, floor.clock.now())
            if one is not None:
                floor.ledger.notify([moved(one, AttemptState.SENT)])
                return one
        return await self._begin_in_steps(attempt_id, delivery)

    async def _begin_in_steps(self, attempt_id: UUID, delivery: Delivery) -> OrderAttempt | None:
        floor, begun = self._floor, None
        async with floor.database.transaction(durable=True) as tx:
            one = await lock_attempt(tx, attempt_id)
            if one is None or one.state not in (AttemptState.PREPARED, AttemptState.SENT):
                return None
            now = floor.clock.now()
            moves = AttemptTransitions(tx, floor.bus, floor.config, now)
            if one.state is AttemptState.SENT:
                await moves.unknown(one, "whoever sent it did not tell how it ended")
            elif one.is_cancelled:
                await moves.suspended(one, "CANCELLED")
            elif now >= one.expires_at:
                await moves.suspended(one, "EXPIRED")
            elif code := await stop_code(tx, one):
                await moves.suspended(one, code)
            elif not self._may_trade():
                await self._wait_for_books(moves, one, delivery)
            else:
                begun = one if await moves.sent(one) else None
        floor.ledger.notify(moves.changes)
        if one.state is AttemptState.SENT:
            self._look("an attempt is unknown")
        return begun

    async def _wait_for_books(
        self, moves: AttemptTransitions, one: OrderAttempt, delivery: Delivery
    ) -> None:
        if delivery.attempt >= delivery.max_attempts:
            await moves.suspended(one, "NOT_RECONCILED")
            return
        self._look("an order waits")
        raise RetryableError("the venue's books have not been compared yet", code="NOT_RECONCILED")

    async def _place(self, one: OrderAttempt, began_ns: int) -> PlaceOutcome:
        floor = self._floor
        late_s = (floor.clock.monotonic_ns() - began_ns) / 1e9
        if late_s > floor.config.send_within_s:
            text = f"held up for {late_s:.1f} s before it could leave"
            return PlaceOutcome(PlaceOutcomeKind.NOT_PLACED, code="LATE", text=text)
        try:
            async with asyncio.timeout(floor.config.place_timeout_s):
                order_id = await floor.broker.place(one.request)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, it may have been placed
            return classify_place_error(error)
        if not order_id:
            return PlaceOutcome(
                PlaceOutcomeKind.UNKNOWN, text="the venue accepted it without a name"
            )
        return PlaceOutcome(PlaceOutcomeKind.ACCEPTED, order_id=order_id)

    async def _settle(self, attempt_id: UUID, outcome: PlaceOutcome) -> None:
        """Write down what is known; a database that is away for a moment gets another chance."""
        for tried in range(1, SETTLE_TRIES + 1):
            try:
                await self._write(attempt_id, outcome)
                break
            except OperationError as error:
                if tried == SETTLE_TRIES:
                    raise
                log.warning("an outcome cannot be written, trying again", error=str(error))
                await self._floor.clock.sleep(SETTLE_PAUSE_S * 2**tried)
        if outcome.kind is PlaceOutcomeKind.BLOCKED:
            await halt_venue(self._floor, outcome.text)
        elif outcome.kind is PlaceOutcomeKind.UNKNOWN:
            self._look("an attempt is unknown")

    async def _write(self, attempt_id: UUID, outcome: PlaceOutcome) -> None:
        floor, given_up = self._floor, False
        async with floor.database.transaction() as tx:
            one = await lock_attempt(tx, attempt_id)
            if one is None:
                raise AssertionError("an attempt does not go away")
            moves = AttemptTransitions(tx, floor.bus, floor.config, floor.clock.now())
            if outcome.kind is PlaceOutcomeKind.ACCEPTED:
                given_up = not await moves.accepted(one, outcome.order_id)
                given_up &= one.order_id != outcome.order_id
                order = order_from_ack(one, outcome.order_id)
                # Known as another order meanwhile: this one is nobody's, and told below.
                is_its = one.order_id in (None, outcome.order_id)
                moves.changes += await floor.ledger.apply_order(
                    tx, order, one.id if is_its else None
                )
            elif outcome.kind in (PlaceOutcomeKind.REJECTED, PlaceOutcomeKind.BLOCKED):
                await moves.rejected(one, outcome.code, outcome.text)
            elif outcome.kind is PlaceOutcomeKind.NOT_PLACED:
                await moves.not_placed(one, outcome.code, outcome.text, outcome.pause_s)
            else:
                await moves.unknown(one, outcome.text)
            failpoint("before_commit")
        floor.ledger.notify(moves.changes)
        if given_up:
            text = f"order {outcome.order_id} was placed by attempt {attempt_id}, given up before"
            log.error(text)
            await floor.safety.raise_code("FS040", text)


def order_from_ack(one: OrderAttempt, order_id: str) -> BrokerOrder:
    """The order as far as it is known from its being accepted: never more than that."""
    if one.sent_at is None:
        raise AssertionError("it was sent")
    request = one.request
    return BrokerOrder(
        broker_order_id=order_id,
        symbol=request.symbol,
        side=request.side,
        type=request.type,
        quantity=request.quantity,
        filled=request.quantity * 0,
        state=OrderState.OPEN,
        placed_at=one.sent_at,
        price=request.price,
        client_order_id=request.client_order_id,
    )
