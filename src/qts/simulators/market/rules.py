"""Rules of the simulated markets: tick sizes, order books, listed symbols, trading days of KRX.

Seconds are counted in Korean time, which has no summer time: `day.toordinal() * 86400` is
midnight in Seoul.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache
from typing import Literal, NamedTuple

import holidays
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

COIN = 10**8
"""Coin prices and volumes are integers in units of 1/COIN, so that sums are exact."""


class TickTable:
    """`ticks[i]` applies below `edges[i]`, the last tick above all. Edges are on both ticks."""

    def __init__(self, edges: list[int], ticks: list[int]) -> None:
        self._edges, self._ticks = edges, ticks
        self._edge_array, self._tick_array = np.array(edges, np.int64), np.array(ticks, np.int64)

    def tick(self, price: int) -> int:
        return self._ticks[bisect_right(self._edges, price)]

    def tick_many(self, prices: Ints) -> Ints:
        found: Ints = self._tick_array[np.searchsorted(self._edge_array, prices, side="right")]
        return found

    def tick_below(self, price: int) -> int:
        """Return the step down from a price, which at an edge is the smaller one."""
        return self.tick(price - 1)

    def is_on(self, price: int) -> bool:
        return price > 0 and price % self.tick(price) == 0

    def round_many(self, prices: Floats) -> Ints:
        """Return the nearest price on a tick, at least one tick."""
        whole = prices.astype(np.int64)
        tick = self.tick_many(whole)
        rounded: Ints = np.maximum((whole + tick // 2) // tick * tick, tick)
        return rounded

    def floor_many(self, prices: Ints) -> Ints:
        tick = self.tick_many(prices)
        return prices // tick * tick

    def ceil_many(self, prices: Ints) -> Ints:
        tick = self.tick_many(prices)
        return -(-prices // tick) * tick

    def prices_from(self, price: int, levels: int, up: bool) -> list[int]:
        """Return up to `levels` consecutive prices from `price` on, above 0."""
        prices: list[int] = []
        while len(prices) < levels and price > 0:
            prices.append(price)
            price = price + self.tick(price) if up else price - self.tick_below(price)
        return prices


STOCK_TICKS = TickTable(  # KOSPI and KOSDAQ since 2023-01-25
    edges=[2_000, 5_000, 20_000, 50_000, 200_000, 500_000],
    ticks=[1, 5, 10, 50, 100, 500, 1_000],
)

_KRW_EDGES = (  # in won, from 0.0001; since 2025-07-31
    (0.0001, 0.00000001), (0.001, 0.000001), (0.01, 0.00001), (0.1, 0.0001), (1, 0.001),
    (10, 0.01), (100, 0.1), (5_000, 1), (10_000, 5), (50_000, 10), (100_000, 50),
    (500_000, 100), (1_000_000, 500),
)  # fmt: skip
COIN_TICKS = TickTable(
    edges=[round(edge * COIN) for edge, _ in _KRW_EDGES],
    ticks=[round(tick * COIN) for _, tick in _KRW_EDGES] + [1_000 * COIN],
)


def price_limits(base: Ints) -> tuple[Ints, Ints]:
    """Return the lower and upper limits of the day: 30 % of the base, cut to the tick."""
    tick = STOCK_TICKS.tick_many(base)
    width = base * 3 // 10 // tick * tick
    return STOCK_TICKS.ceil_many(base - width), STOCK_TICKS.floor_many(base + width)


_MASK = (1 << 64) - 1


class SimulatedLevel(NamedTuple):
    price: int
    quantity: int


class SimulatedBook(NamedTuple):
    """Order book, best levels first; a side is short or empty at a price limit."""

    asks: tuple[SimulatedLevel, ...]
    bids: tuple[SimulatedLevel, ...]


class BookShape(NamedTuple):
    """Parameters of an order book."""

    price: int
    at_ask: bool
    """Whether the last trade was at the ask, which is then the best ask."""
    lower: int
    upper: int
    size: float
    """Usual quantity of one level."""
    gap: int = 0
    """Levels next to the last price that are empty on both sides."""


def build(table: TickTable, shape: BookShape, key: int, levels: int) -> SimulatedBook:
    gap = shape.gap
    best_ask = shape.price if shape.at_ask else shape.price + table.tick(shape.price)
    best_bid = shape.price - table.tick_below(shape.price) if shape.at_ask else shape.price
    asks = [p for p in table.prices_from(best_ask, levels + gap, up=True)[gap:] if p <= shape.upper]
    bids = [
        p for p in table.prices_from(best_bid, levels + gap, up=False)[gap:] if p >= shape.lower
    ]
    return SimulatedBook(
        tuple(_level(p, key, depth, shape.size) for depth, p in enumerate(asks)),
        tuple(_level(p, ~key, depth, shape.size) for depth, p in enumerate(bids)),
    )


def _level(price: int, key: int, depth: int, size: float) -> SimulatedLevel:
    share = 0.25 + 1.5 * noise(key ^ price)
    return SimulatedLevel(price, 1 + int(size * share * (1 + 0.25 * depth)))


def noise(key: int) -> float:
    """Return a number in [0, 1) that is a function of the key (splitmix64)."""
    z = (key * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 2**64


_STOCKS = (  # the first symbols of every universe: examples use them
    ("005930", "삼성전자", 71_900), ("000660", "SK하이닉스", 128_500), ("035420", "NAVER", 201_000),
    ("005380", "현대차", 243_500), ("051910", "LG화학", 352_000), ("035720", "카카오", 47_250),
    ("068270", "셀트리온", 181_300), ("207940", "삼성바이오로직스", 982_000),
    ("005490", "POSCO홀딩스", 378_500), ("000270", "기아", 98_700),
)  # fmt: skip
_COINS = (
    ("BTC", 138_000_000.0), ("ETH", 4_950_000.0), ("XRP", 3_310.0), ("SOL", 238_000.0),
    ("DOGE", 255.0), ("ADA", 942.0), ("USDT", 1_389.0), ("SHIB", 0.0151), ("BONK", 0.0322),
    ("PEPE", 0.0104),
)  # fmt: skip
_COIN_CONSONANTS, _COIN_VOWELS = "BDGKLMNPRSTVZ", "AEIOU"


class Universe(NamedTuple):
    """Arrays with an entry per symbol; prices are in the smallest unit of the market."""

    codes: tuple[str, ...]
    names: tuple[str, ...]
    price: Ints
    sigma: Floats
    """Standard deviation of the log price over a day."""
    daily_volume: Floats
    trade_rate: Floats
    """Trades per second on an average day."""
    kospi: Flags
    narrow_vi: Flags
    """In the index with the narrow volatility interruption (KOSPI 200)."""


def stocks(seed: int, count: int) -> Universe:
    rng = np.random.default_rng([seed, 1])
    numbers = np.sort(rng.choice(np.arange(1_000, 49_999), size=count, replace=False))
    known = _STOCKS[:count]
    taken = {code for code, _, _ in known}
    spare = [code for n in numbers if (code := f"{n * 10:06}") not in taken]
    codes = [code for code, _, _ in known] + spare[: count - len(known)]
    names = [name for _, name, _ in known] + [f"모의{i:04}" for i in range(len(known), count)]
    price = np.exp(rng.normal(9.4, 1.1, count)).clip(600, 900_000)
    price[: len(known)] = [price for _, _, price in known]
    value = np.exp(rng.normal(21.4, 1.6, count))
    value[: len(known)] = 3e11
    kospi = np.arange(count) < count * 0.38
    return _universe(
        (tuple(codes), tuple(names)),
        STOCK_TICKS.round_many(price),
        rng.uniform(0.012, 0.045, count),
        (value, value / price),
        (kospi, np.arange(count) < min(200, count * 0.08)),
    )


def coins(seed: int, count: int) -> Universe:
    rng = np.random.default_rng([seed, 2])
    known = _COINS[:count]
    names = [name for name, _ in known]
    while len(names) < count:
        a, b, c = rng.integers(0, [13, 5, 13])
        name = _COIN_CONSONANTS[a] + _COIN_VOWELS[b] + _COIN_CONSONANTS[c]
        names.append(name if name not in names else f"{name}{len(names)}")
    price = np.exp(rng.normal(5.5, 2.6, count)).clip(0.002, 2e6)
    price[: len(known)] = [price for _, price in known]
    value = np.exp(rng.normal(23.0, 1.4, count))
    value[: len(known)] = 5e11
    none = np.zeros(count, np.bool_)
    return _universe(
        (tuple(f"KRW-{name}" for name in names), tuple(names)),
        COIN_TICKS.round_many(price * COIN),
        rng.uniform(0.02, 0.08, count),
        (value, value / price * COIN),
        (none, none),
    )


def _universe(
    words: tuple[tuple[str, ...], tuple[str, ...]],
    price: Ints,
    sigma: Floats,
    traded: tuple[Floats, Floats],
    boards: tuple[Flags, Flags],
) -> Universe:
    value, volume = traded
    rate = np.clip(value / 4e10, 0.004, 5.0)
    return Universe(*words, price, sigma, volume, rate, *boards)


Kind = Literal["opening", "regular", "closing", "close", "after", "closed"]

KST = timezone(timedelta(hours=9), "KST")
DAY_S = 86_400

AFTER_MARKET_SINCE = date(2026, 9, 14)
CSAT_DAYS = frozenset({date(2024, 11, 14), date(2025, 11, 13), date(2026, 11, 19)})


class Phase(NamedTuple):
    kind: Kind
    start: int
    end: int
    """The first second after it."""


CLOSED = Phase("closed", 0, 0)


def at(day: date, hours: int = 0, minutes: int = 0) -> int:
    return day.toordinal() * DAY_S + hours * 3600 + minutes * 60


def seconds_of(moment: datetime) -> int:
    """Return an aware datetime as seconds in Korean time."""
    local = moment.astimezone(KST)
    return at(local.date(), local.hour, local.minute) + local.second


def moment_of(seconds: int) -> datetime:
    return datetime.fromordinal(seconds // DAY_S).replace(tzinfo=KST) + timedelta(
        seconds=seconds % DAY_S
    )


def utc_ms(seconds: int) -> int:
    return round(moment_of(seconds).astimezone(UTC).timestamp() * 1000)


def hhmmss(seconds: int) -> str:
    second = seconds % DAY_S
    return f"{second // 3600:02}{second // 60 % 60:02}{second % 60:02}"


def yyyymmdd(seconds: int) -> str:
    return date.fromordinal(seconds // DAY_S).strftime("%Y%m%d")


@lru_cache(maxsize=400)
def is_open(day: date) -> bool:
    return day.weekday() < 5 and day not in _closures(day.year)


@lru_cache(maxsize=8)
def _closures(year: int) -> frozenset[date]:
    return frozenset(holidays.financial_holidays("XKRX", years=year))


def next_open(day: date) -> date:
    """Return the day itself or the first open one after it."""
    while not is_open(day):
        day += timedelta(days=1)
    return day


def opens_at(day: date) -> int:
    late = day in CSAT_DAYS or day == next_open(date(day.year, 1, 1))
    return at(day, 10 if late else 9)


@lru_cache(maxsize=16)
def phases(day: date) -> tuple[Phase, ...]:
    """Return the phases of a day in order; none on a closed day."""
    if not is_open(day):
        return ()
    opening = opens_at(day)
    closing = at(day, 16 if day in CSAT_DAYS else 15, 30)
    program = [
        Phase("opening", opening - 1800, opening),
        Phase("regular", opening, closing - 600),
        Phase("closing", closing - 600, closing),
        Phase("close", closing, closing + 1),
    ]
    if day >= AFTER_MARKET_SINCE:
        program.append(Phase("after", closing + 1800, at(day, 20)))
    return tuple(program)


def phase_at(seconds: int) -> Phase:
    for phase in phases(date.fromordinal(seconds // DAY_S)):
        if phase.start <= seconds < phase.end:
            return phase
    return CLOSED


def regular_at(seconds: int) -> Phase:
    """Return the phase of a market that trades at any hour of any day."""
    midnight = seconds - seconds % DAY_S
    return Phase("regular", midnight, midnight + DAY_S)


def next_phase_start(seconds: int) -> int:
    """Return the start of the next phase after this second."""
    day = date.fromordinal(seconds // DAY_S)
    for phase in phases(day):
        if phase.start > seconds:
            return phase.start
    return phases(next_open(day + timedelta(days=1)))[0].start
