"""Portfolio and clock of a backtest; events move the clock."""

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
    """Return the day number of a time; days begin at midnight in Seoul (no daylight saving)."""
    return int((at + SEOUL_S) // DAY_S)


def day_end(at: float) -> float:
    return float((day_of(at) + 1) * DAY_S - SEOUL_S)


class BacktestClock:
    """Clock at the time of the last event."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.at)

    def monotonic_ns(self) -> int:
        return round(self.at * 1e9)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a backtest must not sleep ({seconds} s)")


class BacktestPortfolio(Portfolio):
    """Portfolio used by one thread; a view refers to the live ticks and copies nothing."""

    def __init__(self, clock: BacktestClock) -> None:
        super().__init__(clock)
        self._account: Account | None = None
        self._latest: Mapping[str, Tick] = self._ticks

    def use_ticks(self, latest: Mapping[str, Tick]) -> None:
        """Read last ticks from this mapping from now on."""
        self._latest = latest

    def last_tick(self, symbol: str) -> Tick | None:
        return self._latest.get(symbol)

    def apply_fill(self, change: FillApplied) -> None:
        super().apply_fill(change)
        self._account = None

    def price(self, position: Position) -> Decimal:
        tick = self._latest.get(position.symbol)
        return Decimal(str(tick.price)) if tick else position.average_price

    def position(self, symbol: str) -> Position | None:
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
    """Mapping of last ticks over the rows (price, volume, bid, ask, time) of a compiled scan."""

    def __init__(self, indices: Mapping[str, int], rows: npt.NDArray[np.float64]) -> None:
        self._indices = indices
        self._rows = rows

    def __getitem__(self, symbol: str) -> Tick:
        price, volume, bid, ask, at = self._rows[self._indices[symbol]].tolist()
        if not price:
            raise KeyError(symbol)
        return Tick(symbol, price, volume, bid, ask, at)

    def __contains__(self, symbol: object) -> bool:
        index = self._indices.get(symbol) if isinstance(symbol, str) else None
        return index is not None and bool(self._rows[index, 0])

    def __iter__(self) -> Iterator[str]:
        return (symbol for symbol, index in self._indices.items() if self._rows[index, 0])

    def __len__(self) -> int:
        return int(np.count_nonzero(self._rows[:, 0]))
