"""Strategies in processes of their own hold still while an exit is on its way."""

from __future__ import annotations

import asyncio

from qts.app import stillness as room
from qts.app.stillness import Stillness
from qts.pipeline import Apart, Runner
from tests.embedded.clients import state_of
from tests.pipeline.test_apart import Hanging, running


async def test_they_go_on_when_the_time_is_over() -> None:
    async with running(Hanging) as bench:
        asked = asyncio.create_task(bench.runner.evaluate())
        await bench.until(lambda: bench.runner._out is not None)
        process = bench.runner.pid
        assert process
        still = Stillness({"hanging": bench.runner})
        await asyncio.to_thread(still)  # as from the lane of the exits
        assert state_of(process) == "T"
        await bench.until(lambda: state_of(process) == "R")
    asked.cancel()


async def test_each_exit_gives_the_time_anew() -> None:
    class Told(Apart):
        def __init__(self) -> None:
            self.told: list[str] = []

        def hold_still(self) -> None:
            self.told.append("still")

        def go_on(self) -> None:
            self.told.append("on")
            over.set()

    over, one = asyncio.Event(), Told()
    in_lane = object.__new__(Runner)
    still = Stillness({"one": one, "other": in_lane})
    for _ in range(3):
        still()
    async with asyncio.timeout(60):
        await over.wait()
    await asyncio.sleep(2 * room.HOLD_S)
    assert one.told == ["still", "still", "still", "on"]
