"""Tapes for tests: random walks of several symbols, and given prices."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from qts.backtest import Tape
from qts.domain import Tick

BEGIN = 1_794_787_200.0  # Monday 2026-11-16, 09:00 in Seoul
SYMBOLS = ("005930", "000660", "035420", "KRW-BTC", "051910")


def walk(
    seed: int, length: int = 400, symbols: Sequence[str] = SYMBOLS, step: float = 0.004
) -> list[Tick]:
    """Return one tick per symbol and second; some quotes are missing, some prices invalid."""
    rng = random.Random(seed)  # noqa: S311 - a walk, not a secret
    prices = {symbol: rng.uniform(3_000, 90_000) for symbol in symbols}
    ticks = []
    for second in range(length):
        for symbol in symbols:
            prices[symbol] *= math.exp(rng.gauss(0, step))
            price = max(10.0, round(prices[symbol] / 10) * 10.0)
            if rng.random() < 0.01:
                price = rng.choice((0.0, -1.0, math.nan, math.inf))
            spread = rng.choice((0.0, 10.0))
            volume = float(rng.randint(0, 500))
            bid, ask = (price - spread, price + spread) if spread else (0.0, 0.0)
            ticks.append(Tick(symbol, price, volume, bid, ask, BEGIN + second))
    return ticks


def prices(values: Sequence[float], symbol: str = "005930", start: float = BEGIN) -> list[Tick]:
    """Return ticks of one symbol, one price a second, without quotes."""
    return [Tick(symbol, value, 100.0, 0, 0, start + i) for i, value in enumerate(values)]


def tape(ticks: Sequence[Tick]) -> Tape:
    return Tape.of_ticks(lambda: ticks, len(ticks))
