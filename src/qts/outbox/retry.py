"""How long a failed event waits: doubling pauses, capped, spread by chance."""

from __future__ import annotations

import random

from qts.outbox.config import StreamConfig

JITTER = 0.2  # so that what failed together is not tried together


def pause_s(config: StreamConfig, attempt: int, chance: random.Random) -> float:
    """Seconds to wait after this attempt, counted from 1."""
    # The exponent is bounded too: 2**1000 does not fit a float.
    pause = min(config.backoff_base_s * 2.0 ** min(attempt - 1, 60), config.backoff_max_s)
    return pause * chance.uniform(1 - JITTER, 1 + JITTER)
