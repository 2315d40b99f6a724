"""Context ids in calls and tasks."""

from __future__ import annotations

import asyncio
import re

import pytest

from qts.telemetry import (
    Ids,
    context,
    current_context,
    lazy_context,
    new_trace_id,
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
        with context(eventId=event):
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


def test_trace_ids_are_w3c_and_differ() -> None:
    ids = {new_trace_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", trace_id) and int(trace_id, 16) for trace_id in ids)
