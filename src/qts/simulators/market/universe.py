"""Listed symbols generated from a seed: codes, names, prices, volatility, liquidity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qts.simulators.market.ticks import COIN, COIN_TICKS, STOCK_TICKS, Flags, Floats, Ints

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
