"""Coin market: always open, no daily price limits, a new day at midnight UTC."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qts.simulators.market.book import BookShape, SimulatedBook, build
from qts.simulators.market.sessions import DAY_S
from qts.simulators.market.surges import SurgeGenerator
from qts.simulators.market.ticks import COIN, COIN_TICKS, Flags, Floats, Ints
from qts.simulators.market.universe import coins
from qts.simulators.matching import MarketTrade, State

_UTC_MIDNIGHT = 9 * 3600  # of Korean time
_STRIDE = 600  # a market starts at full ten minutes, so that a later start gives the same prices


class CoinMarket:
    """Coin market; prices and sizes in 1/COIN, totals as floats because they may exceed 2**63."""

    table = COIN_TICKS
    depth = 30

    def __init__(
        self, start: int, seed: int = 1, symbols: int = 200, surges_per_hour: float = 12.0
    ) -> None:
        self.universe = coins(seed, symbols)
        self.index = {code: i for i, code in enumerate(self.universe.codes)}
        self.seed = seed
        self.time = start // _STRIDE * _STRIDE
        self._rng = np.random.default_rng([seed, 5])
        self.surges = SurgeGenerator(np.random.default_rng([seed, 6]), symbols, surges_per_hour)
        self._sigma = self.universe.sigma / np.sqrt(DAY_S)
        self._chance: Floats = 1 - np.exp(-self.universe.trade_rate)
        self._mean_size = self.universe.daily_volume / DAY_S / self._chance
        self.suspended: Flags = np.zeros(symbols, np.bool_)
        self.price: Ints = self.universe.price.copy()
        self.log_price: Floats = np.log(self.price)
        self.at_ask: Flags = np.ones(symbols, np.bool_)
        self.size: Ints = np.full(symbols, COIN, np.int64)
        self.traded: Flags = np.zeros(symbols, np.bool_)
        self.traded_at: Ints = np.full(symbols, self.time, np.int64)
        self.traded_volume: Floats = np.zeros(symbols)
        self.gaps: dict[int, int] = {}  # empty levels of the books, by symbol
        self._new_day()

    def _new_day(self) -> None:
        size = len(self.price)
        self.base: Ints = self.price.copy()
        self.open, self.high, self.low = (self.price.copy() for _ in range(3))
        self.before: Floats = self.universe.daily_volume / COIN
        self.volume, self.value, self.buy_volume = (np.zeros(size) for _ in range(3))

    # Time

    def advance(self, target: int) -> Iterator[int]:
        """Advance to the target second by second, yielding each."""
        while self.time < target:
            self.time += 1
            if self.time % DAY_S == _UTC_MIDNIGHT:
                self._new_day()
            self._step()
            yield self.time

    def _step(self) -> None:
        size = len(self.price)
        self.log_price += self._sigma * self._rng.standard_normal(size)
        draws = self._rng.random((3, size))
        self.surges.start_random(self.log_price)
        surging = self.surges.step(self.log_price)
        expected = COIN_TICKS.round_many(np.exp(self.log_price))
        self.traded = ~self.suspended & ((draws[0] < self._chance) | surging)
        amount = COIN // 100 + (self._mean_size * -np.log1p(-draws[1])).astype(np.int64)
        new = np.where(self.traded, expected, self.price)
        up = np.where(new == self.price, draws[2] < 0.5, new > self.price)
        self._record(new, np.where(self.traded, up, self.at_ask), amount)

    def _record(self, price: Ints, at_ask: Flags, amount: Ints) -> None:
        traded = self.traded
        self.price, self.at_ask = price, at_ask
        self.size = np.where(traded, amount, self.size)
        self.traded_at[traded] = self.time
        added = np.where(traded, amount / COIN, 0.0)
        self.volume += added
        self.buy_volume += np.where(at_ask, added, 0.0)
        self.value += added * price / COIN
        self.high = np.maximum(self.high, price)
        self.low = np.minimum(self.low, price)

    # Queries and injected events

    def day_volume(self, index: int) -> float:
        """Return the volume of the last 24 hours: today's, and yesterday's share of the rest."""
        passed = (self.time - _UTC_MIDNIGHT) % DAY_S / DAY_S
        return float(self.volume[index] + self.before[index] * (1 - passed))

    def state(self, index: int) -> State:
        return "closed" if self.suspended[index] else "continuous"

    def last_trade(self, index: int) -> MarketTrade | None:
        if not self.traded[index]:
            return None
        return MarketTrade(int(self.price[index]), int(self.size[index]), crossed=False)

    def book(self, index: int) -> SimulatedBook:
        size = max(COIN / 100, float(self.universe.daily_volume[index]) / 5000)
        price, gap = int(self.price[index]), self.gaps.get(index, 0)
        shape = BookShape(price, bool(self.at_ask[index]), 1, 2**62, size, gap)
        key = (self.seed << 52) ^ (index << 36) ^ (self.time % DAY_S)
        return build(COIN_TICKS, shape, key, self.depth)

    def inject_surge(self, index: int, percent: float, over_s: int = 2) -> None:
        self.surges.start(index, float(np.log(self.price[index])), percent, over_s)

    def suspend(self, index: int, on: bool = True) -> None:
        self.suspended[index] = on
