"""Cancels and replacements: never are an order and its replacement open together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from qts.domain import IntentType, OrderSnapshot, OrderTerms, OrderType, Side, TimeInForce
from qts.pipeline import IntentTracker, RunnerHooks, StrategyRunner
from qts.pipeline.order_changer import EndedOrder
from qts.strategies import Cancel, NoParams, Replace, Strategy, View
from tests.pipeline.test_scheduler import BUY, SELL, Bench, wanted

D = Decimal
KEY = "buyer"
TERMS = OrderTerms(KEY, IntentType.ENTRY, TimeInForce.GTC, "because")


def order(price: int | None = 10_000, quantity: int = 5) -> OrderSnapshot:
    return OrderSnapshot(
        intent_id=str(uuid4()),
        symbol="KRW-BTC",
        side=Side.BUY,
        state="ACKED",
        filled=D(0),
        remaining=D(quantity),
        price=None if price is None else D(price),
        strategy_key=KEY,
    )


async def settle(bench: Bench) -> None:
    """Let the changes and what follows them run as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)
    bench.trades.may_fill.set()
    await asyncio.sleep(0)


def ended(filled: int = 0, *, was_open: bool = True) -> EndedOrder:
    return EndedOrder(TERMS, D(filled), was_open)


async def test_a_replacement_waits_for_the_end_of_the_order() -> None:
    bench, old = Bench(), order()
    bench.tick(0.0)
    bench.pipeline.change_orders(bench.runner, [Replace(old, price=D(9_990))])
    await settle(bench)
    assert bench.cancelled == [(KEY, old.intent_id)]
    assert bench.trades.asked == []  # whether it is still open is not known
    bench.ends.put_nowait(ended(filled=2))
    await settle(bench)
    (new,) = bench.trades.asked
    assert (new.price, new.quantity, new.type) == (D(9_990), D(3), OrderType.LIMIT)
    assert (new.time_in_force, new.reason) == (TimeInForce.GTC, "because")


@pytest.mark.parametrize(
    ("outcome", "quantity"),
    [
        pytest.param(ended(filled=5), None, id="filled meanwhile"),
        pytest.param(ended(filled=3), 3, id="filled up to the new quantity"),
        pytest.param(ended(was_open=False), None, id="had ended before"),
        pytest.param(None, None, id="not known"),
    ],
)
async def test_no_new_order_without_an_end_that_leaves_some(
    outcome: EndedOrder | None, quantity: int | None
) -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.ends.put_nowait(outcome)
    bench.pipeline.change_orders(
        bench.runner,
        [Replace(order(), price=D(9_990), quantity=None if quantity is None else D(quantity))],
    )
    await settle(bench)
    assert bench.trades.asked == []


async def test_of_several_changes_of_an_order_the_latest_counts() -> None:
    bench, old = Bench(), order()
    bench.tick(0.0)
    changes: list[Cancel | Replace] = [
        Replace(old, price=D(9_990)),
        Replace(old, price=D(9_980)),
        Cancel(old),
    ]
    for number in (2, 3):
        bench.pipeline.change_orders(bench.runner, changes[:number])
        await settle(bench)
        bench.ends.put_nowait(ended())
        await settle(bench)
        assert [each.price for each in bench.trades.asked] == [9_980]
    assert len(bench.cancelled) == 2


async def test_a_replacement_that_changes_nothing_keeps_the_order() -> None:
    bench, old = Bench(), order()
    bench.pipeline.change_orders(bench.runner, [Replace(old, price=D("10000.0"), quantity=D(5))])
    await settle(bench)
    assert bench.cancelled == []


async def test_a_stopped_pipeline_cancels_and_sends_nothing_new() -> None:
    bench, kept, gone = Bench(), order(), order()
    bench.tick(0.0)
    bench.pipeline.stop()
    bench.pipeline.change_orders(bench.runner, [Replace(kept, price=D(9_990)), Cancel(gone)])
    bench.ends.put_nowait(ended())
    bench.ends.put_nowait(ended())
    await settle(bench)
    assert len(bench.cancelled) == 2
    assert bench.trades.asked == []


async def test_an_order_whose_end_was_not_reported_leaves_the_view() -> None:
    bench, lost = Bench(), order()
    bench.portfolio.set_order(lost, is_open=True)
    bench.ends.put_nowait(ended(was_open=False))
    bench.pipeline.change_orders(bench.runner, [Cancel(lost)])
    await settle(bench)
    assert bench.portfolio.view().orders == ()


async def test_two_quotes_go_together_and_each_side_is_free_by_itself() -> None:
    bench = Bench()
    bench.portfolio.load(D(10**8), [])
    bench.tick(0.0)
    quotes = [
        wanted(side, 0.001, symbol="KRW-BTC", type="LIMIT", price=price, quantity=3)
        for side, price in ((BUY, 9_990), (SELL, 10_010))
    ]
    bench.heard(quotes[0])
    await bench.trades.was_asked.wait()
    bench.heard(wanted(BUY, 0.002, symbol="KRW-BTC", type="LIMIT", price=D(9_980)))
    assert [slot[2] for slot in bench.pipeline._busy] == [BUY]  # the other side is free
    assert [each.price for each in bench.trades.asked] == [9_990]
    await bench.done()
    assert not bench.pipeline._busy


async def test_the_end_of_an_order_is_known_by_what_was_filled() -> None:
    tracker, intent = IntentTracker(), uuid4()
    waiting = asyncio.create_task(tracker.wait_ended(intent, 60))
    await asyncio.sleep(0)
    tracker.filled(intent, D(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    tracker.ended(intent, "CANCELLED", "", D(4))  # three before this run
    assert await waiting == 4
    assert await tracker.wait_ended(uuid4(), 0.0) is None


class Quitter(Strategy[NoParams], key="quitter"):
    """Cancels at the stop, and tries to buy."""

    def on_stop(self, view: View) -> Iterable[Any]:
        return [*map(Cancel, view.orders), wanted(BUY, 0.0)]


async def test_on_stop_cancels_and_sends_nothing() -> None:
    bench, loop = Bench(), asyncio.get_running_loop()
    delivered: list[Any] = []

    def wake(_key: str) -> None:
        loop.call_soon(runner.run_pending)

    def deliver(_runner: StrategyRunner, found: list[Any]) -> None:
        delivered.extend(found)

    runner = StrategyRunner(
        Quitter(NoParams()), RunnerHooks(bench.portfolio.view, wake, deliver, loop, None)
    )
    own, others = replace(order(), strategy_key="quitter"), order()
    for each in (own, others):
        bench.portfolio.set_order(each, is_open=True)
    await runner.close(5.0)
    assert delivered == [Cancel(own)]
