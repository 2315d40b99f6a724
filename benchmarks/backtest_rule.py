"""Bars and the rule that every backtester runs, and a trade as all of them report it.

Enter when the fast exponential average of the closes crosses above the slow one, exit when it is
below it; ten units, no costs, filled at the open of the next bar. A bar opens where it closes, with
a high and a low around: an engine that fills at the next price and one that fills at the next open
trade at the same price. Prices fall at both ends, so that nobody holds at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UNITS = 10
CASH = 1_000_000_000
FIRST_OPEN_S = 1_767_571_200  # 2026-01-05 00:00 UTC
BAR_S = 60
_SEOUL_S, _DAY_S = 9 * 3600, 86_400
_TICK = 10.0  # of the prices, in won
_FALL = -0.0002  # a bar, at both ends

Floats = npt.NDArray[np.float64]


class Rule(NamedTuple):
    fast: int
    slow: int


class Bars(NamedTuple):
    """One-minute bars, a row for each symbol."""

    symbols: tuple[str, ...]
    close: Floats  # and open
    high: Floats
    low: Floats

    @property
    def length(self) -> int:
        return int(self.close.shape[1])

    @property
    def total(self) -> int:
        """Bars of all symbols."""
        return self.close.size

    @property
    def closes_at(self) -> npt.NDArray[np.int64]:
        """Seconds since 1970 at which the bars close."""
        return FIRST_OPEN_S + BAR_S * np.arange(1, self.length + 1)


class Trade(NamedTuple):
    """Completed trade; a bar is named by its number."""

    symbol: str
    entry_bar: int
    entry: float
    exit_bar: int
    exit: float
    units: float


class RunResult(NamedTuple):
    seconds: float
    trades: list[Trade]
    child_cpu_s: float = 0.0  # CPU time of another process of ours


def random_bars(symbols: int, length: int, rule: Rule) -> Bars:
    random = np.random.default_rng(7)
    steps = random.normal(0, 0.0005, (symbols, length))
    steps[:, : 2 * rule.slow] = steps[:, -2 * rule.slow :] = _FALL
    close = np.round(10_000 * np.exp(np.cumsum(steps, axis=1)) / _TICK) * _TICK
    high, low = (_TICK * random.integers(0, 4, (2, symbols, length))).astype(np.float64)
    names = tuple(f"KRW-S{number:03}" for number in range(symbols))
    return Bars(names, close, close + high, close - low)


def differences(ours: list[Trade], peers: list[Trade]) -> list[str]:
    """Return each trade that only one of them made."""
    mine, theirs = set(map(_rounded, ours)), set(map(_rounded, peers))
    only_ours = [f"only ours: {each}" for each in sorted(mine - theirs)]
    return only_ours + [f"only the peer's: {each}" for each in sorted(theirs - mine)]


def unexplained(ours: list[Trade], peers: list[Trade]) -> list[str]:
    """Return the differences whose reason is not that our order had ended with its day.

    Over closes, the next price after an order of the day's last but one close is that of midnight
    in Seoul: the order ends, and the peer fills it. Ours is decided again at the next close.
    """
    mine, theirs = set(map(_rounded, ours)), set(map(_rounded, peers))
    late = [each for each in theirs - mine if _is_late(each.entry_bar) or _is_late(each.exit_bar)]
    return [
        f"only {whose}: {each}"
        for only, whose in ((mine - theirs, "ours"), (theirs - mine - set(late), "the peer's"))
        for each in sorted(only)
        if not any(_overlap(each, other) for other in late)
    ]


def _is_late(bar: int) -> bool:
    """Return whether a fill at the open of this bar is of an order that ended at midnight."""
    return (FIRST_OPEN_S + (bar + 1) * BAR_S + _SEOUL_S) % _DAY_S == 0


def _overlap(one: Trade, other: Trade) -> bool:
    """Return whether two trades of a symbol are at the same time, or one bar apart."""
    is_apart = one.entry_bar > other.exit_bar + 1 or other.entry_bar > one.exit_bar + 1
    return one.symbol == other.symbol and not is_apart


def _rounded(trade: Trade) -> Trade:
    return trade._replace(
        entry=round(trade.entry, 6), exit=round(trade.exit, 6), units=round(trade.units, 6)
    )
