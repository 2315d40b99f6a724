"""The world of a backtest: a clock that the events move, and the latest ticks as of that moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from qts.domain import Account, Holding, Position, Tick
from qts.orders import FillApplied
from qts.pipeline import Portfolio
from qts.strategies import View

SEOUL_S = 9 * 3600
DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def day_of(at: float) -> int:
    """The trading day of a moment: from midnight to midnight in Seoul, which has no summer time."""
    return int((at + SEOUL_S) // DAY_S)


def day_end(at: float) -> float:
    return float((day_of(at) + 1) * DAY_S - SEOUL_S)


class BacktestClock:
    """Stands where the last event has put it."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.at)

    def monotonic_ns(self) -> int:
        return round(self.at * 1e9)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing sleeps in the past, and not for {seconds} s")


class BacktestPortfolio(Portfolio):
    """Used by one thread, so a view looks at the ticks themselves and copies nothing."""

    def __init__(self, clock: BacktestClock) -> None:
        super().__init__(clock)
        self._account: Account | None = None
        self._latest: Mapping[str, Tick] = self._ticks

    def look_at(self, latest: Mapping[str, Tick]) -> None:
        """Ticks are kept elsewhere from now on."""
        self._latest = latest

    def last_tick(self, symbol: str) -> Tick | None:
        return self._latest.get(symbol)

    def apply_fill(self, change: FillApplied) -> None:
        super().apply_fill(change)
        self._account = None

    def price(self, position: Position) -> Decimal:
        tick = self._latest.get(position.symbol)
        return Decimal(str(tick.price)) if tick else position.average_price

    def held(self, symbol: str) -> Position | None:
        return self._positions.get(symbol)

    def view(self) -> View:
        if self._account is None:
            holdings = tuple(
                Holding(symbol=p.symbol, quantity=p.quantity, average_price=p.average_price)
                for p in self._positions.values()
            )
            self._account = Account(cash=self._cash, holdings=holdings)
        return View(self._clock.now(), self._latest, self._positions, self._account, self.equity)


class LatestTicks(Mapping[str, Tick]):
    """The latest ticks, from rows of price, volume, bid, ask and time that a scan keeps."""

    def __init__(self, places: Mapping[str, int], rows: npt.NDArray[np.float64]) -> None:
        self._places = places
        self._rows = rows

    def __getitem__(self, symbol: str) -> Tick:
        price, volume, bid, ask, at = self._rows[self._places[symbol]].tolist()
        if not price:
            raise KeyError(symbol)
        return Tick(symbol, price, volume, bid, ask, at)

    def __contains__(self, symbol: object) -> bool:
        place = self._places.get(symbol) if isinstance(symbol, str) else None
        return place is not None and bool(self._rows[place, 0])

    def __iter__(self) -> Iterator[str]:
        return (symbol for symbol, place in self._places.items() if self._rows[place, 0])

    def __len__(self) -> int:
        return int(np.count_nonzero(self._rows[:, 0]))
