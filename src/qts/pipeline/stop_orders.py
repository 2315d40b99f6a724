"""Stop orders of an account: stored while they wait, and triggered by the ticks of the feed.

    place ─▶ row of stop_order (durable) ─▶ in view.orders as WAITING
    tick  ─▶ TRIGGERED ─▶ signal ─▶ five steps, gate ─▶ order stored ─▶ row marked as triggered
                                                  └─▶ REJECTED ─▶ row deleted

Invariant: the row changes after the order, or its refusal, is known. After `kill -9` in between the
order is triggered again, and its signal, which has the same id, leads to no second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, OrderState, Tick
from qts.orders import WAITING
from qts.pipeline.cycle import Cycle, Decision
from qts.pipeline.order_changer import CancelOrder, EndedOrder
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.steps import signal_id_of
from qts.pipeline.stop_order_book import TRIGGERED, StopOrder, StopOrderBook, waits_until
from qts.pipeline.strategy_call import StrategyUpdate
from qts.risk import OrderProposal
from qts.strategies import Signal

log = telemetry.logger("pipeline")

CHECK_INTERVAL_S = 0.5
TRIGGER_POLL_S = 0.05
CLOSE_TIMEOUT_S = 5.0
WAITS, WAITS_ALREADY = "waits for its trigger", "this signal waits for its trigger already"
DISPLACED = "another signal of its symbol came first"
KILLED = "G_KILL_SWITCH"  # of the account or of its strategy
OPERATOR = "cancelled by the operator"

_ALL = (
    "SELECT proposal, good_until FROM stop_order WHERE broker = $1 AND account = $2"
    " AND triggered_at IS NULL ORDER BY created_at, id"
)
_TIDY = "DELETE FROM stop_order WHERE triggered_at < clock_timestamp() - interval '30 days'"
_STORE = (
    "INSERT INTO stop_order (id, broker, account, strategy_key, proposal, good_until)"
    " SELECT $1, $2, $3, $4, $5, $6 WHERE lease_holds($2, $3, $7) ON CONFLICT (id) DO NOTHING"
)
_OWN = "WHERE id = $1 AND lease_holds(broker, account, $2)"
_DELETE = f"DELETE FROM stop_order {_OWN}"  # noqa: S608 - a constant
_DELETE_WAITING = f"{_DELETE} AND triggered_at IS NULL"
_TRIGGERED = f"UPDATE stop_order SET triggered_at = clock_timestamp() {_OWN}"  # noqa: S608 - a constant


class StopOrders:
    """Stop orders of one account, on one event loop; `attach`, then `load`, then ticks."""

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        portfolio: Portfolio,
        clock: Clock,
        epoch: Callable[[], int] | None = None,  # of the lease of the run
    ) -> None:
        self._database = database
        self._account = account
        self._portfolio = portfolio
        self._clock = clock
        self._epoch: Callable[[], int | None] = epoch or (lambda: None)
        self._book = StopOrderBook()
        self._triggered: dict[UUID, StopOrder] = {}  # whose order is not known yet
        self._runners: Mapping[str, StrategyRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(
        self,
        runners: Mapping[str, StrategyRunner],
        on_signals: Callable[..., None],
        may_start: Callable[[], bool],
        is_off: Callable[[str | None], bool],
    ) -> None:
        """Set what takes the signals of triggered orders, and whether it takes any now.

        `is_off` says whether the operator stopped the account (None) or a strategy.
        """
        self._runners, self._on_signals, self._may_start = runners, on_signals, may_start
        self._is_off = is_off

    async def load(self) -> None:
        """Let the stored orders of the run's strategies wait again."""
        await self._database.execute(_TIDY)
        for data, until in await self._database.fetch(_ALL, *self._account):
            order = StopOrder(msgspec.convert(data, OrderProposal), until)
            if order.strategy_key in self._runners:
                self._wait(order)
            else:
                log.warning("stop order of no strategy of this run", strategy=order.strategy_key)

    # --- orders ---------------------------------------------------------------------------------

    async def place(self, cycle: Cycle) -> Cycle:
        """Let the stop orders of a cycle wait; return it without them."""
        decisions = [await self._placed(each) for each in cycle.decisions]
        return replace(cycle, decisions=tuple(decisions))

    async def _placed(self, decision: Decision) -> Decision:
        proposal = decision.proposal
        if proposal is None or proposal.trigger is None:
            return decision
        if proposal.signal_id in self._triggered or self._book.get(proposal.signal_id):
            return Decision(decision.signal, None, WAITS_ALREADY)
        if self._is_killed(proposal):
            return Decision(decision.signal, None, KILLED)
        order = StopOrder(proposal, waits_until(proposal.time_in_force, self._clock.now()))
        values = order.id, *self._account, order.strategy_key, proposal, order.until
        async with self._database.transaction(durable=True) as tx:
            await tx.execute(_STORE, *values, self._epoch())
        self._wait(order)
        self._report(order, WAITING)
        return Decision(decision.signal, None, WAITS)

    def _wait(self, order: StopOrder) -> None:
        self._book.add(order)
        self._portfolio.set_order(order.snapshot(WAITING), is_open=True)

    def cancelling(self, cancel: CancelOrder) -> CancelOrder:
        """Return what cancels stop orders too; `cancel` cancels those at the venue."""

        async def cancel_any(strategy_key: str, order_id: UUID) -> EndedOrder | None:
            order = self._book.get(order_id)
            if order is not None and order.strategy_key == strategy_key:
                await self._cancel(order, "cancelled")
                return EndedOrder(order.terms, Decimal(0), was_open=True)
            if order_id in self._triggered:  # its order is about to be sent
                return None
            return await cancel(strategy_key, order_id)

        return cancel_any

    async def cancel_manually(self, id_: UUID) -> bool:
        """Cancel a stop order of the account; return False if it was triggered before."""
        while id_ in self._triggered:  # until its order is stored, or refused
            await self._clock.sleep(TRIGGER_POLL_S)
        order = self._book.get(id_)
        if order is not None:
            await self._cancel(order, OPERATOR)
            return True
        # That of a strategy which this run does not have; its row is all there is.
        deleted: str = await self._database.execute(_DELETE_WAITING, id_, self._epoch())
        return deleted != "DELETE 0"

    def _is_killed(self, proposal: OrderProposal) -> bool:
        """Return whether the kill switch is on for it: then it may not open a position later."""
        return not proposal.intent_type.is_exit and self._is_off(proposal.strategy_key)

    async def _cancel(self, order: StopOrder, reason: str) -> None:
        self._book.remove(order)  # at once: no tick triggers it while its row is deleted
        try:
            await self._database.execute(_DELETE, order.id, self._epoch())
        except BaseException:
            self._book.add(order)
            raise
        self._end(order, OrderState.CANCELLED, reason)

    # --- prices ---------------------------------------------------------------------------------

    def on_tick(self, tick: Tick) -> None:
        """Trigger the orders that a trade reaches; none while no cycle may start.

        Nor while the kill switch is on: an exit then waits, instead of being refused and gone.
        """
        if tick.symbol not in self._book or not self._may_start() or self._is_off(None):
            return
        for order in self._book.reached(tick.symbol, tick.price):
            self._book.remove(order)
            self._triggered[order.id] = order
            log.info(
                "stop order triggered",
                strategy=order.strategy_key,
                symbol=tick.symbol,
                price=tick.price,
            )
            self._report(order, TRIGGERED)
            instrument = self._portfolio.instruments[tick.symbol]
            signal = order.signal(self._clock.now(), instrument)
            self._on_signals(self._runners[order.strategy_key], [signal], after_order=True)

    def submitted(self, signal_id: UUID) -> bool:
        """Forget an order whose successor is stored; return whether it was a stop order."""
        order = self._triggered.pop(signal_id, None)
        if order is not None:
            self._portfolio.set_order(order.snapshot(TRIGGERED), is_open=False)
            self._change_row(order, _TRIGGERED)
        return order is not None

    def settled(self, key: str, signals: Iterable[Signal], task: asyncio.Task[Cycle]) -> None:
        """End the triggered orders that a cycle refused; one that was cancelled leaves its rows."""
        if not task.cancelled() and task.exception() is None:
            cycle = task.result()
            for each in signals:
                self._refused(key, each, _reason_of(cycle, each))

    def displaced(self, key: str, signals: Iterable[Signal]) -> None:
        """End triggered orders whose signals were dropped for another one."""
        for each in signals:
            self._refused(key, each, DISPLACED)

    def wait_again(self, key: str, signals: Iterable[Signal]) -> None:
        """Let triggered orders wait for the next tick: no cycle may start."""
        for each in self._of(key, signals):
            self._book.add(self._triggered.pop(each.id))
            self._report(each, WAITING)

    def _refused(self, key: str, signal: Signal, reason: str) -> None:
        for order in self._of(key, (signal,)):
            del self._triggered[order.id]
            self._end(order, "REJECTED", reason)
            self._change_row(order, _DELETE)

    def _of(self, key: str, signals: Iterable[Signal]) -> list[StopOrder]:
        if not self._triggered:
            return []
        sent = [each for each in signals if isinstance(each, Signal) and each.trigger is None]
        ids = [signal_id_of(key, each) for each in sent]
        return [self._triggered[each] for each in ids if each in self._triggered]

    def _end(self, order: StopOrder, state: str, reason: str) -> None:
        self._portfolio.set_order(order.snapshot(state, reason), is_open=False)
        self._report(order, state, reason)

    def _report(self, order: StopOrder, state: str, reason: str = "") -> None:
        if (runner := self._runners.get(order.strategy_key)) is not None:
            runner.update(StrategyUpdate(None, order.snapshot(state, reason)))

    # --- rows -----------------------------------------------------------------------------------

    def _change_row(self, order: StopOrder, statement: str) -> None:
        task = asyncio.create_task(self._row_changed(order, statement))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _row_changed(self, order: StopOrder, statement: str) -> None:
        while True:
            try:
                await self._database.execute(statement, order.id, self._epoch())
            except OperationError as error:
                log.warning("end of a stop order not stored; retrying", error=str(error))
                await self._clock.sleep(CHECK_INTERVAL_S)
            else:
                return

    async def run(self) -> None:
        """Cancel the orders whose time is over or whose switch is off, until cancelled.

        The wall clock counts.
        """
        while True:
            await self._clock.sleep(CHECK_INTERVAL_S)
            overdue = self._book.overdue(self._clock.now())
            killed = [each for each in self._book if self._is_killed(each.proposal)]
            for order in [*overdue, *(each for each in killed if each not in overdue)]:
                reason = "time in force over" if order in overdue else KILLED
                try:
                    await self._cancel(order, reason)
                except OperationError as error:
                    log.warning("stop order not cancelled; retrying", error=str(error))

    async def close(self) -> None:
        """Wait until the ends of orders are stored, at most five seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)


def _reason_of(cycle: Cycle, signal: Signal) -> str:
    """Return why a signal of a cycle led to no order."""
    if cycle.code:
        return f"{cycle.code} {cycle.error}"
    refused = [each.reason for each in cycle.decisions if each.signal == signal and each.reason]
    found = refused or [each.reason for each in cycle.executions if each.reason]
    return found[0] if found else "not sent"
