"""Program: request quotes from a KIS simulator as fast as the rate limiter in HOME allows.

Runs until killed. Prints a line for each reply, and one at the start when no request is left.

python -m tests.venues.greedy_client URL HOME PER_SECOND PER_MINUTE PER_DAY
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from qts.domain import SystemClock
from qts.venues import KisQuotes, RateLimitConfig, RateLimitedError, RequestPriority, connect_kis
from tests.venues.kis import config_for

CONCURRENT = 30


async def main(url: str, home: Path, limits: RateLimitConfig) -> None:
    async with connect_kis(config_for(url, limits=limits), home, SystemClock()) as client:
        quotes = KisQuotes(client)
        status = client.limiter.status()
        if status.used_minute >= limits.per_minute or status.left_day == 0:
            print("nothing left", flush=True)

        async def poll() -> None:
            while True:
                with contextlib.suppress(RateLimitedError):  # the simulator counts it
                    await quotes.quotes(lambda: ["000000"], RequestPriority.ORDER)
                print("!", flush=True)

        await asyncio.gather(*(poll() for _ in range(CONCURRENT)))


if __name__ == "__main__":
    second, minute, day = map(int, sys.argv[3:])
    known = RateLimitConfig(per_second=second, per_minute=minute, per_day=day)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), known))
