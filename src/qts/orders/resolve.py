"""Finding out what became of attempts: by looking, or by a person who did."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import AttemptState, BrokerOrder, Clock, RefusedError, SystemClock
from qts.orders import suspensions
from qts.orders.attempts import AttemptTransitions, OrderAttempt, lock_attempt
from qts.orders.config import OrdersConfig
from qts.orders.context import ExecutionContext
from qts.orders.executor import order_from_ack
from qts.orders.ledger import Ledger
from qts.orders.messages import MarketResumed
from qts.orders.queries import SQL
from qts.orders.updates import SuspensionChanged
from qts.outbox import TRADE_EVENT, EventBus, OutboxEvent

Answer = Literal["accepted", "absent", "waiting", "ambiguous"]

log = telemetry.logger("orders")


class ResolveCounts(msgspec.Struct, frozen=True):
    """How many outcomes were found out, and how many are still to be."""

    accepted: int = 0
    absent: int = 0
    waiting: int = 0  # not seen at the venue, and too young to be called absent
    ambiguous: int = 0  # a person has to choose
    expired: int = 0  # never left, and nobody is going to send them

    @property
    def is_open(self) -> bool:
        return bool(self.waiting or self.ambiguous)


async def resolve_unknown(floor: ExecutionContext) -> ResolveCounts:
    """Look for every attempt whose outcome is not known, or whose sender is not heard of."""
    config = floor.config
    patience = timedelta(seconds=config.send_within_s + config.place_timeout_s)
    overdue = floor.clock.now() - patience
    counts: dict[Answer, int] = dict.fromkeys(("accepted", "absent", "waiting", "ambiguous"), 0)
    for row in await floor.database.fetch(SQL.unresolved, floor.broker.name, overdue):
        one = await _give_up_sending(floor, row["id"])
        if one is not None:
            counts[await _resolve(floor, one, row["broker_order_id"])] += 1
    await resume_resolved_symbols(floor.database, floor.ledger, floor.bus)
    return ResolveCounts(**counts, expired=await _expire(floor))


async def resume_resolved_symbols(database: Database, ledger: Ledger, bus: EventBus) -> None:
    """Open the markets again that have no unknown outcome left."""
    for row in await database.fetch(SQL.resolved_markets, ledger.broker):
        symbol = row["symbol"]
        async with database.transaction() as tx:
            lifted = await suspensions.resume_resolved(tx, ledger.broker, symbol)
            if lifted:
                told = OutboxEvent.of(TRADE_EVENT, MarketResumed(symbol=symbol), ("Market", symbol))
                await bus.publish(tx, told)
        if lifted:
            ledger.notify([SuspensionChanged(symbol=symbol, suspended=False)])


async def resolve_manually(
    database: Database,
    bus: EventBus,
    attempt_id: UUID,
    order_id: str | None,
    clock: Clock | None = None,
) -> None:
    """A person has looked: the attempt is this order of the venue's, or it never came (None)."""
    async with database.transaction() as tx:
        one = await lock_attempt(tx, attempt_id)
        if one is None:
            raise RefusedError(f"no attempt {attempt_id} is known here")
        if one.state is not AttemptState.UNKNOWN:
            raise RefusedError(
                f"attempt {attempt_id} is {one.state}; only an UNKNOWN one is resolved"
            )
        now = (clock or SystemClock()).now()
        moves = AttemptTransitions(tx, bus, OrdersConfig(), now)
        ledger = Ledger(database, bus, one.broker)
        if order_id is None:
            await moves.absent(one, "a person looked")
        else:
            await _refuse_taken(tx, one, order_id)
            await moves.accepted(one, order_id)
            await ledger.apply_order(tx, order_from_ack(one, order_id), one.id)
    await resume_resolved_symbols(database, ledger, bus)


async def _expire(floor: ExecutionContext) -> int:
    """A command that became a dead letter must not leave its order under way for ever."""
    expired = 0
    for row in await floor.database.fetch(SQL.expired, floor.broker.name, floor.clock.now()):
        async with floor.database.transaction() as tx:
            one = await lock_attempt(tx, row["id"])
            moves = AttemptTransitions(tx, floor.bus, floor.config, floor.clock.now())
            expired += one is not None and await moves.suspended(one, "EXPIRED")
        floor.ledger.notify(moves.changes)
    return expired


