"""Resolution of unknown outcomes: at the venue, or by the operator.

UNKNOWN ──▶ ACKED    one order of the venue is the attempt's, and nothing else can be
   ├──────▶ ABSENT   absent_after_s is over, the lists read since show no order that fits
   │                 and belongs to nobody, and the holding shows no trade of its side
   └─ waits, and is flagged for the operator once the time is over; for its holding alone, if
      that differs in two looks between which the symbol did not trade
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec

from qts import telemetry
from qts.brokers import OrderMatches
from qts.database import Connection, Database
from qts.domain import AttemptState, BrokerOrder, Clock, RefusedError, SystemClock
from qts.orders.attempts import AttemptTransitions, OrderAttempt, lock_attempt, resume_resolved
from qts.orders.config import OrdersConfig
from qts.orders.context import ExecutionContext
from qts.orders.executor import order_from_ack
from qts.orders.holdings import load_baseline
from qts.orders.ledger import Ledger
from qts.orders.ledger_values import SQL, ZERO, SuspensionChanged, find_mismatches
from qts.orders.messages import MarketResumed
from qts.outbox import TRADE_EVENT, EventBus, OutboxEvent

GIVEN_UP = (AttemptState.ABSENT, AttemptState.REJECTED, AttemptState.SUSPENDED)
Answer = Literal["accepted", "absent", "waiting", "ambiguous"]

log = telemetry.logger("orders")


class ResolveCounts(msgspec.Struct, frozen=True):
    """Counts of one resolution pass."""

    accepted: int = 0
    absent: int = 0
    waiting: int = 0  # too early to say
    ambiguous: int = 0  # the operator must choose
    expired: int = 0  # never sent, and past their deadline

    @property
    def is_open(self) -> bool:
        return bool(self.waiting or self.ambiguous)


async def resolve_unknown(
    context: ExecutionContext, *, nobody_sends: bool = False
) -> ResolveCounts:
    """Search the venue for every attempt that is UNKNOWN, or SENT for too long.

    `nobody_sends`: the senders of all attempts have ended, so that each SENT one is too old.
    """
    config, overdue = context.config, context.clock.now()
    if not nobody_sends:
        overdue -= timedelta(seconds=config.send_within_s + config.place_timeout_s)
    counts: dict[Answer, int] = dict.fromkeys(("accepted", "absent", "waiting", "ambiguous"), 0)
    rows = await context.database.fetch(SQL.unresolved, *context.broker.key, overdue)
    for resolved in context.first_looks.keys() - {row["id"] for row in rows}:
        del context.first_looks[resolved]
    for row in rows:
        attempt = await _mark_unknown(context, row["id"])
        if attempt is not None:
            counts[await _resolve(context, attempt, row["broker_order_id"])] += 1
    await resume_resolved_symbols(context.database, context.ledger, context.bus)
    return ResolveCounts(**counts, expired=await _expire(context))


async def resume_resolved_symbols(database: Database, ledger: Ledger, bus: EventBus) -> None:
    """Resume symbols that have no unknown outcome left."""
    for row in await database.fetch(SQL.resolved_markets, *ledger.key):
        symbol = row["symbol"]
        async with database.transaction() as tx:
            resumed = await resume_resolved(tx, ledger.key, symbol)
            if resumed:
                event = OutboxEvent.of(
                    TRADE_EVENT,
                    MarketResumed(symbol=symbol),
                    ("Market", symbol),
                    account=ledger.key,
                )
                await bus.publish(tx, event)
        if resumed:
            ledger.notify([SuspensionChanged(symbol=symbol, suspended=False)])


async def resolve_manually(
    database: Database,
    bus: EventBus,
    attempt_id: UUID,
    order_id: str | None,
    clock: Clock | None = None,
) -> None:
    """Record the operator's finding: the attempt is this venue order, or absent (None).

    An attempt that was given up stays so; an order of it becomes ours, with its fills.
    """
    async with database.transaction() as tx:
        attempt = await lock_attempt(tx, attempt_id)
        if attempt is None:
            raise RefusedError(f"no attempt {attempt_id}")
        is_given_up = attempt.state in GIVEN_UP and order_id is not None
        if attempt.state is not AttemptState.UNKNOWN and not is_given_up:
            raise RefusedError(
                f"attempt {attempt_id} is {attempt.state}; only an UNKNOWN one can be resolved, "
                "and one that was given up linked to an order of the venue"
            )
        now = (clock or SystemClock()).now()
        transitions = AttemptTransitions(tx, bus, OrdersConfig(), now)
        ledger = Ledger(database, bus, attempt.key, on_change=None)
        if order_id is None:
            await transitions.absent(attempt, "resolved by the operator")
        else:
            await _refuse_taken(tx, attempt, order_id)
            if not is_given_up:
                await transitions.accepted(attempt, order_id)
            sent = msgspec.structs.replace(attempt, sent_at=attempt.sent_at or now)
            await ledger.apply_order(tx, order_from_ack(sent, order_id), attempt.id)
    await resume_resolved_symbols(database, ledger, bus)


async def _expire(context: ExecutionContext) -> int:
    """Suspend attempts whose command never ran before their deadline; return how many."""
    expired = 0
    for row in await context.database.fetch(SQL.expired, *context.broker.key, context.clock.now()):
        async with context.database.transaction() as tx:
            attempt = await lock_attempt(tx, row["id"])
            transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
            expired += attempt is not None and await transitions.suspended(attempt, "EXPIRED")
        context.ledger.notify(transitions.changes)
    return expired


async def _mark_unknown(context: ExecutionContext, attempt_id: UUID) -> OrderAttempt | None:
    """Move an overdue SENT attempt to UNKNOWN; None when it is resolved already."""
    async with context.database.transaction() as tx:
        attempt = await lock_attempt(tx, attempt_id)
        transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
        if attempt is not None and attempt.state is AttemptState.SENT:
            await transitions.unknown(attempt, "its sender died before it recorded an outcome")
            attempt = msgspec.structs.replace(attempt, state=AttemptState.UNKNOWN)
    context.ledger.notify(transitions.changes)
    return attempt if attempt is not None and attempt.state is AttemptState.UNKNOWN else None


async def _resolve(
    context: ExecutionContext, attempt: OrderAttempt, order_id: str | None
) -> Answer:
    if order_id is not None:  # an execution report has linked it meanwhile
        await _accept(context, attempt, order_from_ack(attempt, order_id))
        return "accepted"
    checked_at = context.clock.now()
    rows = await context.database.fetch(SQL.known_orders, *attempt.key, attempt.symbol, attempt.id)
    known = frozenset(row["broker_order_id"] for row in rows)
    if attempt.sent_at is None:
        raise AssertionError("the attempt was not sent")
    age = _age(context, attempt.id, checked_at - attempt.sent_at)
    found = await context.broker.find_order(attempt.request, attempt.sent_at, known)
    ours = attempt.request.client_order_id
    is_named = any(each.client_order_id == ours for each in found.candidates)
    rivals = 0 if is_named else await context.database.fetchval(SQL.count_rivals, attempt.id)
    is_over = age >= timedelta(seconds=context.config.absent_after_s)
    traded: Decimal | None = ZERO
    answer = decide_outcome(found, rivals, is_over, traded)
    if answer == "absent":  # the account is read for this alone
        traded = await _unexplained(context, attempt)
        answer = decide_outcome(found, rivals, is_over, traded)
    if answer == "accepted":
        await _accept(context, attempt, found.candidates[0])
    elif answer == "absent":
        await _mark_absent(context, attempt, checked_at)
    elif answer == "ambiguous":
        await _flag_for_operator(context, attempt, _describe(found, traded))
    return answer


def _age(context: ExecutionContext, attempt_id: UUID, by_wall_clock: timedelta) -> timedelta:
    """Return the age of an attempt; a wall clock that is set forward does not add to it."""
    now_ns = context.clock.monotonic_ns()
    first, first_ns = context.first_looks.setdefault(attempt_id, (by_wall_clock, now_ns))
    return min(by_wall_clock, first + timedelta(microseconds=(now_ns - first_ns) // 1000))


def decide_outcome(
    found: OrderMatches, rivals: int, is_over: bool, traded: Decimal | None
) -> Answer:
    """Decide what became of an attempt.

    `found` was read at the venue, after the time of the attempt if that `is_over`; `rivals` counts
    other attempts without an outcome that the same orders fit; `traded` is how far the venue's
    holding is from our position in the direction of the order, None while the symbol trades.
    """
    orders = len(found.candidates) + len(found.elsewhen)
    if orders == 1 and found.candidates and not rivals:
        return "accepted"
    if orders > 1 and not rivals:
        return "ambiguous"
    if not is_over:  # a rival may get its reply, the order may show
        return "waiting"
    if orders:
        return "ambiguous"
    if traded is None:
        return "waiting"
    return "ambiguous" if traded > 0 else "absent"


async def _unexplained(context: ExecutionContext, attempt: OrderAttempt) -> Decimal | None:
    """Return how far the holding differs from our position, positive in the order's direction.

    None: it differs, and did not differ so at the last look, or the symbol has traded since. A fill
    may be on its way to the ledger.
    """
    account = await context.broker.account()
    positions = await context.database.fetch(SQL.positions, *attempt.key)
    baseline = await load_baseline(context.database, attempt.key)
    last = context.differing.pop(attempt.id, None)
    for found in find_mismatches(account, positions, baseline):
        traded = (found.venue - found.ours) * attempt.side.sign
        if found.symbol == attempt.symbol and traded > 0:
            changed = [row["updated_at"] for row in positions if row["symbol"] == found.symbol]
            look = context.differing[attempt.id] = (found.ours, found.venue, *changed)
            return traded if look == last else None
    return ZERO


def _describe(found: OrderMatches, traded: Decimal | None) -> str:
    orders = (*found.candidates, *found.elsewhen)
    if not orders:
        return f"the holding differs from the position by {traded:f} in the order's direction"
    names = ", ".join(f"{each.broker_order_id} of {each.placed_at:%H:%M:%S}" for each in orders)
    return f"may be order {names}" if len(orders) == 1 else f"may be any of the orders {names}"


async def _accept(context: ExecutionContext, attempt: OrderAttempt, order: BrokerOrder) -> None:
    async with context.ledger.in_order(attempt.symbol):
        async with context.database.transaction() as tx:
            locked = await lock_attempt(tx, attempt.id)
            if locked is None:
                raise AssertionError("an attempt is never deleted")
            transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
            await transitions.accepted(locked, order.broker_order_id)
            transitions.changes += await context.ledger.apply_order(tx, order, attempt.id)
        context.ledger.notify(transitions.changes)
    log.info(
        "unknown attempt found at the venue",
        attempt_id=str(attempt.id),
        broker_order_id=order.broker_order_id,
    )


async def _mark_absent(
    context: ExecutionContext, attempt: OrderAttempt, checked_at: datetime
) -> None:
    async with context.database.transaction() as tx:
        locked = await lock_attempt(tx, attempt.id)
        if locked is None:
            raise AssertionError("an attempt is never deleted")
        transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
        await transitions.absent(locked, f"the venue did not have it at {checked_at:%H:%M:%S} UTC")
    context.ledger.notify(transitions.changes)
    log.info("unknown attempt is absent", attempt_id=str(attempt.id))


async def _flag_for_operator(
    context: ExecutionContext, attempt: OrderAttempt, finding: str
) -> None:
    text = (
        f"{finding}; check the venue, then run: "
        f"qts orders resolve {attempt.id} --as ORDER_ID or --as absent"
    )
    if await context.database.execute(SQL.flag_for_operator, attempt.id, text) != "UPDATE 0":
        log.error(
            "unknown outcome; operator must resolve",
            attempt_id=str(attempt.id),
            symbol=attempt.symbol,
            reason=text,
        )


async def _refuse_taken(tx: Connection, attempt: OrderAttempt, order_id: str) -> None:
    row = await tx.fetchrow(
        "SELECT order_attempt_id, symbol, side FROM broker_order "
        "WHERE broker = $1 AND account = $2 AND broker_order_id = $3",
        *attempt.key,
        order_id,
    )
    if row is None:
        if attempt.state in GIVEN_UP:
            raise RefusedError(
                f"the ledger has no order {order_id} of {attempt.key.broker}; "
                "run qts orders reconcile, then look for it in qts orders list"
            )
        return
    if row["order_attempt_id"] not in (None, attempt.id):
        raise RefusedError(f"order {order_id} belongs to attempt {row['order_attempt_id']}")
    if (row["symbol"], row["side"]) != (attempt.symbol, attempt.side):
        raise RefusedError(
            f"order {order_id} is {row['side']} {row['symbol']}; "
            f"the attempt was {attempt.side} {attempt.symbol}"
        )
