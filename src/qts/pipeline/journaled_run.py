"""A run as its decision journal has it: what changed its accounts, what became of its signals.

Ticks and account changes are numbered apart, because different threads make them and neither waits
for the other. They change different parts, so a view is given by how many it has of each, whatever
their order in the journal: its version is both numbers in one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import msgspec
from msgspec.structs import astuple, replace

from qts.domain import MANUAL, Clock, RefusedError, Side, Tick
from qts.pipeline.decision_journal import (
    SUFFIX,
    DecideEntry,
    DecisionJournal,
    Entry,
    ExtractEntry,
    FillEntry,
    GateEntry,
    JournalHeader,
    OrderEntry,
    OwnerEntry,
    ParamsEntry,
    PreCheckEntry,
    RestartEntry,
    StartEntry,
    StateEntry,
    StrategyCallEntry,
    TickEntry,
    read_journal,
)
from qts.pipeline.portfolio import AccountChange, PortfolioState, PortfolioStore, RunState
from qts.risk import OrderProposal
from qts.strategies import Instruction, Signal, View

NOT_DECIDED = "no cycle: an order of its symbol was in flight, or the pipeline was suspended"
NOT_CHECKED = "not checked by the gate"
NOT_TRIGGERED = "its trigger was not reached"

_TICK_BITS = 40


class SignalOutcome(msgspec.Struct, kw_only=True):
    """What became of a signal, or of an exit of the stops; without a reason it is an order."""

    strategy_key: str
    symbol: str
    side: Side
    at: float  # of the tick or bar behind it
    asked: str  # the size it asked for; empty: as large as one order may be
    reason: str

    @classmethod
    def of(cls, key: str, signal: Signal | OrderProposal, reason: str) -> Self:
        at = signal.at if isinstance(signal, Signal) else signal.decided_at.timestamp()
        return cls(
            strategy_key=key,
            symbol=signal.symbol,
            side=signal.side,
            at=at,
            asked=asked_size(signal),
            reason=reason,
        )


def asked_size(signal: Signal | OrderProposal) -> str:
    """Return the size that a signal asked for: two of the same asked for the same."""
    if isinstance(signal, Signal):
        if signal.value is not None:
            return f"{signal.value.normalize():,f} won"
        if signal.share is not None:
            return f"{signal.share.normalize():f} of the equity"
        if signal.risk is not None and signal.stop is not None:
            stop = f"{signal.stop.normalize():,f}"
            return f"a risk of {signal.risk.normalize():f} of the equity with the stop {stop}"
    return "" if signal.quantity is None else f"{signal.quantity.normalize():,f}"


class ParamsChange(msgspec.Struct, frozen=True):
    """Parameters of a strategy from the first tick after `at` on."""

    at: float
    strategy_key: str
    params: dict[str, Any]


class JournaledRun(msgspec.Struct, kw_only=True):
    """Part of a run between two times."""

    header: JournalHeader
    opening: PortfolioState = PortfolioState()  # before its first decision and its first fill
    states: dict[str, bytes] = {}  # by strategy, those that it was started with
    began: float = math.inf  # its first and its last tick
    ended: float = -math.inf
    signals: list[SignalOutcome] = []
    params: list[ParamsChange] = []
    restarted: list[str] = []  # strategies whose process ended
    warmed: list[str] = []  # strategies that got bars from before the run


def journal_files(folder: Path, start: datetime, end: datetime) -> list[Path]:
    """Return the journals of runs that began before `end` and were written after `start`."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        began = journal_start(path)
        if began is not None and began < end and path.stat().st_mtime >= start.timestamp():
            found.append(path)
    return found


