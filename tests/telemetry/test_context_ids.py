"""Context ids in calls, tasks and threads."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from qts.telemetry import (
    Ids,
    bind,
    context,
    current_context,
    lazy_context,
    new_trace_id,
    with_context,
)


def test_context_adds_ids_and_restores_them() -> None:
    with context(traceId="t1", stream="orders"):
        with context(eventId="e1", stream="fills"):
            assert current_context() == {"traceId": "t1", "eventId": "e1", "stream": "fills"}
        assert current_context() == {"traceId": "t1", "stream": "orders"}
    assert current_context() == {}


def test_context_is_restored_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), context(eventId="e1"):
        raise ValueError("inside")
    assert current_context() == {}


def test_lazy_ids_are_read_on_demand() -> None:
    reads = 0

    def ids() -> Ids:
        nonlocal reads
        reads += 1
        return {"eventId": "e1", "stream": "fills"}

    with context(traceId="t1", stream="orders"), lazy_context(ids):
        assert reads == 0
        assert current_context() == {"traceId": "t1", "eventId": "e1", "stream": "fills"}
        assert reads == 1
        with context(stream="inner"):
            assert current_context() == {"traceId": "t1", "eventId": "e1", "stream": "inner"}
        with lazy_context(lambda: {"stream": "later"}):
            assert current_context() == {"traceId": "t1", "eventId": "e1", "stream": "later"}
    assert current_context() == {}


async def test_a_task_keeps_lazy_ids_not_yet_read() -> None:
    async def work() -> dict[str, str]:
        await asyncio.sleep(0)
        return current_context()

    with lazy_context(lambda: {"eventId": "e1"}):
        task = asyncio.create_task(work())
    assert await task == {"eventId": "e1"}


def test_current_context_is_a_copy() -> None:
    with context(eventId="e1"):
        current_context()["eventId"] = "changed"
        assert current_context() == {"eventId": "e1"}


async def test_tasks_inherit_and_do_not_disturb_each_other() -> None:
    both_inside = asyncio.Barrier(2)

    async def work(event: str) -> dict[str, str]:
        bind(eventId=event)
        await both_inside.wait()
        return current_context()

    with context(traceId="t1"):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(event)) for event in ("a", "b")]
        assert [task.result() for task in tasks] == [
            {"traceId": "t1", "eventId": "a"},
            {"traceId": "t1", "eventId": "b"},
        ]
        assert current_context() == {"traceId": "t1"}


def test_a_thread_has_no_context_without_with_context() -> None:
    with ThreadPoolExecutor(1) as pool, context(traceId="t1"):
        assert pool.submit(current_context).result() == {}
        assert pool.submit(with_context(current_context)).result() == {"traceId": "t1"}
        assert pool.submit(current_context).result() == {}, "the thread is left as it was"


def test_a_wrapped_function_runs_in_several_threads_at_once() -> None:
    both_inside = threading.Barrier(2, timeout=10)

    def work(event: str) -> dict[str, str]:
        bind(eventId=event)
        both_inside.wait()
        return current_context()

    with ThreadPoolExecutor(2) as pool:
        with context(traceId="t1"):
            wrapped = with_context(work)
        results = list(pool.map(wrapped, ["a", "b"]))
    assert results == [{"traceId": "t1", "eventId": "a"}, {"traceId": "t1", "eventId": "b"}]


def test_with_context_passes_arguments_results_and_errors() -> None:
    assert with_context(divmod)(7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        with_context(divmod)(7, 0)


def test_trace_ids_are_w3c_and_differ() -> None:
    ids = {new_trace_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", trace_id) and int(trace_id, 16) for trace_id in ids)
