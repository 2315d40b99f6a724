"""Trade events of the outbox as the safety net of reports: each change of an order is reported.

    ledger, one commit: fill, FillReceived ─┬▶ lane P0 ─▶ report ─▶ JetStream
                                            └▶ worker: done once the report is stored there

An execution role that is killed between the commit and the report leaves the event unhandled. The
worker of the next one finds no report of it and makes one from the ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Fill, OrderSnapshot, OrderState, Side
from qts.outbox import TRADE_EVENT, Delivery, EventDispatcher, RetryableError
from qts.pipeline import StrategyUpdate
from qts.roles.remote_strategies import ReportSender

STORED_TIMEOUT_S = 20.0

_STATES = {
    "OrderAccepted": "ACKED",
    "OrderRejected": "REJECTED",
    "OrderThrottled": "THROTTLED",
    "OrderUnknown": "UNKNOWN",
    "OrderAbsent": "ABSENT",
    "OrderSuspended": "SUSPENDED",
    "OrderClosed": "CANCELLED",
}
_ORDER = """
SELECT i.id::text AS intent_id, i.strategy_key, i.symbol, i.side, i.price,
       (a.request_json ->> 'quantity')::numeric AS quantity, COALESCE(o.applied, 0) AS filled
  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE a.id = $1
"""

log = telemetry.logger("roles")


class _Happening(msgspec.Struct, rename="camel"):
    """What the trade events have in common; a fill of an order that is not ours has no attempt."""

    order_attempt_id: UUID | None = None
    state: str = ""
    reason: str = ""
    trade_id: str = ""
    broker_order_id: str = ""
    quantity: Decimal = Decimal(0)
    price: Decimal = Decimal(0)
    fee: Decimal = Decimal(0)


class ReportedEvents:
    """Dispatcher around another one: a trade event is handled once its report is stored."""

    def __init__(
        self,
        inner: EventDispatcher,
        database: Database,
        sender: ReportSender,
        strategies: Collection[str],
        began: datetime,
    ) -> None:
        self._inner = inner
        self._database = database
        self._sender = sender
        self._strategies = strategies
        self._began = began

    def dispatch(self, delivery: Delivery) -> Awaitable[None]:
        handling = self._inner.dispatch(delivery)
        return self._reported(delivery, handling) if delivery.stream == TRADE_EVENT else handling

    async def _reported(self, delivery: Delivery, handling: Awaitable[None]) -> None:
        await handling
        kind = delivery.envelope.type
        if kind != "FillReceived" and kind not in _STATES:
            return
        happening = msgspec.json.decode(delivery.envelope.payload, type=_Happening)
        if happening.order_attempt_id is None or happening.state == OrderState.FILLED:
            return  # not an order of ours, or reported with its last fill
        row = await self._database.fetchrow(_ORDER, happening.order_attempt_id)
        if row is None or row["strategy_key"] not in self._strategies:
            return
        update = _update(kind, happening, row, delivery.envelope.occurred_at)
        is_own = delivery.envelope.occurred_at >= self._began
        if not is_own:
            log.warning("order change of an earlier process reported", symbol=row["symbol"])
            self._sender.add(row["strategy_key"], update)
        is_stored = await self._sender.wait_stored(update, STORED_TIMEOUT_S)
        if not is_stored and self._sender.is_closed:
            raise RetryableError("the execution role ends; the next one reports it")


def _update(kind: str, happening: _Happening, row: Any, at: datetime) -> StrategyUpdate:
    """Return what the strategy is called with, as the ledger has it."""
    side, symbol = Side(row["side"]), row["symbol"]
    remaining = max(row["quantity"] - row["filled"], Decimal(0))
    is_fill = kind == "FillReceived"
    order = OrderSnapshot(
        intent_id=row["intent_id"],
        symbol=symbol,
        side=side,
        state=OrderState.FILLED if is_fill else _STATES[kind],
        filled=row["filled"],
        remaining=remaining,
        reason=happening.reason,
        price=row["price"],
        strategy_key=row["strategy_key"],
    )
    if not is_fill:
        return StrategyUpdate(None, order)
    fill = Fill(
        trade_id=happening.trade_id,
        broker_order_id=happening.broker_order_id,
        symbol=symbol,
        side=side,
        quantity=happening.quantity,
        price=happening.price,
        fee=happening.fee,
        at=at,
    )
    return StrategyUpdate(fill, None if remaining else order)