def journal_start(path: Path) -> datetime | None:
    """Return when the run of a journal began, by its name."""
    try:
        name = path.name.removesuffix(SUFFIX)
        return datetime.strptime(name, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
    except ValueError:
        return None


def read_header(path: Path) -> JournalHeader:
    """Return the settings of the run of a journal."""
    return _header(path, next(read_journal(path), None))


def load_journaled_run(path: Path, start: float, end: float) -> JournaledRun:
    """Return the part of a run of one account from `start` on, before `end`."""
    entries = read_journal(path)
    run = JournaledRun(header=_header(path, next(entries, None)))
    reader = _Reader(run, start)
    for entry in entries:
        if isinstance(entry, TickEntry) and entry.at >= end:
            break
        reader.read(entry)
    reader.finish()
    return run


def _header(path: Path, entry: Entry | None) -> JournalHeader:
    if not isinstance(entry, JournalHeader):
        raise RefusedError(f"{path} is damaged: it does not begin with a header")
    return entry


class _Reader:
    """Reads entries in their order; those before `start` change the account alone."""

    def __init__(self, run: JournaledRun, start: float) -> None:
        self._run = run
        self._start = start
        self._at = run.header.began.timestamp()  # then of the last tick
        self._account = PortfolioState()
        self._is_open = False
        self._signals: dict[tuple[str, str, Side, float], SignalOutcome] = {}
        self._by_id: dict[UUID, SignalOutcome] = {}
        self._cycles: dict[int, str] = {}  # strategy by number

    def read(self, entry: Entry) -> None:
        run, is_inside = self._run, self._at >= self._start
        match entry:
            case TickEntry():
                self._at = entry.at
                if entry.at >= self._start:
                    run.began, run.ended = min(run.began, entry.at), max(run.ended, entry.at)
            case StartEntry() | OwnerEntry() | FillEntry() | OrderEntry():
                if isinstance(entry, FillEntry) and is_inside:
                    self._open()
                self._account = self._account.after(entry)
            case ParamsEntry():
                run.params.append(ParamsChange(self._at, entry.strategy_key, entry.params))
            case StateEntry():
                if not self._is_open:
                    run.states[entry.strategy_key] = entry.state
            case RestartEntry():
                run.restarted.append(entry.strategy_key)
            case ExtractEntry() | StrategyCallEntry() | DecideEntry() | GateEntry():
                if isinstance(entry, StrategyCallEntry) and any(
                    not bar.is_new for bar in entry.bars
                ):
                    run.warmed.append(entry.strategy_key)
                if is_inside:
                    self._read_decision(entry)
            case PreCheckEntry():
                if is_inside and entry.signal_id in self._by_id:
                    self._by_id[entry.signal_id].reason = " ".join(entry.codes)

    def _read_decision(
        self, entry: ExtractEntry | StrategyCallEntry | DecideEntry | GateEntry
    ) -> None:
        if isinstance(entry, StrategyCallEntry):
            for returned in (entry.on_update, entry.on_tick, *entry.evaluated):
                self._add_all(entry.strategy_key, returned)
            return
        if isinstance(entry, GateEntry) and entry.proposal.strategy_key == MANUAL:
            return  # no signal of a strategy
        self._open()
        if isinstance(entry, ExtractEntry):
            self._cycles[entry.number] = entry.strategy_key
        elif isinstance(entry, DecideEntry):
            self._read_decisions(entry)
        elif isinstance(entry, GateEntry):
            proposal = entry.proposal
            found = self._by_id.get(proposal.signal_id)
            if found is None:  # an exit of the stops
                found = self._add(SignalOutcome.of(proposal.strategy_key, proposal, ""))
                self._by_id[proposal.signal_id] = found
            found.reason = " ".join(entry.codes)

    def _read_decisions(self, entry: DecideEntry) -> None:
        key = self._cycles.pop(entry.number, "")
        for decision in entry.decisions:
            proposal = decision.proposal
            found = self._add(SignalOutcome.of(key, decision.signal, ""))
            if proposal is None:
                found.reason = decision.reason
            else:
                found.reason = NOT_CHECKED if proposal.trigger is None else NOT_TRIGGERED
            if proposal is not None:
                self._by_id[proposal.signal_id] = found
        for signal in entry.signals if entry.code else ():
            self._add(SignalOutcome.of(key, signal, "")).reason = entry.code

    def _add_all(self, key: str, returned: Iterable[Instruction]) -> None:
        for each in returned:
            if isinstance(each, Signal):
                self._add(SignalOutcome.of(key, each, NOT_DECIDED))

    def _add(self, outcome: SignalOutcome) -> SignalOutcome:
        # The signal of a triggered stop order has the time of an order: in microseconds.
        name = (outcome.strategy_key, outcome.symbol, outcome.side, round(outcome.at, 6))
        return self._signals.setdefault(name, outcome)

    def _open(self) -> None:
        """The first decision or fill: what the account is before it, a backtest begins with."""
        if not self._is_open:
            self._is_open = True
            self._run.opening = self._account

    def finish(self) -> None:
        self._open()
        run = self._run
        run.signals = list(self._signals.values())
        run.warmed, run.restarted = sorted(set(run.warmed)), sorted(set(run.restarted))


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
