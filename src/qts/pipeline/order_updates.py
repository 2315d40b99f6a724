"""What the orders room changed, told to everybody else: events, the world, the stops, the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from qts import telemetry
from qts.cache import Cache
from qts.cache import Invalidation as CacheChange
from qts.domain import AttemptState, Clock, OperationError, OrderState
from qts.events import EventEngine, Payload
from qts.events import payloads as p
from qts.orders import AttemptChanged, FillApplied, OrderChanged, OrderUpdate, SuspensionChanged
from qts.pipeline.act import IntentTracker
from qts.pipeline.portfolio import Portfolio

log = telemetry.logger("app")

_NOTICES = {
    AttemptState.ACKED: "ORDER_SENT",
    AttemptState.REJECTED: "ORDER_REJECTED",
    AttemptState.ABSENT: "ORDER_REJECTED",
    AttemptState.SUSPENDED: "ORDER_CANCELLED",
}


class OrderUpdatePublisher:
    """An OnChange for one loop; `hold` tells the stops what is held."""

    def __init__(
        self,
        engine: EventEngine,
        world: Portfolio,
        outcomes: IntentTracker,
        cache: Cache,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._world = world
        self._outcomes = outcomes
        self._cache = cache
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.hold: Callable[[], None] = lambda: None
        self.changed: Callable[[], None] = lambda: None
        self.trip: Callable[[str, str], None] = lambda _code, _text: None
        self.fills = 0
        self._closed = False

    def __call__(self, change: OrderUpdate) -> None:
        self.changed()
        match change:
            case FillApplied(counted=True):
                self._filled(change)
            case AttemptChanged():
                self._attempt(change)
            case OrderChanged(state=OrderState.CANCELLED):
                self.emit(
                    "ORDER_CANCELLED",
                    p.OrderUpdatePayload(order_id=change.order_id, symbol=change.symbol),
                )
            case SuspensionChanged(suspended=True):
                self.trip("FS111", f"{change.symbol}: {change.code}")
            case _:
                pass
        self._outcomes.note(change)

    def emit(self, name: str, payload: Payload) -> None:
        """Into its lane without ever holding the loop up."""
        if self._closed:
            return
        event = self._engine.new_event(name, payload, "orders")
        if not self._engine.try_publish(event):
            self._later(self._engine.publish_async(event))

    async def close(self) -> None:
        """No event from here on: what the last look at the books finds is for the books alone."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _filled(self, change: FillApplied) -> None:
        self.fills += 1
        self._world.apply_fill(change)
        self.hold()
        fill = change.fill
        told = p.FillPayload(
            order_id=fill.broker_order_id,
            symbol=fill.symbol,
            filled_qty=float(fill.quantity),
            filled_price=float(fill.price),
            filled_time=_seconds(fill.at),
            side=fill.side,
            fee=float(fill.fee),
        )
        self.emit("FILL_CONFIRMED", told)
        self.emit(
            "POSITION_UPDATE",
            p.PositionUpdate(
                symbol=fill.symbol,
                qty=float(change.position),
                average_price=float(change.average_price),
            ),
        )
        for kind, name in (("position", fill.symbol), ("risk", "account")):
            self._later(self._forget(CacheChange(kind, name)))  # type: ignore[arg-type]

    def _attempt(self, change: AttemptChanged) -> None:
        if name := _NOTICES.get(change.state):
            self.emit(
                name,
                p.OrderUpdatePayload(
                    order_id=change.order_id or str(change.attempt_id),
                    symbol=change.symbol,
                    reason=change.code or change.reason,
                ),
            )
        self._later(self._forget(CacheChange("order", str(change.intent_id))))

    async def _forget(self, change: CacheChange) -> None:
        try:
            await self._cache.invalidate(change)
        except OperationError as error:
            log.warning("the cache was not told of a change", kind=change.kind, error=str(error))

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _seconds(moment: datetime) -> float:
    return moment.timestamp()
