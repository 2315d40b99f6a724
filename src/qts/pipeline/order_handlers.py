"""The one way from the ledger to the rest of a run: order updates in lane P0, and their handlers.

Updates are published in the order of their commits.

    FillReported    ─▶ FILL_RECEIVED                          the venue's report has arrived
    FillApplied     ─▶ POSITION_UPDATE, then FILL_PARTIAL or FILL_CONFIRMED
    AttemptChanged  ─▶ ORDER_SENT, ORDER_REJECTED or ORDER_CANCELLED
    OrderChanged    ─▶ ORDER_CANCELLED, where it ended its intent so

What an update means for portfolio, stops and strategies:

    FILL_RECEIVED      readings of the account that began before it are not taken
    POSITION_UPDATE    portfolio, stops, account version (and with it the cached account)
    FILL_PARTIAL       open orders, intent tracker, on_fill of the strategy
    FILL_CONFIRMED     the same, and its on_order with FILLED
    ORDER_SENT         account version, cached order, open orders, on_order
    ORDER_REJECTED     the same, intent tracker, owner of the symbol
    ORDER_CANCELLED    the same

The handlers run on the lane's thread. What belongs to the event loop is passed on to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from qts import telemetry
from qts.domain import AttemptState, Fill, OperationError, OrderSnapshot, OrderState, Side
from qts.events import AsyncPublisher, Event, EventPort, Priority
from qts.events import payloads as p
from qts.orders import (
    AttemptChanged,
    FillApplied,
    FillReported,
    IntentRef,
    OrderChanged,
    OrderUpdate,
    SuspensionChanged,
)
from qts.pipeline.act import IntentTracker
from qts.pipeline.cache_loader import AccountCacheWriter
from qts.pipeline.portfolio import cash_change
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.strategy_call import StrategyUpdate
from qts.risk import OrderProposal

log = telemetry.logger("pipeline")

_MAX_REMEMBERED = 10_000  # fills and intents, of which the latest may come again
_CLOSE_TIMEOUT_S = 5.0
_ENDED = {
    "REJECTED": "REJECTED",
    "ABSENT": "REJECTED",
    "SUSPENDED": "STOPPED",
    "CANCELLED": "CANCELLED",
}
_NOT_PLACED = frozenset(_ENDED) | {"THROTTLED"}

_EVENTS = {
    AttemptState.SENT: "ORDER_SENT",
    AttemptState.ACKED: "ORDER_SENT",
    AttemptState.UNKNOWN: "ORDER_SENT",
    AttemptState.REJECTED: "ORDER_REJECTED",
    AttemptState.ABSENT: "ORDER_REJECTED",
    AttemptState.THROTTLED: "ORDER_REJECTED",
    AttemptState.SUSPENDED: "ORDER_CANCELLED",
}


class OrderUpdatePublisher:
    """An `OrderListener` for one event loop; `trip` raises a fail-safe code."""

    def __init__(
        self,
        publisher: AsyncPublisher,
        positions: PositionSync,
        version: AccountVersion,
        trip: Callable[[str, str], None],
    ) -> None:
        self._publisher = publisher
        self._emit = publisher.emit
        self._positions = positions
        self._version = version
        self._trip = trip

    def __call__(self, change: OrderUpdate) -> None:
        if isinstance(change, FillApplied) and change.counted:
            self._positions.expect(change)
        if not self._publisher.is_closed:  # else the positions follow from the ledger
            self._publish(change)

    def _publish(self, change: OrderUpdate) -> None:
        match change:
            case FillReported():
                self._emit("FILL_RECEIVED", _fill_payload(change.fill))
            case FillApplied(counted=True):
                self._emit("POSITION_UPDATE", position_update(change))
                name = "FILL_PARTIAL" if change.remaining else "FILL_CONFIRMED"
                self._emit(name, fill_update(change))
            case AttemptChanged() if name := _EVENTS.get(change.state, ""):
                self._emit(name, _attempt_payload(change))
            case OrderChanged(closed=IntentRef() as intent, state=OrderState.CANCELLED):
                self._emit("ORDER_CANCELLED", _cancelled_payload(change, intent))
            case SuspensionChanged():
                self._version.advance()
                if change.suspended:
                    self._trip("FS111", f"{change.symbol}: {change.code}")
            case _:  # changes the account state alone
                self._version.advance()


def position_update(change: FillApplied) -> p.PositionUpdate:
    opened_at = change.opened_at
    return p.PositionUpdate(
        symbol=change.fill.symbol,
        qty=change.position,
        average_price=change.average_price,
        cash_change=cash_change(change.fill),
        opened_at=opened_at.timestamp() if opened_at is not None else None,
        trade_id=change.fill.trade_id,
    )


def fill_update(change: FillApplied) -> p.FillPayload:
    return _fill_payload(change.fill, change)


def _fill_payload(fill: Fill, applied: FillApplied | None = None) -> p.FillPayload:
    intent = applied.intent if applied is not None else None
    return p.FillPayload(
        order_id=fill.broker_order_id,
        symbol=fill.symbol,
        filled_qty=fill.quantity,
        filled_price=fill.price,
        filled_time=fill.at.timestamp(),
        side=fill.side,
        remaining_qty=applied.remaining if applied is not None else 0.0,
        fee=fill.fee,
        trade_id=fill.trade_id,
        intent_id=str(intent.intent_id) if intent else "",
        strategy_type=intent.strategy_key if intent else "",
    )


def _attempt_payload(change: AttemptChanged) -> p.OrderUpdatePayload:
    return p.OrderUpdatePayload(
        order_id=change.order_id or str(change.attempt_id),
        symbol=change.symbol,
        reason=change.code or change.reason,
        side=change.side,
        qty=change.quantity,
        price=change.price or 0.0,
        state=change.state,
        intent_id=str(change.intent_id),
        attempt_id=str(change.attempt_id),
        strategy_type=change.strategy_key,
        is_last=change.is_last,
    )


def _cancelled_payload(change: OrderChanged, intent: IntentRef) -> p.OrderUpdatePayload:
    return p.OrderUpdatePayload(
        order_id=change.order_id,
        symbol=change.symbol,
        reason="the rest was cancelled" if change.filled else "cancelled",
        side=change.side,
        qty=change.quantity or change.filled,
        state=change.state,
        filled_qty=change.filled,
        intent_id=str(intent.intent_id),
        attempt_id=str(change.attempt_id or ""),
        strategy_type=intent.strategy_key,
    )


class OrderEventHandler:
    """Built on the event loop; registers its handlers when constructed."""

    def __init__(
        self,
        engine: EventPort,
        positions: PositionSync,
        tracker: IntentTracker,
        account_cache: AccountCacheWriter,
        version: AccountVersion,
        runners: Mapping[str, StrategyRunner],
    ) -> None:
        self._engine = engine
        self._positions = positions
        self._portfolio = positions.portfolio
        self._tracker = tracker
        self._account_cache = account_cache
        self._version = version
        self._runners = runners
        self._ordering = threading.Lock()  # of what views show as open
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handled: OrderedDict[str, None] = OrderedDict()  # trade ids
        self._filled: OrderedDict[str, Decimal] = OrderedDict()  # by intent
        self._ended: OrderedDict[str, None] = OrderedDict()  # intents
        self._reported: OrderedDict[str, float] = OrderedDict()  # when, by trade id; for traces
        self._is_traced = telemetry.tracing()
        engine.on("FILL_RECEIVED", self._on_received)
        engine.on("POSITION_UPDATE", self._on_position)
        engine.on("FILL_PARTIAL", self._on_fill)
        engine.on("FILL_CONFIRMED", self._on_fill)
        engine.on("ORDER_SENT", self._on_order)
        engine.on("ORDER_REJECTED", self._on_order)
        engine.on("ORDER_CANCELLED", self._on_order)

    async def close(self) -> None:
        """Wait until P0 is handled, then for what its handlers started; at most five seconds each.

        What is not handled by then is taken from the ledger, after the stop.
        """
        drained = self._engine.wait_drained
        if not await asyncio.to_thread(drained, _CLOSE_TIMEOUT_S, Priority.P0):
            log.warning("P0 not drained; positions follow from the ledger")
        await asyncio.sleep(0)  # what is being passed on
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)

    # --- on the thread of P0 --------------------------------------------------------------------

    def _on_received(self, event: Event) -> None:
        self._positions.fill_reported()
        if self._is_traced:
            _remember(self._reported, event.payload.trade_id, event.timestamp)

    def _on_position(self, event: Event) -> None:
        try:
            self._positions.apply(event.payload)
        except BaseException:
            if event.retry_count >= event.max_retries:  # now a dead letter: the ledger decides
                self._positions.give_up(event.payload.trade_id)
            raise
        finally:
            self._version.advance()

    def _on_fill(self, event: Event) -> None:
        payload: p.FillPayload = event.payload
        if payload.trade_id in self._handled:  # a dead letter that was replayed
            return
        fill, remaining = _fill(payload), p.as_decimal(payload.remaining_qty)
        if payload.intent_id:
            known = self._portfolio.orders.get(payload.intent_id)
            before = self._filled.get(payload.intent_id, known.filled if known else Decimal(0))
            order = OrderSnapshot(
                intent_id=payload.intent_id,
                symbol=fill.symbol,
                side=fill.side,
                state=known.state if known and remaining else OrderState.FILLED,
                filled=before + fill.quantity,
                remaining=remaining,
                price=known.price if known else None,
                strategy_key=payload.strategy_type,
            )
            _remember(self._filled, payload.intent_id, order.filled)
            if known is not None or not remaining:
                self._set_order(order, is_open=bool(remaining))
            self._deliver(payload.strategy_type, StrategyUpdate(fill, None if remaining else order))
            self._on_loop(self._tracker.filled, UUID(payload.intent_id), fill.quantity)
            if not remaining:
                self._on_loop(
                    self._tracker.ended, UUID(payload.intent_id), "FILLED", "", order.filled
                )
        _remember(self._handled, payload.trade_id, None)
        if self._is_traced and payload.intent_id:
            self._trace_fill(payload, event.timestamp)

    def _trace_fill(self, payload: p.FillPayload, applied_at: float) -> None:
        """Record the way of a fill from its report into the portfolio, with its order's trace."""
        intent_id = UUID(payload.intent_id)
        if not telemetry.trace_id_of(intent_id):  # an order of another process or an earlier run
            return
        began_at = self._reported.pop(payload.trade_id, applied_at)
        with telemetry.span(
            "fill",
            follows=intent_id,
            began_ns=round(began_at * 1e9),
            trade_id=payload.trade_id,
            broker_order_id=payload.order_id,
        ):
            pass  # POSITION_UPDATE comes before FILL_*: the portfolio has it

    def _on_order(self, event: Event) -> None:
        payload: p.OrderUpdatePayload = event.payload
        self._version.advance()
        intent, state = UUID(payload.intent_id), payload.state
        self._on_loop(
            self._start, self._account_cache.order_changed, intent, payload.attempt_id, state
        )
        if state in _NOT_PLACED:
            self._on_loop(self._start, self._release_owner, payload.symbol)
        order = self._snapshot(payload)
        has_ended = state in _ENDED or payload.is_last
        self._set_order(order, is_open=not has_ended)
        self._deliver(payload.strategy_type, StrategyUpdate(None, order))
        if has_ended:
            ended = _ENDED.get(state, "REJECTED"), payload.reason, order.filled
            self._on_loop(self._tracker.ended, intent, *ended)

    def _snapshot(self, payload: p.OrderUpdatePayload) -> OrderSnapshot:
        known = self._portfolio.orders.get(payload.intent_id)
        quantity, price = p.as_decimal(payload.qty), p.as_decimal(payload.price)
        filled = max(
            p.as_decimal(payload.filled_qty),
            self._filled.get(payload.intent_id, Decimal(0)),
            known.filled if known else Decimal(0),
        )
        return OrderSnapshot(
            intent_id=payload.intent_id,
            symbol=payload.symbol,
            side=Side(payload.side),
            state=payload.state,
            filled=filled,
            remaining=max(quantity - filled, Decimal(0)),
            reason=payload.reason,
            price=price or (known.price if known else None),
            strategy_key=payload.strategy_type,
        )

    def _set_order(self, order: OrderSnapshot, *, is_open: bool) -> None:
        """Show the order in views, before a strategy is called with it or a cycle waits no longer.

        A report that comes after the end of its order does not open it again.
        """
        with self._ordering:
            if order.intent_id not in self._ended:
                self._portfolio.set_order(order, is_open=is_open and bool(order.remaining))
            if not is_open:
                _remember(self._ended, order.intent_id, None)

    def _deliver(self, strategy_key: str, update: StrategyUpdate) -> None:
        runner = self._runners.get(strategy_key)
        if runner is not None:  # else a stop's order, or one of a strategy that is gone
            runner.update(update)

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # --- on the event loop ----------------------------------------------------------------------

    def submitted(self, proposal: OrderProposal, intent_id: UUID) -> None:
        """Show an order in views from its commit on: the strategy does not send it again."""
        order = OrderSnapshot(
            intent_id=str(intent_id),
            symbol=proposal.symbol,
            side=proposal.side,
            state=AttemptState.PREPARED,
            filled=Decimal(0),
            remaining=proposal.quantity,
            price=proposal.price,
            strategy_key=proposal.strategy_key,
        )
        with self._ordering:
            if not (order.intent_id in self._ended or order.intent_id in self._portfolio.orders):
                self._portfolio.set_order(order, is_open=True)

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = asyncio.create_task(function(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release_owner(self, symbol: str) -> None:
        try:
            await self._positions.release_owner(symbol)
        except OperationError as error:
            log.warning("owner of a symbol not released", symbol=symbol, error=str(error))


def _fill(payload: p.FillPayload) -> Fill:
    return Fill(
        trade_id=payload.trade_id,
        broker_order_id=payload.order_id,
        symbol=payload.symbol,
        side=Side(payload.side),
        quantity=p.as_decimal(payload.filled_qty),
        price=p.as_decimal(payload.filled_price),
        fee=p.as_decimal(payload.fee),
        at=datetime.fromtimestamp(payload.filled_time, UTC),
    )


def _remember(values: OrderedDict[str, Any], name: str, value: object) -> None:
    values[name] = value
    values.move_to_end(name)
    if len(values) > _MAX_REMEMBERED:
        values.popitem(last=False)
