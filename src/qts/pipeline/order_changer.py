"""Cancels and replacements that strategies return.

    Cancel  ─▶ cancel requested (durable) ─▶ the order ends: CANCELLED, or FILLED meanwhile
    Replace ─▶ the same, and then ─▶ a signal for what is not filled ─▶ the five steps

Invariant: the new order of a replacement is sent after the end of the other one is known, so that
never are both open. Where the end is not known in time, no new order is sent. An order that has
ended meanwhile is no error. Of several changes of one order, the latest counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OrderSnapshot, OrderTerms, QtsError
from qts.orders import order_terms
from qts.pipeline.act import IntentTracker
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.runner import StrategyRunner
from qts.strategies import Cancel, Replace

log = telemetry.logger("pipeline")

CANCEL_TIMEOUT_S = 30.0


class EndedOrder(NamedTuple):
    """An order whose end is known."""

    terms: OrderTerms
    filled: Decimal
    was_open: bool  # when its cancel was requested


# Cancels an order of a strategy; None: its end is not known, or it is none of that strategy.
CancelOrder = Callable[[str, UUID], Awaitable[EndedOrder | None]]


class OrderCanceller:
    """Cancels orders of one account and waits for their end; a `CancelOrder`."""

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        cancel: Callable[[UUID], Awaitable[bool]],
        tracker: IntentTracker,
    ) -> None:
        self._database = database
        self._account = account
        self._cancel = cancel
        self._tracker = tracker

    async def __call__(self, strategy_key: str, intent_id: UUID) -> EndedOrder | None:
        terms = await order_terms(self._database, self._account, intent_id)
        if terms is None or terms.strategy_key != strategy_key:
            log.error("order is not the strategy's", strategy=strategy_key, intent_id=intent_id)
            return None
        if not await self._cancel(intent_id):
            return EndedOrder(terms, Decimal(0), was_open=False)
        filled = await self._tracker.wait_ended(intent_id, CANCEL_TIMEOUT_S)
        return None if filled is None else EndedOrder(terms, filled, was_open=True)


class OrderChanger:
    """Changes the orders of one account, for one event loop."""

    def __init__(
        self,
        cancel: CancelOrder,
        portfolio: Portfolio,
        on_signals: Callable[..., None],
        clock: Clock,
    ) -> None:
        self._cancel = cancel
        self._portfolio = portfolio
        self._on_signals = on_signals
        self._clock = clock
        self._latest: dict[str, Cancel | Replace] = {}  # by intent, of those in flight
        self.tasks: set[asyncio.Task[None]] = set()

    def apply(
        self, runner: StrategyRunner, changes: Iterable[Cancel | Replace]
    ) -> list[asyncio.Task[None]]:
        """Start each change and return what was started.

        One of an order whose cancel is in flight takes the other's place.
        """
        started: list[asyncio.Task[None]] = []
        for change in changes:
            intent = change.order.intent_id
            is_running = intent in self._latest
            if isinstance(change, Replace) and change.changes_nothing and not is_running:
                continue
            self._latest[intent] = change
            if not is_running:
                task = asyncio.create_task(self._change(runner, change.order))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                started.append(task)
        return started

    async def _change(self, runner: StrategyRunner, order: OrderSnapshot) -> None:
        try:
            ended = await self._cancel(runner.key, UUID(order.intent_id))
        except (QtsError, ValueError) as error:
            log.error("order not cancelled", strategy=runner.key, error=str(error))
            return
        finally:
            change = self._latest.pop(order.intent_id)
        if ended is None:
            log.warning(
                "end of an order not known",
                strategy=runner.key,
                symbol=order.symbol,
                intent_id=order.intent_id,
            )
            return
        if not ended.was_open:  # its end has been reported, or the report was lost
            self._portfolio.set_order(order, is_open=False)
        elif isinstance(change, Replace):
            at = self._clock.now().timestamp()
            if signal := change.signal(at, ended.filled, ended.terms):
                self._on_signals(runner, [signal], after_order=True)
