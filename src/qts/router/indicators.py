"""Indicators computed in C++ on every message, one value for each symbol.

An indicator is the handler of one processor or strategy and sees what passes there. Its `values`
is an array indexed by symbol id that the router writes in place: reading it copies nothing and
takes no lock. NaN means that the value is not known yet.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError
from qts.router.handlers import Handler

SYMBOLS = 65_536
_MOST_SYMBOLS = 2**24
_LONGEST = 1_000_000


class Indicator(Handler, frozen=True, eq=False):
    values: npt.NDArray[np.float64]


def ema(period: int, *, symbols: int = SYMBOLS) -> Indicator:
    """Exponential moving average of the price with alpha 2 / (period + 1), from the first price."""
    return _indicator("ema", period, symbols)


def rsi(period: int = 14, *, symbols: int = SYMBOLS) -> Indicator:
    """Relative strength index after Wilder, 0 to 100; 50 where the price has not moved."""
    return _indicator("rsi", period, symbols)


def vwap(*, symbols: int = SYMBOLS) -> Indicator:
    """Average price since the start, weighted by quantity."""
    return _indicator("vwap", 1, symbols)


def _indicator(kind: str, period: int, symbols: int) -> Indicator:
    for name, value, most in (("period", period, _LONGEST), ("symbols", symbols, _MOST_SYMBOLS)):
        if not 1 <= value <= most:
            raise RefusedError(f"{name} of an indicator is {value}; expected 1 to {most:,}")
    table = np.full(symbols, np.nan)
    values = table.view()
    values.flags.writeable = False
    return Indicator(kind, (period, table), values)
