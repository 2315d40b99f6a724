"""Stop orders of a run: stored before they wait, triggered by a tick, one order in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from qts.brokers import AccountLease
from qts.dashboard.manual_orders import CommandOrigin, ManualOrderService
from qts.database import Database
from qts.domain import ManualClock, OrderSnapshot, Position, Side, SystemClock, TimeInForce
from qts.orders import ManualState, OrderManager
from qts.outbox import TRADE_EXIT, Dispatcher, PostgresBus
from qts.pipeline import (
    DecisionJournal,
    Execution,
    JournaledStore,
    JournalHeader,
    Portfolio,
    load_journaled_run,
    replay_decisions,
)
from qts.pipeline.manual_orders import ManualOrderHandler
from qts.risk import OrderProposal, RiskLimitsConfig
from qts.strategies import Cancel, Replace
from tests.instruments import LISTED
from tests.orders.kit import STREAMS
from tests.orders.waiting import store_stop_order
from tests.pipeline.counting import ACCOUNT
from tests.pipeline.portfolios import NOW, tick
from tests.pipeline.test_scheduler import BUY, EXIT, NOW_S, SELL, Bench, Trades, wanted

D = Decimal
WAITING_ROWS = "SELECT count(*) FROM stop_order WHERE triggered_at IS NULL"


class Sink(Trades):
    """Takes every proposal as the submitter does, and reports it stored."""

    stored: Callable[[Any], object]

    async def submit(self, proposal: OrderProposal, timeout_s: float = 5.0) -> Execution:
        if not self.refuses:
            self.stored(proposal.signal_id)
        return await super().submit(proposal, timeout_s)


class StopBench(Bench):
    def __init__(self, database: Database, **more: Any) -> None:
        super().__init__(database=database, **more)
        self.trades = self.sink = sink = Sink()
        self.pipeline._submitter = sink  # type: ignore[assignment]
        sink.stored = self.stop_orders.submitted
        sink.may_fill.set()
        self.states: list[tuple[str, str]] = []
        self.changed = asyncio.Event()
        self.runner.update = self._update  # type: ignore[method-assign, assignment]
        self.database = database
        self.portfolio.apply_tick(tick(at=NOW_S))

    def _update(self, update: Any) -> None:
        self.states.append((update.order.state, update.order.reason))
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def shown(self) -> list[tuple[str, Decimal | None]]:
        return [(each.state, each.trigger) for each in self.portfolio.view().orders]

    async def place(self, trigger: int = 10_100, **more: Any) -> OrderSnapshot:
        self.heard(wanted(BUY, 0.001, trigger=trigger, **{"quantity": 4, **more}))
        await self.until(lambda: self.portfolio.view().orders)
        (order,) = self.portfolio.view().orders
        return order

    async def trade(self, price: float) -> None:
        each = tick(price=price, at=NOW_S + 1)
        self.portfolio.apply_tick(each)
        self.stop_orders.on_tick(each)
        await self.settle()

    async def settle(self) -> None:
        await asyncio.sleep(0)
        await self.pipeline.close()
        await asyncio.sleep(0)
        await self.stop_orders.close()

    async def rows(self) -> int:
        return int(await self.database.fetchval(WAITING_ROWS))


async def test_it_waits_for_its_price_and_becomes_one_order(database: Database) -> None:
    bench = StopBench(database)
    await bench.place()
    assert bench.shown == [("WAITING", D(10_100))]
    assert await bench.rows() == 1
    await bench.trade(10_090)
    assert bench.trades.asked == []
    await bench.trade(10_110)
    (order,) = bench.trades.asked
    assert (order.side, order.quantity, order.trigger) == (BUY, D(4), None)
    assert bench.shown == []
    assert await bench.rows() == 0
    await bench.trade(10_200)
    assert len(bench.trades.asked) == 1
    assert [state for state, _ in bench.states] == ["WAITING", "TRIGGERED"]


async def test_it_is_cancelled_and_replaced(database: Database) -> None:
    bench = StopBench(database)
    order = await bench.place()
    bench.pipeline.change_orders(bench.runner, [Replace(order, trigger=D(10_300))])
    await bench.until(lambda: bench.shown == [("WAITING", D(10_300))])
    await bench.trade(10_200)
    assert bench.trades.asked == []
    (order,) = bench.portfolio.view().orders
    bench.pipeline.change_orders(bench.runner, [Cancel(order)])
    await bench.settle()
    assert (bench.shown, await bench.rows()) == ([], 0)
    await bench.trade(10_400)
    assert bench.trades.asked == []
    assert bench.cancelled == []  # no venue has it


async def test_another_run_continues_with_it(database: Database) -> None:
    await StopBench(database).place(stop=9_900, type="LIMIT", price=10_200)
    bench = StopBench(database)  # as after kill -9
    await bench.stop_orders.load()
    assert bench.shown == [("WAITING", D(10_100))]
    await bench.trade(10_500)  # it opens beyond
    (order,) = bench.trades.asked
    assert (order.price, order.exits.stop if order.exits else None) == (D(10_200), D(9_900))
    assert await bench.rows() == 0


async def test_triggered_twice_it_has_the_id_of_one_signal(database: Database) -> None:
    """A run that ends between the order and the end of its row triggers it again."""
    await StopBench(database).place()
    ids = []
    for _ in range(2):
        bench = StopBench(database)
        await bench.stop_orders.load()
        bench.sink.stored = lambda _id: True
        each = tick(price=10_110, at=NOW_S + 1)
        bench.stop_orders.on_tick(each)
        await bench.trades.was_asked.wait()
        ids += [each.signal_id for each in bench.trades.asked]
        bench.stop_orders._triggered.clear()  # as if this process had ended
        await bench.settle()
        assert await bench.rows() == 1
    assert len(ids) == 2
    assert len(set(ids)) == 1


async def test_its_time_ends_by_the_wall_clock(database: Database) -> None:
    clock = ManualClock()
    bench = StopBench(database, clock=clock)
    await bench.place(time_in_force=60)
    running = asyncio.create_task(bench.stop_orders.run())
    await clock.advance(59)
    assert len(bench.shown) == 1
    await clock.advance(2)
    await bench.until(lambda: not bench.shown)
    running.cancel()
    assert bench.states[-1] == ("CANCELLED", "time in force over")
    assert await bench.rows() == 0


async def test_what_the_gate_refuses_has_ended(database: Database) -> None:
    bench = StopBench(database)
    await bench.place()
    bench.trades.refuses = "G_ORDER_RATE"
    await bench.trade(10_110)
    assert bench.states[-1] == ("REJECTED", "G_ORDER_RATE")
    assert (bench.shown, await bench.rows()) == ([], 0)


async def test_it_is_not_triggered_while_no_cycle_may_start(database: Database) -> None:
    bench = StopBench(database)
    await bench.place()
    bench.is_ready = False
    await bench.trade(10_110)
    assert bench.shown == [("WAITING", D(10_100))]
    bench.is_ready = True
    await bench.trade(10_105)
    assert len(bench.trades.asked) == 1


async def test_it_waits_for_an_order_in_flight_on_its_symbol(database: Database) -> None:
    bench = StopBench(database)
    await bench.place()
    bench.trades.may_fill.clear()
    bench.heard(wanted(BUY, 0.5, quantity=1))
    await bench.trades.was_asked.wait()
    bench.stop_orders.on_tick(tick(price=10_110, at=NOW_S + 1))
    await asyncio.sleep(0)
    assert len(bench.trades.asked) == 1
    bench.trades.may_fill.set()
    await bench.settle()
    await bench.settle()
    assert [int(each.quantity) for each in bench.trades.asked] == [1, 4]


async def test_a_gtc_order_of_a_stock_becomes_one_of_the_day(database: Database) -> None:
    bench = StopBench(database)
    await bench.place(time_in_force="GTC")
    await bench.trade(10_110)
    assert bench.trades.asked[0].time_in_force is TimeInForce.DAY


async def test_seconds_are_those_of_wait_and_order_together(database: Database) -> None:
    clock = ManualClock(NOW)
    bench = StopBench(database, clock=clock)
    bench.heard(wanted(BUY, 0.001, trigger=10_100, quantity=4, time_in_force=60))
    await bench.until(lambda: bench.shown)
    await clock.advance(40)
    await bench.trade(10_110)
    assert bench.trades.asked[0].time_in_force == pytest.approx(20)


async def test_the_operator_cancels_it(database: Database) -> None:
    bench = StopBench(database)
    order = await bench.place()
    assert await bench.stop_orders.cancel_manually(UUID(order.intent_id))
    assert bench.states[-1] == ("CANCELLED", "cancelled by the operator")
    assert (bench.shown, await bench.rows()) == ([], 0)
    await bench.trade(10_110)
    assert bench.trades.asked == []
    foreign = await store_stop_order(database, ACCOUNT, strategy_key="of another run")
    assert await bench.stop_orders.cancel_manually(foreign)
    assert await bench.rows() == 0
    assert not await bench.stop_orders.cancel_manually(foreign)


async def test_triggered_it_is_no_longer_the_operators_to_cancel(database: Database) -> None:
    """The order that it becomes is: known when the answer is."""
    bench = StopBench(database)
    order = await bench.place()
    bench.stop_orders.on_tick(tick(price=10_110, at=NOW_S + 1))
    assert not await bench.stop_orders.cancel_manually(UUID(order.intent_id))
    assert len(bench.trades.asked) == 1


@pytest.mark.parametrize("stopped", [None, "buyer"])
async def test_a_kill_switch_cancels_what_would_open_a_position(
    database: Database, stopped: str | None
) -> None:
    clock = ManualClock()
    bench = StopBench(database, clock=clock)
    bench.portfolio.load(D(10**8), [Position("005930", D(4), D(10_000))])
    bench.portfolio.apply_tick(tick(at=NOW_S))
    await bench.place()
    bench.heard(wanted(SELL, 0.6, trigger=9_900, intent_type=EXIT))
    await bench.until(lambda: len(bench.shown) == 2)
    bench.stopped.add(stopped)
    running = asyncio.create_task(bench.stop_orders.run())
    await clock.advance(0.6)
    await bench.until(lambda: len(bench.shown) == 1)
    assert bench.states[-1] == ("CANCELLED", "G_KILL_SWITCH")
    assert bench.shown == [("WAITING", D(9_900))]  # it reduces a position
    bench.heard(wanted(BUY, 0.9, trigger=10_200, quantity=1))
    await bench.settle()
    assert len(bench.shown) == 1  # nor is a new one taken
    await bench.trade(9_890)
    was_sold = [each.side for each in bench.trades.asked] == [SELL]
    assert was_sold == (stopped is not None)  # with the account stopped it waits
    bench.stopped.clear()
    await bench.trade(9_880)
    assert [each.side for each in bench.trades.asked] == [SELL]
    running.cancel()


async def test_flatten_leaves_none(database: Database) -> None:
    bench = StopBench(database)
    await bench.place()
    dispatcher, clock = Dispatcher(), SystemClock()
    lock = AccountLease(database, ACCOUNT, "home", clock, is_live=False)
    async with PostgresBus.open(database, STREAMS) as bus, lock:
        manager = OrderManager(database, bus, ACCOUNT, None)
        submitter = cast("Any", bench.sink)
        ManualOrderHandler(
            database, ACCOUNT, submitter, manager, bench.stop_orders, clock
        ).register(dispatcher)
        consumer = bus.consumer(TRADE_EXIT, dispatcher, str(ACCOUNT))
        consuming = asyncio.create_task(consumer.run())
        service = ManualOrderService(database, [ACCOUNT], STREAMS)
        origin = CommandOrigin(uuid4(), "test", "leaving", 1)
        ((_, command),) = await service.close(origin, None, None)
        consumer.stop()
        await consuming
    assert command.state is ManualState.DONE
    assert command.result is not None
    assert command.result.message == "1 open order cancelled"
    assert (bench.shown, await bench.rows()) == ([], 0)
    await bench.trade(10_110)
    assert bench.trades.asked == []


async def test_it_reserves_nothing_and_no_side(database: Database) -> None:
    bench = StopBench(database)
    await bench.place()
    bench.heard(wanted(SELL, 0.6), wanted(BUY, 0.7, trigger=10_300, quantity=1))
    await bench.settle()
    assert bench.pipeline._busy == set()
    assert [each.trigger for each in bench.portfolio.view().orders] == [D(10_100), D(10_300)]


async def test_a_journal_with_a_stop_order_is_replayed(database: Database, tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    path = tmp_path / "a.journal"
    header = JournalHeader(NOW, (), RiskLimitsConfig().exact)
    with DecisionJournal(path, header) as journal:
        bench = StopBench(database, clock=clock)
        store = JournaledStore(clock, journal, 1)
        bench.portfolio = portfolio = Portfolio(clock, LISTED, store, 0)
        bench.pipeline._portfolio = portfolio
        bench.stop_orders._portfolio = portfolio
        bench.pipeline._record = journal.append
        portfolio.load(D(10**8), [])
        portfolio.apply_tick(tick(at=NOW_S))
        await bench.place()
        await clock.advance(1)
        await bench.trade(10_110)
    report = replay_decisions(path)
    assert report.differences == []
    assert (report.cycles, report.decisions) == (2, 2)
    run = load_journaled_run(path, 0, (NOW + timedelta(days=36500)).timestamp())
    assert [(each.side, each.reason) for each in run.signals] == [
        (Side.BUY, "not checked by the gate")  # this bench has none
    ]
