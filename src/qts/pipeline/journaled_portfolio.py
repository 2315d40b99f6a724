"""Accounts whose changes are numbered and journaled, and their replay.

Ticks and account changes are numbered apart, because different threads make them and neither waits
for the other. They change different parts, so a view is given by how many it has of each, whatever
their order in the journal: its version is both numbers in one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import astuple, replace

from qts.domain import Clock, RefusedError, Tick
from qts.pipeline.decision_journal import DecisionJournal, TickEntry
from qts.pipeline.portfolio import AccountChange, PortfolioStore, RunState
from qts.strategies import View

_TICK_BITS = 40


class JournaledStore(PortfolioStore):
    """Its ticks come from one thread; a view taken during a tick is taken again (a seqlock)."""

    def __init__(self, clock: Clock, journal: DecisionJournal, accounts: int = 1) -> None:
        super().__init__(clock, accounts)
        self._journal = journal
        self._sequence = 0  # of ticks; odd during one

    def apply_tick(self, tick: Tick) -> None:
        self._sequence += 1
        super().apply_tick(tick)
        # Journaled before it counts: a reader of this version comes later in the journal.
        self._journal.append(TickEntry(*astuple(tick)))
        self._sequence += 1

    def _commit(self, change: AccountChange, state: RunState) -> None:
        self._journal.append(change)
        self.state = state

    def owners_at(self, account: int) -> tuple[Mapping[str, str], int]:
        state = self.state
        return state.accounts[account].owners, _version(self._sequence // 2, state.number)

    def view(self, account: int | None = None) -> View:
        while True:
            before = self._sequence
            if before % 2 == 0:
                state = self.state
                view = self.view_of(state, account)
                if self._sequence == before:
                    return replace(view, version=_version(before // 2, state.number))
            time.sleep(0)  # a tick is being applied


def _version(ticks: int, changes: int) -> int:
    return changes << _TICK_BITS | ticks


class _EntryClock:
    """Clock set to the time of the entry."""

    moment: datetime

    def now(self) -> datetime:
        return self.moment

    def monotonic_ns(self) -> int:
        return 0  # ages are part of the recorded snapshots

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a replay does not sleep ({seconds} s)")


class ReplayedStore(PortfolioStore):
    """The accounts at any version, advanced forward only."""

    def __init__(
        self, ticks: Sequence[TickEntry], changes: Sequence[AccountChange], accounts: int = 1
    ) -> None:
        self._clock_at = _EntryClock()
        super().__init__(self._clock_at, accounts)
        self._all_ticks = ticks
        self._all_changes = changes
        self._ticks_done = 0

    def advance_to(self, version: int) -> None:
        ticks, changes = version & ((1 << _TICK_BITS) - 1), version >> _TICK_BITS
        done = self.state.number
        if not (
            self._ticks_done <= ticks <= len(self._all_ticks)
            and done <= changes <= len(self._all_changes)
        ):
            raise RefusedError(f"the journal is damaged: version {version} is out of order")
        for tick in self._all_ticks[self._ticks_done : ticks]:
            self.apply_tick(Tick(*astuple(tick)))
        for change in self._all_changes[done:changes]:
            if not 0 <= change.account < len(self.state.accounts):
                raise RefusedError(f"the journal is damaged: account {change.account} is unknown")
            self.state = self.state.after(change)
        self._ticks_done = ticks

    def view_at(self, version: int, now: datetime, account: int | None = None) -> View:
        self.advance_to(version)
        self._clock_at.moment = now
        return replace(self.view(account), version=version)
