"""Tasks of a run: the end of one that nobody requested ends the run."""

from __future__ import annotations

import asyncio

import pytest

from qts.app.supervision import TaskSupervisor
from qts.domain import UnreachableError


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnreachableError("no server"), "no server"),
        (asyncio.CancelledError(), "consumer was cancelled"),
    ],
)
async def test_a_task_that_ends_by_itself_fails_the_run(error: BaseException, words: str) -> None:
    tasks = TaskSupervisor()
    tasks.start("consumer", fail(error))
    async with asyncio.timeout(5):
        with pytest.raises((UnreachableError, RuntimeError), match=words):
            await tasks.failed


async def test_an_end_that_was_requested_is_no_failure() -> None:
    tasks = TaskSupervisor()
    feed = tasks.start("feed", asyncio.sleep(60))
    cycles = tasks.start("cycles", asyncio.sleep(60))
    other = tasks.start("other", asyncio.sleep(60))
    await tasks.end([feed])
    assert (feed.cancelled(), other.done()) == (True, False)
    cycles.cancel()  # the pipeline ends the cycles in flight
    await tasks.end()
    assert (cycles.cancelled(), other.cancelled()) == (True, True)
    assert not tasks.failed.done()
