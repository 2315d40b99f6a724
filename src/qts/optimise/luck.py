"""Deflated Sharpe ratio: how likely a Sharpe ratio is skill, given how many were tried.

D. H. Bailey and M. Lopez de Prado, "The Deflated Sharpe Ratio: Correcting for Selection Bias,
Backtest Overfitting, and Non-Normality", Journal of Portfolio Management 40 (5), 2014.

    SR0 = sqrt(V) ((1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e)))     the best of N tries without skill
    DSR = P((SR - SR0) sqrt(T - 1) / sqrt(1 - s SR + (k - 1)/4 SR^2))

SR is the Sharpe ratio of one period, not of a year, T the number of returns, s their skewness, k
their kurtosis (3 for normal ones), V the variance of the tries' Sharpe ratios, g Euler's constant,
P the normal distribution and Z its inverse.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

_EULER = 0.5772156649015329
_NORMAL = statistics.NormalDist()
_MIN_RETURNS = 3


class ReturnMoments(msgspec.Struct, frozen=True):
    """What the deflated Sharpe ratio needs of the daily returns of a trial."""

    sharpe: float  # of a day
    count: int
    skewness: float
    kurtosis: float

    @classmethod
    def of(cls, returns: Sequence[float]) -> ReturnMoments | None:
        """Return the moments; None for returns that are too few or all equal."""
        if len(returns) < _MIN_RETURNS or not (spread := statistics.stdev(returns)):
            return None
        mean = statistics.fmean(returns)
        second, third, fourth = (
            statistics.fmean((each - mean) ** power for each in returns) for power in (2, 3, 4)
        )
        if not (second**2):  # smaller than a float can square
            return None
        return cls(mean / spread, len(returns), third / second**1.5, fourth / second**2)


def expected_best_sharpe(tries: Sequence[float]) -> float:
    """Return the Sharpe ratio that the best of these tries has on average without any skill."""
    if len(tries) < 2:
        return 0.0
    count = len(tries)
    return statistics.stdev(tries) * (
        (1 - _EULER) * _NORMAL.inv_cdf(1 - 1 / count)
        + _EULER * _NORMAL.inv_cdf(1 - 1 / (count * math.e))
    )


def deflated_sharpe(best: ReturnMoments, expected: float) -> float | None:
    """Return the probability that the true Sharpe ratio exceeds `expected`; None if undefined."""
    ratio = best.sharpe
    variance = 1 - best.skewness * ratio + (best.kurtosis - 1) / 4 * ratio**2
    if variance <= 0:
        return None
    return _NORMAL.cdf((ratio - expected) * math.sqrt(best.count - 1) / math.sqrt(variance))
