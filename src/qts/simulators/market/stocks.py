"""Stock market that advances one second at a time, all symbols in one array operation.

    opening auction ──▶ regular ──▶ closing auction ──▶ close ──▶ after market ──▶ (next day)
                          │  ▲
          a move too wide ▼  │ two minutes and a bit, then one price for all
                   volatility interruption

The state at a second is a function of the seed, the first day and the injected events. A price
changes only where volume changes; outside trading nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np

from qts.simulators.market.book import BookShape, SimulatedBook, build
from qts.simulators.market.sessions import (
    DAY_S,
    Phase,
    next_open,
    next_phase_start,
    opens_at,
    phase_at,
    phases,
    regular_at,
)
from qts.simulators.market.surges import SurgeGenerator
from qts.simulators.market.ticks import STOCK_TICKS, Flags, Floats, Ints, price_limits
from qts.simulators.market.universe import stocks
from qts.simulators.matching import MarketTrade, State

VI_S, VI_EXTRA_S = 120, 30
STATIC_VI, NARROW_VI, USUAL_VI = 0.10, 0.03, 0.06
_REGULAR_S = 23_400
_AUCTION_STEP_S = 10  # expected prices move at this pace
_CROSS_SHARE = 0.02  # of a day's volume, in each of the two auctions


class StockMarket:
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
        self._log_base = np.log(self.base)
        self._low_log, self._high_log = np.log(self.lower), np.log(self.upper)
        self.log_price: Floats = self._log_base.copy()
        self.open, self.high, self.low = (np.zeros(size, np.int64) for _ in range(3))
        self.volume, self.value, self.buy_volume = (np.zeros(size, np.int64) for _ in range(3))
        self.trades, self.buys = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.high_at, self.low_at = np.zeros(size, np.int64), np.zeros(size, np.int64)
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

    def _chance(self, activity: float) -> Floats:
        return 1 - np.exp(-self.universe.trade_rate * activity)

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
        chance = self._chance(activity)
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
        auction = self.state(index) == "auction"
        price = self.expected[index] if auction else self.price[index]
        size = max(10.0, float(self.universe.daily_volume[index]) / 4000)
        limits = int(self.lower[index]), int(self.upper[index])
        gap = self.gaps.get(index, 0)
        shape = BookShape(int(price), bool(self.at_ask[index]), *limits, size, gap)
        return build(STOCK_TICKS, shape, self._key(index), self.depth)

    def _key(self, index: int) -> int:
        return (self.seed << 52) ^ (index << 36) ^ (self.time // 2 % DAY_S)

    def inject_surge(self, index: int, percent: float, over_s: int = 2) -> None:
        """Start a surge from the last price; the symbol trades every second of it."""
        self.surges.start(index, float(np.log(self.price[index])), percent, over_s)

    def inject_halt(self, index: int, seconds: int) -> None:
        """Start a volatility interruption, in the regular session only."""
        if self.phase.kind == "regular":
            self.vi_until[index] = self.time + max(1, seconds)

    def suspend(self, index: int, on: bool = True) -> None:
        self.suspended[index] = on
