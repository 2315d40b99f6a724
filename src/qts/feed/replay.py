"""A recorded day again, through the same intake: at its own pace, faster, or as fast as it goes."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Clock
from qts.feed.intake import Intake
from qts.feed.snapshot import PatternRecord

_PATIENCE_S = 0.001  # shorter waits are not worth a sleep


async def replay(
    records: Iterable[PatternRecord], intake: Intake, clock: Clock, speed: float = 0.0
) -> int:
    """Feed the records to the intake in their order; speed 0 is without any wait.

    The order and what is noticed depend on the records alone, never on the speed.
    """
    count, first, began_ns = 0, 0.0, clock.monotonic_ns()
    for record in records:
        at = record.snapshot.meta.time.timestamp()
        first = first or at
        if speed > 0:
            passed = (clock.monotonic_ns() - began_ns) / 1e9
            wait = (at - first) / speed - passed
            if wait > _PATIENCE_S:
                await clock.sleep(wait)
        intake.take_again(record.snapshot)
        count += 1
    return count
