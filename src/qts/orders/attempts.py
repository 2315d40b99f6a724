"""Transitions of an order attempt, and suspension of a symbol: no new orders until it is resumed.

A transition is one transaction with the outbox event that reports it, and a compare-and-set: an
attempt that another process has moved meanwhile stays as it is, and the method returns False. The
state diagram is in qts/domain/orders.py.

ACTIVE ──an outcome is unknown──▶ SUSPENDED (UNKNOWN) ──resolved──▶ ACTIVE
   ├──the venue blocks us───────▶ SUSPENDED (BLOCKED), all symbols ──┐
   ├──the operator──────────────▶ SUSPENDED (BY_HAND) ──the operator─┤
   └──the operator, or a stop
      whose exits fail──────────▶ SUSPENDED (FROZEN) ───the operator─┴▶ ACTIVE

The function market_stop in the database says which orders pass a suspension.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database, Row
from qts.domain import (
    AccountKey,
    AttemptState,
    IntentType,
    OrderRequest,
    RefusedError,
    Side,
    name_choices,
)
from qts.orders.config import OrdersConfig
from qts.orders.ledger_values import SQL, AttemptChanged, OrderUpdate, SuspensionChanged
from qts.orders.messages import (
    AttemptEvent,
    CancelOrder,
    CreateOrderAttempt,
    MarketSuspended,
    OrderAbsent,
    OrderAccepted,
    OrderRejected,
    OrderSuspended,
    OrderThrottled,
    OrderUnknown,
)
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, TRADE_EXIT, EventBus, OutboxEvent, uuid7
from qts.risk import OrderProposal

S = AttemptState
OPEN = (S.SENT, S.UNKNOWN)

_ended = telemetry.counter("everbit_order_attempt_total", "Attempts by their state.", ("status",))
_requests = msgspec.json.Decoder(OrderRequest)

ALL = "*"
UNKNOWN = "UNKNOWN"
BLOCKED = "BLOCKED"
BY_HAND = "BY_HAND"
FROZEN = "FROZEN"


class OrderAttempt(msgspec.Struct, frozen=True):
    """A row of order_attempt with its intent, locked by this transaction."""

    id: UUID
    intent_id: UUID
    no: int
    key: AccountKey
    request: OrderRequest
    state: AttemptState
    order_id: str | None
    sent_at: datetime | None
    strategy_key: str
    intent_type: IntentType
    side: Side
    quantity: Decimal
    expires_at: datetime
    is_cancelled: bool  # a cancel was requested

    @property
    def symbol(self) -> str:
        return self.request.symbol


async def lock_attempt(tx: Connection, attempt_id: UUID) -> OrderAttempt | None:
    row = await tx.fetchrow(SQL.attempt, attempt_id)
    if row is None:
        return None
    attempt = _attempt(row)
    # Read again under the lock: its previous holder may have requested the cancel.
    is_cancelled: bool = await tx.fetchval(SQL.is_cancel_requested, attempt.intent_id)
    return msgspec.structs.replace(attempt, is_cancelled=is_cancelled)


async def mark_sent(
    database: Database, key: AccountKey, attempt_id: UUID, now: datetime, epoch: int
) -> OrderAttempt | None:
    """Move an attempt of this account to SENT durably unless something stops it; idempotent."""
    rows = await database.fetch_idempotent(SQL.send, attempt_id, now, *key, epoch)
    return _attempt(rows[0]) if rows else None


async def stop_code(tx: Connection, attempt: OrderAttempt) -> str | None:
    """Return the code of what stops the attempt: switch, fail-safe, suspension; else None."""
    code: str | None = await tx.fetchval(
        SQL.stop_code, *attempt.key, attempt.strategy_key, attempt.intent_type, attempt.symbol
    )
    return code


def _attempt(row: Row) -> OrderAttempt:
    return OrderAttempt(
        id=row["id"],
        intent_id=row["order_intent_id"],
        no=row["attempt_no"],
        key=AccountKey(row["broker"], row["account"]),
        request=_requests.decode(row["request"]),
        state=S(row["status"]),
        order_id=row["broker_order_id"],
        sent_at=row["sent_at"],
        strategy_key=row["strategy_key"],
        intent_type=IntentType(row["intent_type"]),
        side=Side(row["side"]),
        quantity=row["quantity"],
        expires_at=row["expires_at"],
        is_cancelled=row["cancel_requested_at"] is not None,
    )


class AttemptTransitions:
    """State transitions in one transaction; `changes` are published after its commit."""

    def __init__(self, tx: Connection, bus: EventBus, config: OrdersConfig, now: datetime) -> None:
        self._tx = tx
        self._bus = bus
        self._config = config
        self._now = now
        self.changes: list[OrderUpdate] = []

    async def suspended(self, attempt: OrderAttempt, code: str) -> bool:
        """Stop it before it is sent."""
        if not await self._move(attempt, (S.PREPARED,), S.SUSPENDED, code=code):
            return False
        await self._end_intent(attempt, code)
        await self._publish(attempt, OrderSuspended, code=code)
        return True

    async def accepted(self, attempt: OrderAttempt, order_id: str) -> bool:
        """Record its broker order; a cancel requested meanwhile follows now."""
        if not await self._move(attempt, OPEN, S.ACKED, order_id=order_id):
            return False
        await self._publish(attempt, OrderAccepted, broker_order_id=order_id)
        if attempt.is_cancelled:
            await self._bus.publish(self._tx, cancel_event(attempt))
        return True

    async def rejected(self, attempt: OrderAttempt, code: str, text: str) -> bool:
        if not await self._move(attempt, OPEN, S.REJECTED, code=code, text=text):
            return False
        await self._end_intent(attempt, code or "REJECTED")
        await self._publish(attempt, OrderRejected, code=code, reason=text)
        return True

    async def absent(self, attempt: OrderAttempt, text: str) -> bool:
        if not await self._move(attempt, (S.UNKNOWN,), S.ABSENT, code="ABSENT", text=text):
            return False
        await self._end_intent(attempt, "ABSENT")
        await self._publish(attempt, OrderAbsent, code="ABSENT", reason=text)
        return True

    async def unknown(self, attempt: OrderAttempt, text: str) -> bool:
        """Record an unknown outcome and suspend the symbol."""
        if not await self._move(attempt, (S.SENT,), S.UNKNOWN, code="UNKNOWN", text=text):
            return False
        await self._publish(attempt, OrderUnknown, code="UNKNOWN", reason=text)
        await self.suspend(attempt.key, attempt.symbol, UNKNOWN, text)
        return True

    async def not_placed(
        self, attempt: OrderAttempt, code: str, text: str, pause_s: float | None = None
    ) -> bool:
        """Record that it was not placed; another attempt follows while the signal is fresh."""
        if attempt.state is S.UNKNOWN:  # declared unknown meanwhile
            return await self.absent(attempt, text)
        delay_s = self._delay_s(attempt, pause_s)
        due_at = self._now + timedelta(seconds=delay_s)
        if not await self._move(
            attempt, (S.SENT,), S.THROTTLED, code=code, text=text, due_at=due_at
        ):
            return False
        following: UUID | None = None
        if attempt.is_cancelled:
            await self._end_intent(attempt, "CANCELLED")
        elif attempt.no > self._config.max_throttles:
            await self._end_intent(attempt, code)
        elif due_at >= attempt.expires_at:
            await self._end_intent(attempt, "EXPIRED")
        else:
            following = await self._follow(attempt, delay_s)
        if following is None:
            self.changes.append(msgspec.structs.replace(self.changes.pop(), is_last=True))
        await self._publish(
            attempt, OrderThrottled, code=code, reason=text, next_attempt_id=following
        )
        return True

    async def suspend(self, key: AccountKey, symbol: str, code: str, text: str) -> None:
        """Suspend a symbol; report it unless it was suspended before."""
        why = code, text, self._now
        if await self._tx.execute(SQL.suspend_market, *key, symbol, *why) != "INSERT 0 0":
            payload = MarketSuspended(symbol=symbol, code=code, reason=text)
            event = OutboxEvent.of(TRADE_EVENT, payload, ("Market", symbol), account=key)
            await self._bus.publish(self._tx, event)
            self.changes.append(SuspensionChanged(symbol=symbol, suspended=True, code=code))

    async def _follow(self, attempt: OrderAttempt, delay_s: float) -> UUID:
        following, identifier = uuid7(), new_client_order_id()
        request = msgspec.structs.replace(attempt.request, client_order_id=identifier)
        await self._tx.execute(
            SQL.add_attempt,
            following,
            attempt.intent_id,
            attempt.no + 1,
            *attempt.key,
            attempt.symbol,
            identifier,
            request,
        )
        # A separate aggregate: while it waits it delays no other entry of the symbol.
        stream = TRADE_EXIT if attempt.intent_type.is_exit else TRADE_COMMAND
        event = OutboxEvent.of(
            stream,
            CreateOrderAttempt(following),
            ("OrderAttempt", str(following)),
            delay_s=delay_s,
            account=attempt.key,
            market=attempt.symbol,
            strategy_key=attempt.strategy_key,
        )
        await self._bus.publish(self._tx, event)
        return following

    def _delay_s(self, attempt: OrderAttempt, requested_s: float | None) -> float:
        config = self._config
        doubled_s: float = config.throttle_base_s * 2.0 ** (attempt.no - 1)
        return max(requested_s or 0.0, min(doubled_s, config.throttle_max_s))

    async def _move(
        self,
        attempt: OrderAttempt,
        from_states: tuple[AttemptState, ...],
        to: AttemptState,
        *,
        order_id: str | None = None,
        code: str = "",
        text: str = "",
        due_at: datetime | None = None,
    ) -> bool:
        text = telemetry.redact_text(text).replace("\0", "\\0")[:2000]
        status = await self._tx.execute(
            SQL.move_attempt, attempt.id, list(from_states), to, order_id, code, text, due_at
        )
        if status == "UPDATE 0":
            return False
        self.changes.append(moved(attempt, to, order_id, code, text))
        return True

    async def _end_intent(self, attempt: OrderAttempt, code: str) -> None:
        await self._tx.execute(SQL.end_intent, attempt.intent_id, "CANCELED", code)

    async def _publish(self, attempt: OrderAttempt, kind: type[AttemptEvent], **more: Any) -> None:
        payload = kind(
            order_intent_id=attempt.intent_id,
            order_attempt_id=attempt.id,
            attempt_no=attempt.no,
            strategy_key=attempt.strategy_key,
            intent_type=attempt.intent_type,
            symbol=attempt.symbol,
            side=attempt.side,
            quantity=attempt.quantity,
            identifier=attempt.request.client_order_id,
            **more,
        )
        event = OutboxEvent.of(
            TRADE_EVENT,
            payload,
            ("Market", attempt.symbol),
            account=attempt.key,
            market=attempt.symbol,
            strategy_key=attempt.strategy_key,
        )
        await self._bus.publish(self._tx, event)


def moved(
    attempt: OrderAttempt,
    to: AttemptState,
    order_id: str | None = None,
    code: str = "",
    text: str = "",
) -> AttemptChanged:
    _ended.labels(to).inc()
    return AttemptChanged(
        intent_id=attempt.intent_id,
        attempt_id=attempt.id,
        strategy_key=attempt.strategy_key,
        symbol=attempt.symbol,
        side=attempt.side,
        quantity=attempt.quantity,
        state=to,
        order_id=order_id,
        code=code,
        reason=text,
        price=attempt.request.price,
    )


def new_client_order_id() -> str:
    """Return a new client order id; each attempt has its own, never reused."""
    return str(uuid7())


def create_event(attempt_id: UUID, key: AccountKey, proposal: OrderProposal) -> OutboxEvent:
    """Return the command to place an attempt: an exit waits for no other order."""
    is_exit = proposal.intent_type.is_exit
    return OutboxEvent.of(
        TRADE_EXIT if is_exit else TRADE_COMMAND,
        CreateOrderAttempt(attempt_id),
        ("OrderAttempt", str(attempt_id)) if is_exit else ("Market", proposal.symbol),
        account=key,
        market=proposal.symbol,
        strategy_key=proposal.strategy_key,
    )


def cancel_event(attempt: OrderAttempt) -> OutboxEvent:
    return OutboxEvent.of(
        TRADE_EXIT,
        CancelOrder(attempt.id),
        ("OrderAttempt", str(attempt.id)),
        account=attempt.key,
        market=attempt.symbol,
    )


class SymbolSuspension(msgspec.Struct, frozen=True):
    """Why and since when a symbol is suspended."""

    symbol: str  # * is the whole venue
    code: str
    detail: str
    since: datetime


async def resume_symbol(
    tx: Connection, key: AccountKey, symbol: str, only: str | None = None
) -> bool:
    """Resume a symbol; return False when it was not suspended, or not for `only`."""
    return await tx.execute(SQL.resume_market, *key, symbol, only) != "UPDATE 0"


async def resume_resolved(tx: Connection, key: AccountKey, symbol: str) -> bool:
    """Resume unless an outcome is unknown again, checked under the lock of `suspend`."""
    await tx.execute(SQL.lock_market, *key, symbol)
    if await tx.fetchval(SQL.count_unknown, *key, symbol):
        return False
    return await resume_symbol(tx, key, symbol, only=UNKNOWN)


async def list_suspensions(database: Database, key: AccountKey) -> list[SymbolSuspension]:
    rows = await database.fetch(
        "SELECT symbol, reason_code, detail, suspended_at FROM market_state "
        "WHERE broker = $1 AND account = $2 AND trade_status = 'SUSPENDED' ORDER BY symbol",
        *key,
    )
    return [SymbolSuspension(*row) for row in rows]


async def resume_manually(database: Database, key: AccountKey, symbol: str) -> None:
    """Resume on behalf of the operator; refuse while an attempt is unknown."""
    async with database.transaction() as tx:
        await tx.execute(SQL.lock_market, *key, symbol)
        unknown = await tx.fetchval(SQL.count_unknown, *key, symbol)
        if unknown:
            raise RefusedError(
                f"{symbol} has {unknown} attempts with an unknown outcome; "
                "resolve them first: qts orders list --state UNKNOWN"
            )
        if await resume_symbol(tx, key, symbol):
            return
    suspended = [found.symbol for found in await list_suspensions(database, key)]
    known = name_choices(symbol, suspended)
    raise RefusedError(f"{symbol} is not suspended at {key.broker}; suspended: {known}")
