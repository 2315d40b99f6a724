"""What becomes of an attempt, each change in one transaction with the event that tells of it.

Every function moves by compare-and-set: an attempt that somebody else has moved meanwhile stays
where it is, and the answer is False. The drawing stands in qts/domain/trading.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database, Row
from qts.domain import AttemptState, IntentType, OrderRequest, Side
from qts.orders import suspensions
from qts.orders.config import OrdersConfig
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
from qts.orders.queries import SQL
from qts.orders.updates import AttemptChanged, OrderUpdate, SuspensionChanged
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, EventBus, OutboxEvent, uuid7

S = AttemptState
OPEN = (S.SENT, S.UNKNOWN)

_ended = telemetry.counter("everbit_order_attempt_total", "Attempts by their state.", ("status",))
_requests = msgspec.json.Decoder(OrderRequest)


class OrderAttempt(msgspec.Struct, frozen=True):
    """A row of order_attempt with what it is for, locked by this transaction."""

    id: UUID
    intent_id: UUID
    no: int
    broker: str
    request: OrderRequest
    state: AttemptState
    order_id: str | None
    sent_at: datetime | None
    strategy_key: str
    intent_type: IntentType
    side: Side
    quantity: Decimal
    expires_at: datetime
    is_cancelled: bool  # somebody asked for it

    @property
    def symbol(self) -> str:
        return self.request.symbol


async def lock_attempt(tx: Connection, attempt_id: UUID) -> OrderAttempt | None:
    row = await tx.fetchrow(SQL.attempt, attempt_id)
    if row is None:
        return None
    one = _attempt(row)
    # Asked once more: whoever held it may have been the one who asks for its cancel.
    is_cancelled: bool = await tx.fetchval(SQL.is_cancel_requested, one.intent_id)
    return msgspec.structs.replace(one, is_cancelled=is_cancelled)


async def mark_sent(database: Database, attempt_id: UUID, now: datetime) -> OrderAttempt | None:
    """Move it to SENT, for good, unless anything stops it. Said twice it is moved once."""
    rows = await database.fetch_idempotent(SQL.send, attempt_id, now)
    return _attempt(rows[0]) if rows else None


async def stop_code(tx: Connection, one: OrderAttempt) -> str | None:
    """A switch, the fail-safe or its market, as a code; None when it may leave."""
    code: str | None = await tx.fetchval(
        SQL.stop_code, one.strategy_key, one.intent_type, one.broker, one.symbol
    )
    return code


def _attempt(row: Row) -> OrderAttempt:
    return OrderAttempt(
        id=row["id"],
        intent_id=row["order_intent_id"],
        no=row["attempt_no"],
        broker=row["broker"],
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
    """The moves, for one broker. Changes are gathered in `changes`, to be told after the commit."""

    def __init__(self, tx: Connection, bus: EventBus, config: OrdersConfig, now: datetime) -> None:
        self._tx = tx
        self._bus = bus
        self._config = config
        self._now = now
        self.changes: list[OrderUpdate] = []

    async def sent(self, one: OrderAttempt) -> bool:
        return await self._move(one, (S.PREPARED,), S.SENT, sent_at=self._now)

    async def suspended(self, one: OrderAttempt, code: str) -> bool:
        """Stopped before it left; the market is not."""
        if not await self._move(one, (S.PREPARED,), S.SUSPENDED, code=code):
            return False
        await self._end_intent(one, code)
        await self._tell(one, OrderSuspended, code=code)
        return True

    async def accepted(self, one: OrderAttempt, order_id: str) -> bool:
        """The venue has it. Whoever asked for a cancel meanwhile gets one now."""
        if not await self._move(one, OPEN, S.ACKED, order_id=order_id):
            return False
        await self._tell(one, OrderAccepted, broker_order_id=order_id)
        if one.is_cancelled:
            await self._bus.publish(self._tx, cancel_event(one.id, one.symbol))
        return True

    async def rejected(self, one: OrderAttempt, code: str, text: str) -> bool:
        if not await self._move(one, OPEN, S.REJECTED, code=code, text=text):
            return False
        await self._end_intent(one, code or "REJECTED")
        await self._tell(one, OrderRejected, code=code, reason=text)
        return True

    async def absent(self, one: OrderAttempt, text: str) -> bool:
        if not await self._move(one, (S.UNKNOWN,), S.ABSENT, code="ABSENT", text=text):
            return False
        await self._end_intent(one, "ABSENT")
        await self._tell(one, OrderAbsent, code="ABSENT", reason=text)
        return True

    async def unknown(self, one: OrderAttempt, text: str) -> bool:
        """It may have been placed: nothing new on this market until that is known."""
        if not await self._move(one, (S.SENT,), S.UNKNOWN, code="UNKNOWN", text=text):
            return False
        await self._tell(one, OrderUnknown, code="UNKNOWN", reason=text)
        await self.suspend(one.broker, one.symbol, suspensions.UNKNOWN, text)
        return True

    async def not_placed(
        self, one: OrderAttempt, code: str, text: str, pause_s: float | None = None
    ) -> bool:
        """It certainly was not placed: another attempt takes over, while the signal is fresh."""
        if one.state is S.UNKNOWN:  # somebody gave it up before we knew
            return await self.absent(one, text)
        delay_s = self._pause_s(one, pause_s)
        due_at = self._now + timedelta(seconds=delay_s)
        if not await self._move(one, (S.SENT,), S.THROTTLED, code=code, text=text, due_at=due_at):
            return False
        following: UUID | None = None
        if one.is_cancelled:
            await self._end_intent(one, "CANCELLED")
        elif one.no > self._config.max_throttles:
            await self._end_intent(one, code)
        elif due_at >= one.expires_at:
            await self._end_intent(one, "EXPIRED")
        else:
            following = await self._follow(one, delay_s)
        await self._tell(one, OrderThrottled, code=code, reason=text, next_attempt_id=following)
        return True

    async def suspend(self, broker: str, symbol: str, code: str, text: str) -> None:
        why = suspensions.SymbolSuspension(symbol, code, text, self._now)
        if await suspensions.suspend_symbol(self._tx, broker, symbol, why):
            told = MarketSuspended(symbol=symbol, code=code, reason=text)
            await self._bus.publish(self._tx, OutboxEvent.of(TRADE_EVENT, told, ("Market", symbol)))
            self.changes.append(SuspensionChanged(symbol=symbol, suspended=True, code=code))

    async def _follow(self, one: OrderAttempt, delay_s: float) -> UUID:
        following, identifier = uuid7(), new_client_order_id()
        request = msgspec.structs.replace(one.request, client_order_id=identifier)
        await self._tx.execute(
            SQL.add_attempt,
            following,
            one.intent_id,
            one.no + 1,
            one.broker,
            one.symbol,
            identifier,
            request,
        )
        # In a line of its own: it must not hold up an exit of the same market while it waits.
        event = OutboxEvent.of(
            TRADE_COMMAND,
            CreateOrderAttempt(following),
            ("OrderAttempt", str(following)),
            delay_s=delay_s,
            market=one.symbol,
            strategy_key=one.strategy_key,
        )
        await self._bus.publish(self._tx, event)
        return following

    def _pause_s(self, one: OrderAttempt, asked_s: float | None) -> float:
        config = self._config
        doubled_s: float = config.throttle_base_s * 2.0 ** (one.no - 1)
        return max(asked_s or 0.0, min(doubled_s, config.throttle_max_s))

    async def _move(
        self,
        one: OrderAttempt,
        from_states: tuple[AttemptState, ...],
        to: AttemptState,
        *,
        order_id: str | None = None,
        code: str = "",
        text: str = "",
        due_at: datetime | None = None,
        sent_at: datetime | None = None,
    ) -> bool:
        text = telemetry.redact_text(text).replace("\0", "\\0")[:2000]
        told = await self._tx.execute(
            SQL.move_attempt, one.id, list(from_states), to, order_id, code, text, due_at, sent_at
        )
        if told == "UPDATE 0":
            return False
        self.changes.append(moved(one, to, order_id, code, text))
        return True

    async def _end_intent(self, one: OrderAttempt, code: str) -> None:
        await self._tx.execute(SQL.end_intent, one.intent_id, "CANCELED", code)

    async def _tell(self, one: OrderAttempt, kind: type[AttemptEvent], **more: Any) -> None:
        payload = kind(
            order_intent_id=one.intent_id,
            order_attempt_id=one.id,
            attempt_no=one.no,
            strategy_key=one.strategy_key,
            intent_type=one.intent_type,
            symbol=one.symbol,
            side=one.side,
            quantity=one.quantity,
            identifier=one.request.client_order_id,
            **more,
        )
        event = OutboxEvent.of(
            TRADE_EVENT,
            payload,
            ("Market", one.symbol),
            market=one.symbol,
            strategy_key=one.strategy_key,
        )
        await self._bus.publish(self._tx, event)


def moved(
    one: OrderAttempt,
    to: AttemptState,
    order_id: str | None = None,
    code: str = "",
    text: str = "",
) -> AttemptChanged:
    _ended.labels(to).inc()
    return AttemptChanged(
        intent_id=one.intent_id,
        attempt_id=one.id,
        symbol=one.symbol,
        state=to,
        order_id=order_id,
        code=code,
        reason=text,
    )


def new_client_order_id() -> str:
    """Ours, fresh for every attempt, never used again whatever becomes of it."""
    return str(uuid7())


def cancel_event(attempt_id: UUID, symbol: str) -> OutboxEvent:
    return OutboxEvent.of(TRADE_COMMAND, CancelOrder(attempt_id), ("Market", symbol), market=symbol)
