"""Strategies in processes of their own hold still while an exit is on its way."""

from __future__ import annotations

import asyncio

import pytest

from qts.pipeline import IsolatedRunner, StrategyRunner
from qts.pipeline import isolated_runner as room
from qts.pipeline.isolated_runner import ProcessPauser
from tests.embedded.clients import state_of
from tests.pipeline.test_isolated_runner import Hanging, running


async def test_they_go_on_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_PAUSE_S", 3600.0)
    async with running(Hanging) as bench:
        asked = asyncio.create_task(bench.runner.evaluate())
        await bench.until(lambda: bench.runner._in_flight is not None)
        process = bench.runner.pid
        assert process
        still = ProcessPauser({"hanging": bench.runner})
        for hold_s, state in ((3600.0, "T"), (0.0, "R")):
            monkeypatch.setattr(room, "PAUSE_S", hold_s)
            await asyncio.to_thread(still)  # as from the lane of the exits
            await bench.until(lambda: state_of(process) == state)  # noqa: B023 - waited for here
    asked.cancel()


class Told(IsolatedRunner):
    """Only what it is told; no process."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.goes_on = asyncio.Event()

    def pause(self) -> None:
        self.told.append("still")

    def resume(self) -> None:
        self.told.append("on")
        self.goes_on.set()


async def test_each_exit_gives_the_time_anew() -> None:
    one, in_lane = Told(), object.__new__(StrategyRunner)
    still = ProcessPauser({"one": one, "other": in_lane})
    for _ in range(3):
        still()
    async with asyncio.timeout(60):
        await one.goes_on.wait()
    assert still._end is None  # nothing more is to come
    assert one.told == ["still", "still", "still", "on"]


async def test_exits_that_do_not_end_leave_strategies_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MAX_PAUSE_S", 0.1)
    monkeypatch.setattr(room, "REST_S", 3600.0)
    one = Told()
    still = ProcessPauser({"one": one})
    async with asyncio.timeout(60):
        while not still._rests_until:
            still()
            await asyncio.sleep(0)
    for _ in range(100):
        still()
    assert one.told[-1] == "on"
