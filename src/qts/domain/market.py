"""Markets: ticks, bars, tick sizes and fees. The rules of a symbol are those of its instrument."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from qts.domain.orders import Side


class Market(StrEnum):
    KRX = "KRX"
    UPBIT = "UPBIT"
    OTHER = "OTHER"  # of a venue that a package adds


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Price update of a symbol, the same from the feed to the strategies and in PRICE_TICK.

    Times are in seconds since the Unix epoch. `at` is when QTS received the update, by the clock
    that orders, signals and ages are measured with; `venue_at` is when the last trade happened by
    the venue's clock, 0 where the venue sends no time. A tick of the feed has the last price as
    the bid or ask that the venue did not send.
    """

    symbol: str
    price: float
    volume: float = 0.0  # traded since the previous tick of the symbol
    bid: float = 0.0
    ask: float = 0.0
    at: float = 0.0
    venue_at: float = 0.0


@lru_cache(65_536, typed=True)
def exact_decimal(number: float) -> Decimal:
    """Return a number as it is written: 0.1 is one tenth. Prices repeat, so they are kept."""
    return Decimal(str(number))


BOOK_MAX_AGE_S = 10.0  # an older order book is not used
_CLOCK_STEP_S = 0.001  # rounding of two readings of a clock


class BookLevel(NamedTuple):
    price: float
    quantity: float


class OrderBook(msgspec.Struct, frozen=True, gc=False):
    """Order book of a symbol, best levels first; the payload of ORDERBOOK_UPDATE.

    `at` is when QTS received it, `venue_at` the venue's time, 0 where it sends none.
    """

    symbol: str
    bids: tuple[BookLevel, ...] = ()
    asks: tuple[BookLevel, ...] = ()
    at: float = 0.0
    venue_at: float = 0.0

    def is_fresh(self, now: float) -> bool:
        """Return whether it may be used at `now`, in seconds since the Unix epoch."""
        return -_CLOCK_STEP_S <= now - self.at <= BOOK_MAX_AGE_S


class Timeframe(StrEnum):
    """Length of a bar; `1d` is a trading day of the market."""

    S1 = "1s"
    M1 = "1m"
    M3 = "3m"
    M5 = "5m"
    M15 = "15m"
    H1 = "1h"
    D1 = "1d"

    @property
    def seconds(self) -> int:
        """Length in seconds; a day has 86,400, whatever its session."""
        return _TIMEFRAME_S[self]


class Bar(NamedTuple):
    """Prices of a symbol over a timeframe.

    `at` is the close of the bar in seconds since the Unix epoch, from which on the bar is known.
    A bar of seconds, minutes or hours starts at `at - timeframe.seconds`; a day closes at the end
    of the regular session (KRX) or at midnight UTC (Upbit).
    """

    symbol: str
    timeframe: Timeframe
    at: float
    open: float
    high: float
    low: float
    close: float
    volume: float
    value: float = 0.0
    """Sum of price times volume; 0 where the source has none."""


_TIMEFRAME_S = {
    Timeframe.S1: 1, Timeframe.M1: 60, Timeframe.M3: 180, Timeframe.M5: 300,
    Timeframe.M15: 900, Timeframe.H1: 3600, Timeframe.D1: 86_400,
}  # fmt: skip


# (upper price bound, tick size); the last has no bound. KOSPI and KOSDAQ since 2023-01-25.
KRX_TICKS = (
    ("2000", "1"), ("5000", "5"), ("20000", "10"), ("50000", "50"), ("200000", "100"),
    ("500000", "500"), ("Infinity", "1000"),
)  # fmt: skip
# KRW markets since 2025-07-31.
UPBIT_TICKS = (
    ("0.0001", "0.00000001"), ("0.001", "0.000001"), ("0.01", "0.00001"), ("0.1", "0.0001"),
    ("1", "0.001"), ("10", "0.01"), ("100", "0.1"), ("5000", "1"), ("10000", "5"),
    ("50000", "10"), ("100000", "50"), ("500000", "100"), ("1000000", "500"),
    ("Infinity", "1000"),
)  # fmt: skip


class FeeSchedule(msgspec.Struct, frozen=True):
    """Fee and sales tax of a fill, as fractions of its amount."""

    fee: Decimal
    sale_tax: Decimal

    def of(self, side: Side, amount: Decimal) -> Decimal:
        return amount * (self.fee + (self.sale_tax if side is Side.SELL else 0))
