"""Time measurements on a busy machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TIMEOUT_S = 30.0  # long, because the machine may be busy
TRIALS = 15

Step = Callable[[], Awaitable[object]]


async def fastest(trial: Step, before: Step | None = None, enough_s: float = 1.0) -> float:
    """Return the seconds of the fastest trial, repeated until one is fast enough.

    `before` is not measured. A busy machine slows down some trials, a slow product all of them.
    """
    loop = asyncio.get_running_loop()
    best = float("inf")
    for _ in range(TRIALS):
        if before is not None:
            await before()
        start = loop.time()
        await trial()
        best = min(best, loop.time() - start)
        if best < enough_s:
            break
    return best
