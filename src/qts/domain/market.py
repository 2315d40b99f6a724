"""Markets and their rules: tick sizes, daily price limits, smallest orders, fees and taxes."""

from __future__ import annotations

from bisect import bisect_right
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from typing import NamedTuple

import msgspec

from qts.domain.orders import Side

DAY_LIMIT = Decimal("0.30")  # largest daily move of a KRX stock from its base price


class Market(StrEnum):
    KRX = "KRX"
    UPBIT = "UPBIT"


class Tick(NamedTuple):
    """Price update of a symbol. `at` is in seconds since the Unix epoch."""

    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    at: float


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
_TABLES = {
    market: ([Decimal(edge) for edge, _ in rows], [Decimal(tick) for _, tick in rows])
    for market, rows in ((Market.KRX, KRX_TICKS), (Market.UPBIT, UPBIT_TICKS))
}


_MIN_ORDER_VALUE = {Market.KRX: Decimal(0), Market.UPBIT: Decimal(5000)}


def min_order_value(market: Market) -> Decimal:
    """Return the least value of an order that the market takes, in won; 0: any."""
    return _MIN_ORDER_VALUE[market]


def market_for_symbol(symbol: str) -> Market:
    """Return the market of a symbol: Upbit writes KRW-BTC, KRX six letters or digits."""
    return Market.UPBIT if "-" in symbol else Market.KRX


def tick_size(market: Market, price: Decimal) -> Decimal:
    edges, ticks = _TABLES[market]
    return ticks[bisect_right(edges, price)]


def is_on_tick(market: Market, price: Decimal) -> bool:
    return price > 0 and price % tick_size(market, price) == 0


def round_to_tick(market: Market, price: Decimal, side: Side | None = None) -> Decimal:
    """Return the nearest price on a tick; with a side, the nearest that is not worse for us."""
    rounding = ROUND_HALF_EVEN
    if side is not None:
        rounding = ROUND_FLOOR if side is Side.BUY else ROUND_CEILING
    tick = tick_size(market, price)
    return max(tick, (price / tick).quantize(Decimal(1), rounding) * tick)


def daily_price_limits(base: Decimal) -> tuple[Decimal, Decimal]:
    """Return lower and upper daily limit of a KRX stock: 30 % of the base, rounded to ticks."""
    step = base * DAY_LIMIT
    step -= step % tick_size(Market.KRX, base)
    lower, upper = base - step, base + step
    return round_to_tick(Market.KRX, lower, Side.SELL), round_to_tick(Market.KRX, upper, Side.BUY)


class FeeSchedule(msgspec.Struct, frozen=True):
    """Fee and sales tax of a fill, as fractions of its amount."""

    fee: Decimal
    sale_tax: Decimal

    def of(self, side: Side, amount: Decimal) -> Decimal:
        return amount * (self.fee + (self.sale_tax if side is Side.SELL else 0))
