"""Folds of a walk-forward test: parameters are chosen on one stretch and judged on the next.

    bars      ────────────────────────────────────────────▶
    fold 1    in in in in in in │out out│
    fold 2            in in in in in in │out out│
    fold 3                    in in in in in in │out out│

Out-of-sample stretches follow each other without a gap and without an overlap, and each begins
after the last bar of the stretch that its parameters were chosen on.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError

MIN_BARS = 2  # of a stretch, in sample and out of sample


class Fold(msgspec.Struct, frozen=True):
    """Times between bars: in sample (start, split], out of sample (split, end]."""

    number: int
    start: float
    split: float
    end: float


def make_folds(times: npt.NDArray[np.float64], count: int, share: float) -> tuple[Fold, ...]:
    """Return folds over bars that close at `times`; `share` of each is out of sample."""
    closes = np.unique(times)
    outside = int(len(closes) * share / (1 - share + count * share))
    inside = len(closes) - count * outside
    if outside < MIN_BARS or inside < MIN_BARS:
        raise RefusedError(
            f"--walk-forward {count}: {len(closes)} bars are too few; a fold has {inside} in "
            f"sample and {outside} out of sample, expected at least {MIN_BARS} of each"
        )
    before = np.concatenate([[closes[0] - 1.0], closes])  # before[n] is the end of n bars
    return tuple(
        Fold(
            number,
            float(before[number * outside]),
            float(before[number * outside + inside]),
            float(before[(number + 1) * outside + inside]),
        )
        for number in range(count)
    )
