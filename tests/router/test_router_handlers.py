"""Handlers in Python and compiled: input, changes, errors."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from operator import countOf
from typing import Any

import numpy as np
import pytest
from numba import carray, cfunc, types  # type: ignore[attr-defined]

from qts._native import Message
from qts.domain import RefusedError
from qts.router import Router, batch, compiled, each
from qts.router.handlers import Messages
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    plan_for,
    scenario,
    short_stall_floor,
    ticks,
    until,
)

ONE = {"types": 1, "strategies": 1}
BYTES, TOTALS = types.CPointer(types.uint8), types.CPointer(types.int64)  # type: ignore[no-untyped-call]
COUNTER = types.void(BYTES, types.uint64, TOTALS)


def count_and_sum(messages, count, state):  # type: ignore[no-untyped-def] # pragma: no cover
    """96 bytes a message; the price is in the last eight."""
    words = carray(messages, (count, 96), np.uint8)
    totals = carray(state, 2)
    for row in range(count):
        price = np.int64(0)
        for byte in range(8):
            price |= np.int64(words[row, 88 + byte]) << (8 * byte)
        totals[0] += 1
        totals[1] += price


@cache
def compiled_counter() -> Any:
    return cfunc(COUNTER)(count_and_sum)


def test_a_plain_callable_gets_every_message_and_may_keep_it() -> None:
    got: list[Message] = []
    report = Router(scenario(producers=1, **ONE), strategies={0: got.append}).run()
    assert len(got) == report.delivered == 10_000
    assert [m.sequence_number for m in got] == list(range(10_000))


def test_a_batch_handler_gets_every_message_in_order() -> None:
    got: list[int] = []

    def keep(messages: Messages) -> None:
        assert 1 <= len(messages) <= 256
        got.extend(messages["sequence_number"].tolist())

    report = Router(scenario(producers=1, **ONE), strategies={0: batch(keep)}).run()
    assert got == list(range(10_000))
    assert report.verdict == "PASSED"


def test_a_compiled_handler_runs_without_python() -> None:
    state = np.zeros(2, np.int64)
    array = ticks(10_000, types=1)
    handler = compiled(compiled_counter(), state)
    with Router(scenario(**ONE), strategies={0: handler}, live=True) as router:
        assert router.push_many(array) == 10_000
    assert state.tolist() == [10_000, array["price"].sum()]


def test_a_compiled_handler_added_while_running_is_kept_alive() -> None:
    router = Router(scenario(**ONE), live=True)
    state = np.zeros(2, np.int64)
    with router:
        added = router.add_strategy(compiled(compiled_counter(), state))
        router.route(0, strategy=added)
        assert router.push_many(ticks(100, types=1)) == 100
    assert state[0] == 100


@pytest.mark.parametrize("wrong", ["text", 0, len])
def test_what_is_not_compiled_is_refused(wrong: object) -> None:
    with pytest.raises(RefusedError, match="compiled takes a numba cfunc"):
        compiled(wrong)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(RefusedError, match="a handler is a callable, not int"):
        Router(scenario(), strategies={0: 5})  # type: ignore[dict-item]


def test_a_processor_changes_what_the_strategy_sees() -> None:
    def double(messages: Messages) -> None:
        messages["price"] *= 2

    got: list[float] = []
    router = Router(
        scenario(**ONE),
        processors={0: batch(double)},
        strategies={0: lambda m: got.append(m.price)},
        live=True,
    )
    with router:
        router.push_many(ticks(1_000, types=1))
    assert got == [2.0 * (1_000 + n) for n in range(1_000)]


def test_changes_by_a_strategy_have_no_effect() -> None:
    def spoil(messages: Messages) -> None:
        messages["sequence_number"] = 0

    report = Router(scenario(), strategies={0: batch(spoil)}).run()
    assert report.verdict == "PASSED"


def test_one_batch_handler_on_two_threads_gets_whole_batches() -> None:
    mixed: list[int] = []

    def check(messages: Messages) -> None:
        before = messages.copy()
        time.sleep(0)  # lets the other thread in
        if not np.array_equal(before, messages):
            mixed.append(len(messages))

    small = scenario(types=2, strategies=2)
    shared = batch(check)
    report = Router(small, plan_for(small, "threads"), strategies={0: shared, 1: shared}).run()
    assert report.verdict == "PASSED"
    assert mixed == []


def test_a_view_kept_for_too_long_shows_other_messages_and_breaks_nothing() -> None:
    kept: list[Messages] = []
    router = Router(scenario(producers=1, **ONE), strategies={0: batch(kept.append)})
    router.run()
    del router
    assert all(len(view) == int(view["msg_type"].size) for view in kept)
    assert int(kept[0]["sequence_number"].max()) < 10_000
    kept[0]["price"] = 0  # the memory is still there to write to


# Errors


def test_the_message_a_strategy_raises_on_is_named_and_the_rest_accounted_for() -> None:
    count, last = 0, -1

    def raise_late(message: Message) -> None:
        nonlocal count, last
        count, last = count + 1, message.sequence_number
        if count == 1_000_003:
            raise ValueError("cannot divide by a closed market")

    small = scenario(producers=1, rate=10e6, seconds=60, types=2, strategies=2)
    router = Router(small, strategies={0: raise_late})
    report = router.run()
    assert report.verdict == "FAILED"
    assert report.failures == (
        f"strategy 0 failed at Message(producer 0, type 0, sequence {last}):"
        " ValueError: cannot divide by a closed market",
    )
    assert report.per_strategy[0].delivered == 1_000_002
    assert report.produced == report.delivered + report.undelivered
    assert sum(at.count for at in report.undelivered_at) == report.undelivered
    assert "in raise_late" in router.failures[0]  # the traceback


@pytest.mark.parametrize("written", [1, 8, 255])
def test_a_processor_that_changes_msg_type_fails_at_that_message(written: int) -> None:
    def change_type(messages: Messages) -> None:
        late = messages["sequence_number"] >= 500
        messages["msg_type"][late] = written

    report = Router(scenario(producers=1, **ONE), processors={0: batch(change_type)}).run()
    assert report.verdict == "FAILED"
    assert report.failures == (
        "processor 0 failed at Message(producer 0, type 0, sequence 500):"
        f" the handler changed msg_type from 0 to {written}",
    )
    assert report.delivered == 500
    assert report.produced == report.delivered + report.undelivered


@pytest.mark.parametrize("written", [1, 200, 255])
def test_a_processor_that_changes_producer_id_fails_the_run_and_not_the_process(
    written: int,
) -> None:
    """Every value of the byte has a stream; messages that leave theirs are a gap in the report."""

    def change_producer(messages: Messages) -> None:
        late = messages["sequence_number"] >= 500
        messages["producer_id"][late] = written

    report = Router(scenario(producers=1, **ONE), processors={0: batch(change_producer)}).run()
    assert report.verdict == "FAILED"
    assert report.produced == report.delivered + report.undelivered
    assert report.delivered > 500


def test_a_batch_handler_that_raises_names_its_batch() -> None:
    def fail(messages: Messages) -> None:
        raise RuntimeError("no")

    report = Router(scenario(producers=1, **ONE), strategies={0: batch(fail)}).run()
    (line,) = report.failures
    assert line.startswith("strategy 0 failed at Message(producer 0, type 0, sequence 0)")
    assert "RuntimeError: no (in a batch of " in line
    assert report.produced == report.delivered + report.undelivered


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_no_error_escapes_a_handler(error: type[BaseException]) -> None:
    def fail(_message: Message) -> None:
        raise error

    report = Router(scenario(**ONE), processors={0: each(fail)}).run()
    assert report.verdict == "FAILED"
    assert error.__name__ in report.failures[0]
    assert report.failures[0].startswith("processor 0 failed at")


@pytest.mark.parametrize("layout", ["one worker", "two workers", "threads"])
def test_processors_that_all_fail_end_the_run(layout: str) -> None:
    rules = [{"msg_type": 0, "processors": [0, 1]}]
    second = [{"msg_type": 0, "strategy": 0, "ordering_required": False}]
    small = scenario(
        types=1, strategies=1, processors={"count": 2}, stage1_rules=rules, stage2_rules=second
    )

    def fail(_message: Message) -> None:
        raise ValueError("no")

    router = Router(small, plan_for(small, layout), processors={0: each(fail), 1: each(fail)})  # type: ignore[arg-type]
    router.start()
    until(lambda: router.wait(0.1))
    report = router.report
    assert report.produced == report.delivered + report.undelivered
    assert not any("did not return" in line for line in report.failures)


def test_a_handler_that_never_returns_is_named_and_not_waited_for() -> None:
    stuck, gate = threading.Event(), threading.Event()

    def wait(_message: object) -> None:
        stuck.set()
        gate.wait()

    small = scenario(types=2, strategies=2)
    router = Router(small, plan_for(small, "one worker"), strategies={1: wait})
    router.start()
    until(stuck.is_set)
    began = time.monotonic()
    router.abort()
    assert time.monotonic() - began < 5
    report = router.report
    gate.set()
    assert report.failures == ("worker 0 in strategy 1 did not return",)
    assert report.undelivered_at[-1].place == "worker 0 in strategy 1"
    assert report.produced == report.delivered + report.undelivered
    assert report.verdict == "FAILED"


# The GIL


def test_a_long_row_of_messages_lets_other_threads_run() -> None:
    # A call from C to C: the interpreter has no say between two of them.
    slow: Callable[[Message], object] = partial(countOf, range(40_000))
    small = scenario(ring_capacity=512, **ONE)
    router = Router(small, plan_for(small, "one worker"), strategies={0: slow}, live=True)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # so that this thread waits most of the time, and not the worker
    try:
        router.start()
        assert router.push_many(ticks(512, types=1)) == 512
        waits, last = 0, time.perf_counter()
        while router.delivered < 512:
            now = time.perf_counter()
            waits, last = waits + (now - last > 0.0005), now
    finally:
        sys.setswitchinterval(before)
    router.abort()
    # Without a limit each batch holds the GIL from its beginning to its end: four waits or so.
    assert waits > 12


def test_python_handlers_may_be_added_to_any_running_worker() -> None:
    got: list[Message] = []
    router = Router(scenario(**ONE), live=True)
    with router:
        added = router.add_strategy(got.append)
        router.route(0, strategy=added)
        router.push_many(ticks(100, types=1))
    assert len(got) == 100
