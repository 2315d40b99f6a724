"""A world whose changes are counted and kept in a journal, and the same one read from there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from msgspec.structs import astuple, replace

from qts.domain import Clock, Position, RefusedError, Tick
from qts.orders import FillApplied
from qts.pipeline.decision_journal import (
    Change,
    DecisionJournal,
    FillEntry,
    OwnerEntry,
    StartEntry,
    TickEntry,
)
from qts.pipeline.portfolio import Portfolio
from qts.strategies import View


class JournaledPortfolio(Portfolio):
    """Changed by one thread. A view that a change came into is taken again."""

    def __init__(self, clock: Clock, journal: DecisionJournal) -> None:
        super().__init__(clock)
        self._journal = journal
        self._turns = 0  # odd while a change is being made

    @property
    def version(self) -> int:
        return self._turns // 2

    def apply_tick(self, tick: Tick) -> None:
        self._turns += 1
        super().apply_tick(tick)
        self._done(TickEntry(*tick))

    def load(self, cash: Decimal, positions: Iterable[Position]) -> None:
        self._turns += 1
        super().load(cash, positions)
        self._done(StartEntry(self._cash, tuple(self._positions.values())))

    def apply_fill(self, change: FillApplied) -> None:
        self._turns += 1
        super().apply_fill(change)
        symbol = change.fill.symbol
        self._done(FillEntry(symbol, change.position, change.average_price, self._cash))

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        self._turns += 1
        super().set_owner(symbol, strategy_key)
        self._done(OwnerEntry(symbol, strategy_key))

    def view(self) -> View:
        while True:
            before = self._turns
            if before % 2 == 0:
                seen = super().view()
                if self._turns == before:
                    return replace(seen, version=before // 2)
            time.sleep(0)  # the other thread is in the middle of it

    def _done(self, change: Change) -> None:
        # Noted before it counts: whoever sees this version finds it in the journal before them.
        self._journal.append(change)
        self._turns += 1


class _Then:
    """A clock that shows the moment of the entry."""

    moment: datetime

    def now(self) -> datetime:
        return self.moment

    def monotonic_ns(self) -> int:
        return 0  # no age is taken in the past: the gate's facts are recorded

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing sleeps in the past, and not for {seconds} s")


class ReplayedPortfolio(Portfolio):
    """The world after any change, as one onlooker saw it: only forward."""

    def __init__(self, changes: list[Change]) -> None:
        self._then = _Then()
        super().__init__(self._then)
        self._changes = changes
        self._version = 0

    def at(self, version: int) -> None:
        if version < self._version or version > len(self._changes):
            raise RefusedError(
                f"the journal is damaged: change {version} is not there yet, or gone by"
            )
        for change in self._changes[self._version : version]:
            match change:
                case TickEntry():
                    self.apply_tick(Tick(*astuple(change)))
                case FillEntry():
                    self._take(change)
                case StartEntry():
                    self.load(change.cash, change.positions)
                case OwnerEntry():
                    self.set_owner(change.symbol, change.strategy_key)
        self._version = version

    def _take(self, fill: FillEntry) -> None:
        held = Position(fill.symbol, fill.quantity, fill.average_price)
        self._hold(held, fill.cash)

    def seen(self, version: int, now: datetime) -> View:
        self.at(version)
        self._then.moment = now
        return replace(self.view(), version=version)
