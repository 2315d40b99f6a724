"""Bars and a rule that another backtester was given too; its trades are in golden/.

`golden/backtesting_py.json` was written with backtesting.py 0.6.6: market orders at the next open,
10 units, no costs, one row for each completed trade: number of the bar of its entry, its price,
number of the bar of its exit, its price.
"""

from __future__ import annotations

import random

FAST, SLOW, UNITS = 8, 30, 10
DAYS, MINUTES = 6, 390


def peer_bars() -> list[tuple[float, float, float, float]]:
    """Return open, high, low and close of minutes of several days, with gaps between the days."""
    chance, price, found = random.Random(11), 12_000.0, []  # noqa: S311 - a walk, not a secret
    for _ in range(DAYS):
        price *= 1 + chance.gauss(0, 0.02)
        for _ in range(MINUTES):
            first = _won(price * (1 + chance.gauss(0, 0.0004)))
            last = _won(first * (1 + chance.gauss(0, 0.0015)))
            high = _won(max(first, last) * (1 + abs(chance.gauss(0, 0.0008))))
            low = _won(min(first, last) * (1 - abs(chance.gauss(0, 0.0008))))
            found.append((first, max(high, first, last), min(low, first, last), last))
            price = last
    return found


def _won(price: float) -> float:
    return round(price / 10) * 10.0


def averages(closes: list[float]) -> tuple[float, float] | None:
    """Return the fast and the slow average of the last closes; whole won, so sums are exact."""
    if len(closes) < SLOW:
        return None
    return sum(closes[-FAST:]) * SLOW, sum(closes[-SLOW:]) * FAST
