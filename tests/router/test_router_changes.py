"""Components added, removed and rerouted during a run."""

from __future__ import annotations

import threading

import pytest

from qts._native import Message
from qts.domain import OperationError, RefusedError
from qts.router import Router, batch
from qts.router.handlers import Messages
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    LayoutName,
    plan_for,
    scenario,
    short_stall_floor,
    ticks,
    until,
)

LAYOUTS: list[LayoutName] = ["one worker", "two workers", "threads"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_type_moves_to_a_new_strategy_and_the_old_one_is_removed(layout: LayoutName) -> None:
    small = scenario(rate=50_000, seconds=60)
    router = Router(small, plan_for(small, layout))
    late: list[int] = []
    with router:
        until(lambda: router.delivered > 1_000)
        added = router.add_strategy(batch(lambda messages: late.append(len(messages))))
        router.route(1, strategy=added)
        until(lambda: sum(late) > 500)
        router.remove_strategy(1)
        router.route(0, processors=[router.add_processor()])
        router.remove_processor(0)
        seen = router.delivered
        until(lambda: router.delivered > seen + 1_000)
    report = router.report
    assert report.verdict == "PASSED"
    assert report.per_strategy[added].delivered == sum(late)


def test_components_change_while_other_threads_push_and_read() -> None:
    small = scenario(producers=2)
    router = Router(small, plan_for(small, "two workers"), live=True)
    stop = threading.Event()
    sent: list[int] = []

    def push() -> None:
        while not stop.is_set():
            sent.append(router.push_many(ticks(200), source=1))

    def read() -> None:
        while not stop.is_set():
            router.snapshot()

    helpers = [threading.Thread(target=push), threading.Thread(target=read)]
    with router:
        for helper in helpers:
            helper.start()
        for _ in range(5):
            added = router.add_strategy()
            router.route(2, strategy=added)
            router.route(2, strategy=0)
            router.remove_strategy(added)
        stop.set()
        for helper in helpers:
            helper.join()
    assert router.report.verdict == "PASSED"
    assert router.report.delivered == sum(sent)


def test_a_strategy_in_use_is_not_removed() -> None:
    with Router(scenario(), live=True) as router:
        with pytest.raises(RefusedError, match="strategy 1 still serves type 1"):
            router.remove_strategy(1)
        with pytest.raises(RefusedError, match="processor 2 still serves type 2"):
            router.remove_processor(2)


def test_a_removed_component_gets_nothing_more() -> None:
    with Router(scenario(), live=True) as router:
        added = router.add_strategy()
        router.remove_strategy(added)
        with pytest.raises(RefusedError, match=f"there is no strategy {added}"):
            router.route(0, strategy=added)
        with pytest.raises(RefusedError, match=f"there is no strategy {added}"):
            router.remove_strategy(added)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"strategy": 77}, "there is no strategy 77"),
        ({"strategy": 777}, "out of range"),
        ({"processors": [77]}, "there is no processor 77"),
        ({"processors": []}, r"processors is \[\]; expected one or more"),
        ({"processors": [0, 0]}, "each once"),
        ({"processors": [0, 1]}, "type 0 requires order; expected one processor, not 2"),
    ],
)
def test_a_route_to_nowhere_is_refused(arguments: dict[str, object], expected: str) -> None:
    with Router(scenario(), live=True) as router:
        with pytest.raises(RefusedError, match=expected):
            router.route(0, **arguments)  # type: ignore[arg-type]
        assert router.push_many(ticks(10)) == 10
    assert router.report.delivered == 10


def test_a_type_without_a_rule_has_no_route_to_change() -> None:
    with (
        Router(scenario(), live=True) as router,
        pytest.raises(RefusedError, match="routes type 7"),
    ):
        router.route(7, strategy=0)


def test_a_worker_that_is_not_there_is_refused() -> None:
    with Router(scenario(), live=True) as router, pytest.raises(RefusedError, match="no worker 99"):
        router.add_strategy(worker=99)


def test_a_change_that_a_stuck_worker_prevents_fails_and_blocks_nothing() -> None:
    stuck, gate = threading.Event(), threading.Event()

    def wait(_message: object) -> None:
        stuck.set()
        gate.wait()

    small = scenario(types=2, strategies=2)
    router = Router(small, plan_for(small, "threads"), strategies={1: wait}, live=True)
    with router:
        assert router.push_many(ticks(2, types=2)) == 2
        until(lambda: stuck.is_set() and router.delivered == 1)
        with pytest.raises(OperationError, match="a worker did not pause"):
            router.route(0, strategy=1)
        assert router.push_many([{"msg_type": 0}] * 10) == 10
        until(lambda: router.delivered == 11)
        gate.set()
    assert router.report.verdict == "PASSED"


def test_a_processor_taken_over_by_another_keeps_the_order() -> None:
    got: list[int] = []

    def keep(messages: Messages) -> None:
        got.extend(messages["sequence_number"].tolist())

    small = scenario(producers=1, types=1, strategies=1, rate=100_000, seconds=60)
    router = Router(small, plan_for(small, "threads"), strategies={0: batch(keep)})
    with router:
        for _ in range(5):
            seen = router.delivered
            until(lambda seen=seen: router.delivered > seen + 500)  # type: ignore[misc]
            router.route(0, processors=[router.add_processor(worker=-1)])
    assert got == list(range(len(got)))
    assert router.report.verdict == "PASSED"


def test_an_each_handler_may_be_added_as_a_plain_callable() -> None:
    got: list[Message] = []
    with Router(scenario(), live=True) as router:
        router.route(0, strategy=router.add_strategy(got.append))
        router.push_many([{"msg_type": 0}] * 5)
    assert len(got) == 5
