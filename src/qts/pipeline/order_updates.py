"""Order updates of the ledger, passed on: P0 events, positions, stops and cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from qts import telemetry
from qts.cache import Cache, Invalidation
from qts.domain import AttemptState, OperationError, OrderState
from qts.events import EventEngine, Payload
from qts.events import payloads as p
from qts.orders import AttemptChanged, FillApplied, OrderChanged, OrderUpdate, SuspensionChanged
from qts.pipeline.act import IntentTracker
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion

log = telemetry.logger("pipeline")

_EVENTS = {
    AttemptState.ACKED: "ORDER_SENT",
    AttemptState.REJECTED: "ORDER_REJECTED",
    AttemptState.ABSENT: "ORDER_REJECTED",
    AttemptState.SUSPENDED: "ORDER_CANCELLED",
}


_NOT_PLACED = frozenset(
    (AttemptState.REJECTED, AttemptState.ABSENT, AttemptState.SUSPENDED, AttemptState.THROTTLED)
)


class OrderUpdatePublisher:
    """An `OrderListener` for one event loop; `trip` raises a fail-safe code."""

    def __init__(
        self,
        engine: EventEngine,
        positions: PositionSync,
        tracker: IntentTracker,
        cache: Cache,
        version: AccountVersion,
        trip: Callable[[str, str], None],
    ) -> None:
        self._engine = engine
        self._positions = positions
        self._tracker = tracker
        self._cache = cache
        self._version = version
        self._trip = trip
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.fills = 0

    def __call__(self, change: OrderUpdate) -> None:
        self._version.advance()
        match change:
            case FillApplied(counted=True):
                self._filled(change)
            case AttemptChanged():
                self._attempt_changed(change)
                if change.state in _NOT_PLACED:
                    self._start(self._release_owner(change.symbol))
            case OrderChanged(state=OrderState.CANCELLED):
                self._start(self._release_owner(change.symbol))
                self.emit(
                    "ORDER_CANCELLED",
                    p.OrderUpdatePayload(order_id=change.order_id, symbol=change.symbol),
                )
            case SuspensionChanged(suspended=True):
                self._trip("FS111", f"{change.symbol}: {change.code}")
            case _:
                pass
        self._tracker.note(change)

    def emit(self, name: str, payload: Payload) -> None:
        """Publish without blocking the loop; a full lane is waited for in a task."""
        if self._closed:
            return
        event = self._engine.new_event(name, payload, "orders")
        if not self._engine.try_publish(event):
            self._start(self._engine.publish_async(event))

    async def close(self) -> None:
        """Stop publishing: what the final reconciliation finds changes the ledger alone."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _filled(self, change: FillApplied) -> None:
        self.fills += 1
        self._positions.apply_fill(change)
        fill = change.fill
        payload = p.FillPayload(
            order_id=fill.broker_order_id,
            symbol=fill.symbol,
            filled_qty=float(fill.quantity),
            filled_price=float(fill.price),
            filled_time=fill.at.timestamp(),
            side=fill.side,
            fee=float(fill.fee),
        )
        self.emit("FILL_CONFIRMED", payload)
        self.emit(
            "POSITION_UPDATE",
            p.PositionUpdate(
                symbol=fill.symbol,
                qty=float(change.position),
                average_price=float(change.average_price),
            ),
        )
        self._start(self._invalidate(Invalidation("position", fill.symbol)))
        self._start(self._invalidate(Invalidation("risk", "account")))

    def _attempt_changed(self, change: AttemptChanged) -> None:
        if name := _EVENTS.get(change.state):
            self.emit(
                name,
                p.OrderUpdatePayload(
                    order_id=change.order_id or str(change.attempt_id),
                    symbol=change.symbol,
                    reason=change.code or change.reason,
                ),
            )
        self._start(self._invalidate(Invalidation("order", str(change.intent_id))))

    async def _release_owner(self, symbol: str) -> None:
        try:
            await self._positions.release_owner(symbol)
        except OperationError as error:
            log.warning("owner of a symbol not released", symbol=symbol, error=str(error))

    async def _invalidate(self, change: Invalidation) -> None:
        try:
            await self._cache.invalidate(change)
        except OperationError as error:
            log.warning("cache invalidation failed", kind=change.kind, error=str(error))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
