"""Simulated markets of stocks and coins: all symbols of a second in one array operation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import numpy as np

from qts.simulators.market.rules import (
    COIN,
    COIN_TICKS,
    DAY_S,
    STOCK_TICKS,
    BookShape,
    Flags,
    Floats,
    Ints,
    Phase,
    SimulatedBook,
    build,
    coins,
    next_open,
    next_phase_start,
    opens_at,
    phase_at,
    phases,
    price_limits,
    regular_at,
    stocks,
)
from qts.simulators.matching import MarketTrade, State


@dataclass
class SimulatedSurge:
    index: int
    start: float
    """Log price at its start."""
    move: float
    steps: int
    done: int = 0


class SurgeGenerator:
    """Running surges, at most one per symbol: a later one starts from the current price."""

    def __init__(self, rng: np.random.Generator, size: int, per_hour: float) -> None:
        self._rng = rng
        self._size = size
        self._chance = per_hour / 3600
        self._running: dict[int, SimulatedSurge] = {}

    def start(self, index: int, log_price: float, percent: float, over_s: int) -> None:
        move = math.log1p(percent / 100)
        self._running[index] = SimulatedSurge(index, log_price, move, max(1, over_s))

    def start_random(self, log_prices: Floats) -> None:
        # Always the same number of draws: an injected surge must not change other symbols.
        chance, where, size, sign, span = self._rng.random(5)
        if chance >= self._chance:
            return
        index = int(where * self._size)
        percent = (3.2 + 5 * size) * (1 if sign < 0.7 else -1)
        if index not in self._running:
            self.start(index, float(log_prices[index]), percent, 5 + int(55 * span))

    def step(self, log_prices: Floats) -> Flags:
        """Move surging symbols along their path and return a flag for each symbol."""
        surging = np.zeros(self._size, np.bool_)
        for surge in list(self._running.values()):
            surge.done += 1
            log_prices[surge.index] = surge.start + surge.move * surge.done / surge.steps
            surging[surge.index] = True
            if surge.done >= surge.steps:
                del self._running[surge.index]
        return surging

    def clear(self) -> None:
        self._running.clear()


VI_S, VI_EXTRA_S = 120, 30
STATIC_VI, NARROW_VI, USUAL_VI = 0.10, 0.03, 0.06
_REGULAR_S = 23_400
_AUCTION_STEP_S = 10  # expected prices move at this pace
_CROSS_SHARE = 0.02  # of a day's volume, in each of the two auctions


class StockMarket:
    """Stock market that advances one second at a time.

        opening auction ──▶ regular ──▶ closing auction ──▶ close ──▶ after market ──▶ (next day)
                              │  ▲
              a move too wide ▼  │ two minutes and a bit, then one price for all
                       volatility interruption

    The state at a second is a function of the seed, the first day and the injected events. A price
    changes only where volume changes; outside trading nothing changes.
    """

    table = STOCK_TICKS
    depth = 10

    def __init__(
        self,
        start: int,
        seed: int = 1,
        symbols: int = 2500,
        surges_per_hour: float = 12.0,
        suspended: int = 2,
        always_open: bool = False,
    ) -> None:
        self.always_open = always_open
        self._phase_at = regular_at if always_open else phase_at
        self.universe = stocks(seed, symbols)
        self.index = {code: i for i, code in enumerate(self.universe.codes)}
        self.seed = seed
        # A day is always computed from its first second, so that it is the same for any start.
        first_day = next_open(date.fromordinal(start // DAY_S))
        self.time = start - 1 if always_open else min(start, phases(first_day)[0].start)
        self.phase: Phase = self._phase_at(self.time)
        self._rng = np.random.default_rng([seed, 3])
        self.surges = SurgeGenerator(np.random.default_rng([seed, 4]), symbols, surges_per_hour)
        self.suspended: Flags = np.arange(symbols) >= symbols - suspended
        self.gaps: dict[int, int] = {}  # empty levels of the books, by symbol
        self._dynamic_vi = np.where(self.universe.narrow_vi, NARROW_VI, USUAL_VI)
        self._sigma = self.universe.sigma / np.sqrt(_REGULAR_S)
        self._per_second = self.universe.daily_volume / _REGULAR_S
        self.price: Ints = self.universe.price.copy()
        self.volume: Ints = self.universe.daily_volume.astype(np.int64)
        self.prev_volume: Ints = self.volume
        self._new_day()

    def _new_day(self) -> None:
        size = len(self.price)
        self.base: Ints = self.price.copy()
        self.prev_volume = np.where(self.volume > 0, self.volume, self.prev_volume)
        self.lower, self.upper = price_limits(self.base)
        self._low_log, self._high_log = np.log(self.lower), np.log(self.upper)
        self.log_price: Floats = np.log(self.base)
        self.open, self.high, self.low = (np.zeros(size, np.int64) for _ in range(3))
        self.volume, self.value, self.buy_volume = (np.zeros(size, np.int64) for _ in range(3))
        self.trades, self.buys = (np.zeros(size, np.int64) for _ in range(2))
        self.high_at, self.low_at = (np.zeros(size, np.int64) for _ in range(2))
        self.traded: Flags = np.zeros(size, np.bool_)
        self.crossed: Flags = np.zeros(size, np.bool_)
        self.size: Ints = np.zeros(size, np.int64)
        self.at_ask: Flags = np.ones(size, np.bool_)
        self.vi_until: Ints = np.zeros(size, np.int64)
        self.vi_reference: Ints = self.base.copy()
        self.expected: Ints = self.base.copy()

    # Time

    def advance(self, target: int) -> Iterator[int]:
        """Advance to the target second by second, yielding each; skip closed hours in one step."""
        while self.time < target:
            following = self.time + 1
            if self._phase_at(following).kind == "closed":
                following = min(target, next_phase_start(self.time))
            self._step(following)
            yield self.time

    def _step(self, time: int) -> None:
        before, self.phase, self.time = self.phase, self._phase_at(time), time
        kind = self.phase.kind
        self.traded[:] = False
        self.crossed[:] = False
        if kind == "closed":
            return
        if kind == "opening" and before.kind != "opening":
            self._new_day()
        if kind in ("opening", "closing") and time % _AUCTION_STEP_S:
            return
        self._move(self._activity())
        if kind == "close" or (kind == "regular" and before.kind == "opening"):
            self._cross(~self.suspended)
            self.vi_until[:] = 0
        elif kind in ("regular", "after"):
            self._trade(interruptible=kind == "regular")

    def _activity(self) -> float:
        """Return the activity relative to the day's mean: high at both ends, low at noon."""
        if self.phase.kind == "after":
            return 0.08
        if self.phase.kind != "regular":
            return 0.5
        since, left = self.time - self.phase.start, self.phase.end - self.time
        return float(0.75 + 2.2 * np.exp(-since / 1500) + 1.3 * np.exp(-left / 1800))

    def _move(self, activity: float) -> None:
        size = len(self.price)
        self.log_price += self._sigma * np.sqrt(activity) * self._rng.standard_normal(size)
        self._draws = self._rng.random((3, size))
        self.surges.start_random(self.log_price)
        self._surging = self.surges.step(self.log_price)
        np.clip(self.log_price, self._low_log, self._high_log, out=self.log_price)
        rounded = STOCK_TICKS.round_many(np.exp(self.log_price) + 0.5)
        self.expected = np.clip(rounded, self.lower, self.upper)

    def _trade(self, interruptible: bool) -> None:
        """Trade drawn symbols at the expected price; too wide a move interrupts instead."""
        free = ~self.suspended & (self.vi_until == 0)
        activity = self._activity()
        chance: Floats = 1 - np.exp(-self.universe.trade_rate * activity)
        trading = free & ((self._draws[0] < chance) | self._surging)
        if interruptible:
            over = self.vi_until.astype(np.bool_) & (self.vi_until <= self.time)
            if over.any():
                self._cross(over)
                self.vi_until[over] = 0
            wide = trading & self._too_wide()
            self.vi_until[wide] = self.time + VI_S + (self._draws[2][wide] * VI_EXTRA_S).astype(int)
            trading &= ~wide
        mean = self._per_second * activity / chance
        self._record(trading, 1 + (mean * -np.log1p(-self._draws[1])).astype(np.int64))

    def _too_wide(self) -> Flags:
        far = np.abs(self.expected - self.vi_reference) >= STATIC_VI * self.vi_reference
        fast = np.abs(self.expected - self.price) >= self._dynamic_vi * self.price
        return np.asarray(far | fast)

    def _cross(self, traded: Flags) -> None:
        """Trade symbols at the single price of an auction."""
        share = self.universe.daily_volume * _CROSS_SHARE * (0.5 + self._draws[1])
        self._record(traded, 1 + share.astype(np.int64))
        self.vi_reference[traded] = self.price[traded]
        self.crossed |= traded

    def _record(self, traded: Flags, size: Ints) -> None:
        new = np.where(traded, self.expected, self.price)
        up = np.where(new == self.price, self._draws[2] < 0.5, new > self.price)
        self.at_ask = np.where(traded, up, self.at_ask)
        self.price = new
        added = np.where(traded, size, 0)
        self.size = np.where(traded, size, self.size)
        self.volume += added
        self.value += added * new
        self.buy_volume += np.where(up, added, 0)
        self.trades += traded
        self.buys += traded & up
        first = traded & (self.open == 0)
        self.open[first] = new[first]
        higher, lower = traded & (new > self.high), traded & ((new < self.low) | (self.low == 0))
        self.high[higher], self.low[lower] = new[higher], new[lower]
        self.high_at[higher], self.low_at[lower] = self.time, self.time
        self.traded |= traded

    # Queries and injected events

    @property
    def opened_at(self) -> int:
        return opens_at(date.fromordinal(self.time // DAY_S))

    def state(self, index: int) -> State:
        if self.suspended[index] or self.phase.kind in ("closed", "close"):
            return "closed"
        if self.phase.kind in ("opening", "closing") or self.vi_until[index]:
            return "auction"
        return "continuous"

    def in_vi(self, index: int) -> bool:
        return bool(self.vi_until[index])

    def last_trade(self, index: int) -> MarketTrade | None:
        """Return the trade of this second."""
        if not self.traded[index]:
            return None
        return MarketTrade(int(self.price[index]), int(self.size[index]), bool(self.crossed[index]))

    def book(self, index: int) -> SimulatedBook:
        price = (self.expected if self.state(index) == "auction" else self.price)[index]
        size = max(10.0, float(self.universe.daily_volume[index]) / 4000)
        limits = int(self.lower[index]), int(self.upper[index])
        gap = self.gaps.get(index, 0)
        shape = BookShape(int(price), bool(self.at_ask[index]), *limits, size, gap)
        key = (self.seed << 52) ^ (index << 36) ^ (self.time // 2 % DAY_S)
        return build(STOCK_TICKS, shape, key, self.depth)

    def inject_surge(self, index: int, percent: float, over_s: int = 2) -> None:
        """Start a surge from the last price; the symbol trades every second of it."""
        self.surges.start(index, float(np.log(self.price[index])), percent, over_s)

    def inject_halt(self, index: int, seconds: int) -> None:
        """Start a volatility interruption, in the regular session only."""
        if self.phase.kind == "regular":
            self.vi_until[index] = self.time + max(1, seconds)

    def suspend(self, index: int, on: bool = True) -> None:
        self.suspended[index] = on


_UTC_MIDNIGHT = 9 * 3600  # of Korean time
_STRIDE = 600  # a market starts at full ten minutes, so that a later start gives the same prices


class CoinMarket:
    """Coin market: always open, no daily price limits, a new day at midnight UTC.

    Prices and sizes in 1/COIN, totals as floats because they may exceed 2**63."""

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