async def _give_up_sending(floor: ExecutionContext, attempt_id: UUID) -> OrderAttempt | None:
    """Whoever sent it has had his time; None when it is resolved already."""
    async with floor.database.transaction() as tx:
        one = await lock_attempt(tx, attempt_id)
        moves = AttemptTransitions(tx, floor.bus, floor.config, floor.clock.now())
        if one is not None and one.state is AttemptState.SENT:
            await moves.unknown(one, "whoever sent it did not tell how it ended")
            one = msgspec.structs.replace(one, state=AttemptState.UNKNOWN)
    floor.ledger.notify(moves.changes)
    return one if one is not None and one.state is AttemptState.UNKNOWN else None


async def _resolve(floor: ExecutionContext, one: OrderAttempt, order_id: str | None) -> Answer:
    if order_id is not None:  # the venue's own news have named it meanwhile
        await _accept(floor, one, order_from_ack(one, order_id))
        return "accepted"
    looked_at = floor.clock.now()
    rows = await floor.database.fetch(SQL.known_orders, one.broker, one.symbol, one.id)
    known = frozenset(row["broker_order_id"] for row in rows)
    if one.sent_at is None:
        raise AssertionError("it was sent")
    found = await floor.broker.find_order(one.request, one.sent_at, known)
    if len(found.candidates) == 1:
        await _accept(floor, one, found.candidates[0])
        return "accepted"
    if found.candidates:
        await _ask_a_person(floor, one, found.candidates)
        return "ambiguous"
    if looked_at - one.sent_at < timedelta(seconds=floor.config.absent_after_s):
        return "waiting"
    await _give_up(floor, one, looked_at)
    return "absent"


async def _accept(floor: ExecutionContext, one: OrderAttempt, order: BrokerOrder) -> None:
    async with floor.database.transaction() as tx:
        again = await lock_attempt(tx, one.id)
        if again is None:
            raise AssertionError("an attempt does not go away")
        moves = AttemptTransitions(tx, floor.bus, floor.config, floor.clock.now())
        await moves.accepted(again, order.broker_order_id)
        moves.changes += await floor.ledger.apply_order(tx, order, one.id)
    floor.ledger.notify(moves.changes)
    log.info("an unknown attempt was placed", attempt=str(one.id), order=order.broker_order_id)


async def _give_up(floor: ExecutionContext, one: OrderAttempt, looked_at: datetime) -> None:
    async with floor.database.transaction() as tx:
        again = await lock_attempt(tx, one.id)
        if again is None:
            raise AssertionError("an attempt does not go away")
        moves = AttemptTransitions(tx, floor.bus, floor.config, floor.clock.now())
        await moves.absent(again, f"the venue did not have it at {looked_at:%H:%M:%S} UTC")
    floor.ledger.notify(moves.changes)
    log.info("an unknown attempt was never placed", attempt=str(one.id))


async def _ask_a_person(
    floor: ExecutionContext, one: OrderAttempt, candidates: tuple[BrokerOrder, ...]
) -> None:
    names = ", ".join(order.broker_order_id for order in candidates)
    text = (
        f"orders {names} all fit; look at the venue, then: "
        f"qts orders resolve {one.id} --as ORDER_ID or --as absent"
    )
    if await floor.database.execute(SQL.flag_for_operator, one.id, text) != "UPDATE 0":
        log.error("a person has to choose", attempt=str(one.id), symbol=one.symbol, reason=text)


async def _refuse_taken(tx: Connection, one: OrderAttempt, order_id: str) -> None:
    row = await tx.fetchrow(
        "SELECT order_attempt_id, symbol, side FROM broker_order "
        "WHERE broker = $1 AND broker_order_id = $2",
        one.broker,
        order_id,
    )
    if row is None:
        return
    if row["order_attempt_id"] not in (None, one.id):
        raise RefusedError(f"order {order_id} belongs to attempt {row['order_attempt_id']}")
    if (row["symbol"], row["side"]) != (one.symbol, one.side):
        raise RefusedError(
            f"order {order_id} is {row['side']} {row['symbol']}; "
            f"the attempt was {one.side} {one.symbol}"
        )
