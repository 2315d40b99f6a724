"""Messages pushed from outside: accepted in order, from any thread."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts._native import Message
from qts.domain import RefusedError
from qts.router import MESSAGE, Options, Router
from qts.router.handlers import message_array
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    plan_for,
    scenario,
    short_stall_floor,
    ticks,
    until,
)


def test_an_array_arrives_whole_and_in_order() -> None:
    got: list[Message] = []
    with Router(scenario(types=1, strategies=1), strategies={0: got.append}, live=True) as router:
        assert router.push_many(ticks(5_000, types=1)) == 5_000
    assert [m.sequence_number for m in got] == list(range(5_000))
    assert [m.price for m in got] == [1_000.0 + n for n in range(5_000)]
    report = router.report
    assert (report.verdict, report.offered, report.delivered) == ("PASSED", 5_000, 5_000)


def test_mappings_hold_prices_and_quantities() -> None:
    got: list[Message] = []
    rows: list[dict[str, Any]] = [
        {"msg_type": 0, "symbol_id": 7, "price": 71_500.5, "quantity": "0.00000001"},
        {"price": Decimal("92000000000.12345678"), "quantity": 40_000_000_000},
        {"price_e8": 1, "quantity": 0},
    ]
    with Router(scenario(types=1, strategies=1), strategies={0: got.append}, live=True) as router:
        assert router.push_many(rows) == 3
    assert [m.price_e8 for m in got] == [7_150_050_000_000, 9_200_000_000_012_345_678, 1]
    assert [m.symbol_id for m in got] == [7, 0, 0]
    assert [m.quantity for m in got] == [pytest.approx(1e-8), 4e10, 0.0]


@given(
    st.decimals(-(10**9), 10**9, places=8),
    st.integers(0, 10**13).flatmap(
        lambda mantissa: st.integers(-8, 8).map(lambda exp: Decimal(mantissa).scaleb(exp))
    ),
)
def test_prices_and_quantities_are_kept_exactly(price: Decimal, quantity: Decimal) -> None:
    (one,) = message_array([{"price": price, "quantity": quantity}])
    assert Decimal(int(one["price"])).scaleb(-8) == price
    mantissa = int(one["quantity_high"]) << 32 | int(one["quantity_low"])
    assert Decimal(mantissa).scaleb(int(one["quantity_exponent"])) == quantity


@given(st.floats(-1e9, 1e9))
def test_a_float_price_is_the_nearest_that_fits(price: float) -> None:
    (one,) = message_array([{"price": price}])
    assert abs(Decimal(int(one["price"])).scaleb(-8) - Decimal(str(price))) <= Decimal("0.5e-8")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"volume": 1}, "a message has no volume; it has msg_type, symbol_id"),
        ({"msg_type": 8}, "msg_type of a message is 8; expected 0 to 7"),
        ({"msg_type": 1.0}, "msg_type of a message is 1.0; expected an integer"),
        ({"symbol_id": -1}, "symbol_id of a message is -1; expected 0 to"),
        ({"price": Decimal("0.123456789")}, "expected at most 8 decimals"),
        ({"price": 1e30}, "expected at most 8 decimals, below 92e9"),
        ({"price": float("nan")}, "price of a message is nan; expected a number"),
        ({"price": "cheap"}, "price of a message is 'cheap'; expected a number"),
        ({"quantity": -1}, "quantity of a message is -1; expected 0 or more"),
        ({"quantity": "1234567890.123456789"}, "up to 14 digits"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(row: dict[str, Any], expected: str) -> None:
    with Router(scenario(), live=True) as router, pytest.raises(RefusedError) as caught:
        router.push_many([row])
    assert expected in str(caught.value)
    assert router.report.produced == 0


def test_several_threads_push_at_once_and_nothing_is_lost() -> None:
    small = scenario(producers=2)
    router = Router(small, plan_for(small, "threads"), live=True)
    accepted: list[int] = []

    def push(source: int) -> None:
        for _ in range(20):
            accepted.append(router.push_many(ticks(500), source=source))  # noqa: PERF401

    with router:
        threads = [threading.Thread(target=push, args=(n % 2,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(accepted) == 40_000
    report = router.report
    assert (report.verdict, report.delivered) == ("PASSED", 40_000)


def test_a_blocked_strategy_accepts_less_at_the_timeout_and_the_rest_later() -> None:
    gate = threading.Event()
    small = scenario(types=1, strategies=1, ring_capacity=64)
    router = Router(
        small, plan_for(small, "two workers"), strategies={0: lambda _: gate.wait()}, live=True
    )
    with router:
        first = router.push_many(ticks(5_000, types=1), timeout=0.05)
        assert 0 < first < 5_000
        assert router.push_many(ticks(10, types=1), timeout=0) == 0
        gate.set()
        assert router.push_many(ticks(5_000, types=1)) == 5_000
    assert router.report.delivered == first + 5_000
    assert router.report.verdict == "PASSED"


def test_a_failed_strategy_ends_the_waiting() -> None:
    small = scenario(types=1, strategies=1, ring_capacity=64)

    def fail(_message: Message) -> None:
        raise ValueError("no")

    router = Router(small, strategies={0: fail}, live=True)
    router.start()
    assert router.push_many(ticks(50_000, types=1), timeout=60) < 50_000
    report = router.report
    assert report.verdict == "FAILED"
    assert report.produced == report.delivered + report.undelivered


def test_a_type_without_a_rule_is_refused_before_anything_is_sent() -> None:
    array = ticks(100)
    array["msg_type"][99] = 7
    with Router(scenario(), live=True) as router:
        with pytest.raises(RefusedError, match="scenario small: no rule routes type 7"):
            router.push_many(array)
        array["msg_type"][99] = 200
        with pytest.raises(RefusedError, match="no rule routes type 200"):
            router.push_many(array)
    assert router.report.produced == 0


def test_a_source_that_is_not_there_is_refused() -> None:
    with Router(scenario(producers=2), live=True) as router:
        with pytest.raises(RefusedError, match="there is no live source 2"):
            router.push_many(ticks(1), source=2)
        with pytest.raises(RefusedError, match="out of range"):
            router.push_many(ticks(1), source=-1)


def test_nothing_is_accepted_after_stop() -> None:
    router = Router(scenario(), live=True)
    router.start()
    assert router.push_many(ticks(10)) == 10
    router.stop()
    assert router.push_many(ticks(10), timeout=60) == 0
    until(lambda: router.wait(0.1))
    assert router.push_many(ticks(10), timeout=60) == 0
    assert router.report.delivered == 10


def test_an_array_of_something_else_is_refused() -> None:
    with Router(scenario(), live=True) as router:
        with pytest.raises(RefusedError, match="dtype MESSAGE, not float64"):
            router.push_many(np.zeros(3))
        with pytest.raises(RefusedError, match="a one-dimensional array of dtype MESSAGE"):
            router.push_many(np.zeros((2, 2), MESSAGE))


def test_an_array_with_gaps_in_memory_is_sent_as_it_reads() -> None:
    got: list[int] = []
    small = scenario(types=1, strategies=1)
    with Router(small, strategies={0: lambda m: got.append(m.symbol_id)}, live=True) as router:
        assert router.push_many(ticks(20, types=1, symbols=20)[::-3]) == 7
    assert got == [19, 16, 13, 10, 7, 4, 1]


def test_pushing_needs_a_live_router_that_was_started() -> None:
    for router in (Router(scenario()), Router(scenario(), live=True)):
        with pytest.raises(RefusedError, match="created with live=True, and started"):
            router.push_many(ticks(1))


def test_a_live_router_is_not_run() -> None:
    with pytest.raises(RefusedError, match="runs until stop"):
        Router(scenario(), live=True).run()


def test_a_strategy_may_push_without_waiting() -> None:
    small = scenario(producers=2, types=2, strategies=2)
    answers: list[int] = []

    def answer(message: Message) -> None:
        answers.append(router.push_many([{"msg_type": 1}], source=1, timeout=0))

    router = Router(small, strategies={0: answer}, live=True)
    router.start()
    assert router.push_many([{"msg_type": 0}] * 20) == 20
    until(lambda: router.delivered == 20 + sum(answers) and len(answers) == 20)
    router.stop()
    until(lambda: router.wait(0.1))
    assert sum(answers) == 20
    assert router.report.verdict == "PASSED"


def test_kept_numbers_are_those_of_the_sender() -> None:
    got: list[tuple[int, int]] = []
    array = ticks(3, types=1)
    array["producer_id"], array["sequence_number"] = [5, 9, 5], [10, 11, 12]
    array["stream_number"] = [0, 0, 1]
    small = scenario(types=1, strategies=1)
    options = Options(keep_numbers=True)

    def keep(message: Message) -> None:
        got.append((message.producer_id, message.sequence_number))

    with Router(small, options=options, strategies={0: keep}, live=True) as router:
        assert router.push_many(array) == 3
    assert got == [(5, 10), (9, 11), (5, 12)]
    assert router.report.verdict == "PASSED"
