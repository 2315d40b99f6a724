"""A strategy that counts in its state, and a process that calls it until it is killed.

    python -m tests.pipeline.counting DATABASE_URL

It prints the count that it begins with, then each count whose signal has left.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from qts.database import Database, DatabaseConfig
from qts.domain import AccountKey, Secret, Side, Tick
from qts.pipeline import RunnerHooks, StrategyRunner
from qts.pipeline.strategy_state import StrategyStates
from qts.strategies import NoParams, Signal, Strategy, View
from tests.pipeline.portfolios import tick, view

ACCOUNT = AccountKey("paper", "counting")


class Counting(Strategy[NoParams], key="counting"):
    class State(msgspec.Struct):
        calls: int = 0
        last_at: float = 0.0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002 - as its base
        self.state.calls += 1
        self.state.last_at = tick.at
        if self.state.calls % 3:
            return
        yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, reason=str(self.state.calls))


async def count(url: str) -> None:
    async with Database.open(Secret(url), DatabaseConfig(pool_min=1, pool_max=2)) as database:
        loop, states = asyncio.get_running_loop(), StrategyStates(database, ACCOUNT, None)

        def deliver(_runner: StrategyRunner, found: list[Any]) -> None:
            os.write(1, b"".join(f"{each.reason}\n".encode() for each in found))

        hooks = RunnerHooks(view, lambda _key: None, deliver, loop, None, states.keep)
        runner = StrategyRunner(Counting(NoParams()), hooks)
        await states.load({runner.key: runner})
        os.write(1, f"{runner.strategy.state.calls}\n".encode())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(states.run())
            while True:
                runner.tick(tick(at=loop.time()))
                await asyncio.to_thread(runner.run_pending)


if __name__ == "__main__":
    asyncio.run(count(sys.argv[1]))
