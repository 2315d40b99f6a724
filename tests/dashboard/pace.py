"""How soon something is so, on a machine that has other things to do as well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PATIENCE_S = 30.0  # for what takes a blink; a busy machine has its own idea of one
TRIALS = 5

Step = Callable[[], Awaitable[object]]


async def soonest(trial: Step, before: Step | None = None, enough_s: float = 1.0) -> float:
    """Seconds of the quickest trial, tried until one is quick enough; `before` takes no part.

    A busy machine makes some of them slow; a product that is slow makes all of them so.
    """
    loop = asyncio.get_running_loop()
    best = float("inf")
    for _ in range(TRIALS):
        if before is not None:
            await before()
        began = loop.time()
        await trial()
        best = min(best, loop.time() - began)
        if best < enough_s:
            break
    return best
