"""A portfolio whose changes are numbered and journaled, and its replay."""

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
    """Written by one thread; a view taken during a change is taken again (a seqlock)."""

    def __init__(self, clock: Clock, journal: DecisionJournal) -> None:
        super().__init__(clock)
        self._journal = journal
        self._sequence = 0  # odd during a change

    @property
    def version(self) -> int:
        return self._sequence // 2

    def apply_tick(self, tick: Tick) -> None:
        self._sequence += 1
        super().apply_tick(tick)
        self._commit(TickEntry(*tick))

    def load(self, cash: Decimal, positions: Iterable[Position]) -> None:
        self._sequence += 1
        super().load(cash, positions)
        self._commit(StartEntry(self._cash, tuple(self._positions.values())))

    def apply_fill(self, change: FillApplied) -> None:
        self._sequence += 1
        super().apply_fill(change)
        symbol = change.fill.symbol
        self._commit(FillEntry(symbol, change.position, change.average_price, self._cash))

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        self._sequence += 1
        super().set_owner(symbol, strategy_key)
        self._commit(OwnerEntry(symbol, strategy_key))

    def view(self) -> View:
        while True:
            before = self._sequence
            if before % 2 == 0:
                view = super().view()
                if self._sequence == before:
                    return replace(view, version=before // 2)
            time.sleep(0)  # a change is in progress

    def _commit(self, change: Change) -> None:
        # Journaled before it counts: a reader of this version comes later in the journal.
        self._journal.append(change)
        self._sequence += 1


class _EntryClock:
    """Clock set to the time of the entry."""

    moment: datetime

    def now(self) -> datetime:
        return self.moment

    def monotonic_ns(self) -> int:
        return 0  # ages are part of the recorded snapshots

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a replay does not sleep ({seconds} s)")


class ReplayedPortfolio(Portfolio):
    """The portfolio after any change, advanced forward only."""

    def __init__(self, changes: list[Change]) -> None:
        self._clock_at = _EntryClock()
        super().__init__(self._clock_at)
        self._changes = changes
        self._version = 0

    def advance_to(self, version: int) -> None:
        if version < self._version or version > len(self._changes):
            raise RefusedError(f"the journal is damaged: change {version} is out of order")
        for change in self._changes[self._version : version]:
            match change:
                case TickEntry():
                    self.apply_tick(Tick(*astuple(change)))
                case FillEntry():
                    self._apply_entry(change)
                case StartEntry():
                    self.load(change.cash, change.positions)
                case OwnerEntry():
                    self.set_owner(change.symbol, change.strategy_key)
        self._version = version

    def _apply_entry(self, fill: FillEntry) -> None:
        position = Position(fill.symbol, fill.quantity, fill.average_price)
        self._set_position(position, fill.cash)

    def view_at(self, version: int, now: datetime) -> View:
        self.advance_to(version)
        self._clock_at.moment = now
        return replace(self.view(), version=version)
