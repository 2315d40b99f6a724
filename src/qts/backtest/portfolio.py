"""Portfolio and clock of a backtest; events move the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.domain import Account, ExitLevels, Instruments, Position, Tick
from qts.pipeline import Portfolio, PortfolioState, account_of
from qts.strategies import View

SEOUL_S = 9 * 3600
DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def day_of(at: float) -> int:
    """Return the day number of a time; days begin at midnight in Seoul (no daylight saving)."""
    return int((at + SEOUL_S) // DAY_S)


def day_end(at: float) -> float:
    return float((day_of(at) + 1) * DAY_S - SEOUL_S)


class Place(Enum):
    """Where in its bar the current event is."""

    TICK = 0  # the tape has no bars
    INSIDE_BAR = 1  # at its open or later
    BAR_CLOSE = 2


class BacktestClock:
    """Clock at the time of the last event, with its place in a bar."""

    def __init__(self) -> None:
        self.at = 0.0
        self.place = Place.TICK

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.at)

    def monotonic_ns(self) -> int:
        return round(self.at * 1e9)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a backtest must not sleep ({seconds} s)")


class Opening(NamedTuple):
    """Account that a backtest begins with; its open orders play no part."""

    account: PortfolioState
    exits: Mapping[str, ExitLevels] = {}  # of its positions, by symbol


class BacktestPortfolio(Portfolio):
    """Portfolio used by one thread; a view refers to the live ticks and copies nothing."""

    def __init__(self, clock: BacktestClock, instruments: Instruments) -> None:
        super().__init__(clock, instruments)
        self._account: tuple[object, Account] | None = None  # the state that it is of
        self._latest: Mapping[str, Tick] = self._ticks
        self.exits: dict[str, ExitLevels] = {}  # of the latest entry of a symbol

    def open_with(self, opening: Opening) -> None:
        """Take cash, positions, their owners and exits as they are before the first event."""
        account = opening.account
        self.load(account.cash, account.positions.values())
        for symbol in account.owners.keys() & account.positions.keys():
            self.set_owner(symbol, account.owners[symbol])
        self.exits |= opening.exits

    def use_ticks(self, latest: Mapping[str, Tick]) -> None:
        """Read last ticks from this mapping from now on."""
        self._latest = latest

    def last_tick(self, symbol: str) -> Tick | None:
        return self._latest.get(symbol)

    def position(self, symbol: str) -> Position | None:
        return self._state.positions.get(symbol)

    def view(self) -> View:
        state = self._state
        if self._account is None or self._account[0] is not state:
            self._account = state, account_of(state)
        return View(
            self._clock.now(),
            self._latest,
            state.positions,
            self._account[1],
            self.equity,
            orders=tuple(state.orders.values()),
        )


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
