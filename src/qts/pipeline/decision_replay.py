"""Replay of a decision journal: calls strategies, steps and gate again and compares the results.

Inputs (ticks, fills, risk snapshots, exits of the stops) are taken as recorded; outputs are
computed and compared entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from qts.domain import Instruments, RefusedError, Tick
from qts.pipeline.cycle import Cycle, Decision, StepFailedError
from qts.pipeline.decision_journal import (
    DecideEntry,
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
    encode,
    read_journal,
)
from qts.pipeline.journaled_run import ReplayedStore
from qts.pipeline.portfolio import AccountChange
from qts.pipeline.steps import decide, evaluate, extract, transform
from qts.pipeline.strategy_call import MarketCalls, call_strategy, call_with_update
from qts.risk import PreTradeGate, Refusal
from qts.strategies import NoState, Strategy, encode_state

MAX_DIFFERENCES_SHOWN = 20


class DecisionReplayReport(msgspec.Struct, kw_only=True):
    """Counts of a replay, and its first differences."""

    calls: int = 0
    signals: int = 0
    cycles: int = 0
    decisions: int = 0
    answers: int = 0
    different: int = 0
    differences: list[str] = []

    def compare(self, where: str, was: Any, now: Any) -> None:
        if encode(was) != encode(now):
            self.different += 1
            if len(self.differences) < MAX_DIFFERENCES_SHOWN:
                self.differences.append(f"{where}: was {was!r}, is {now!r}")


class _Run:
    def __init__(self, header: JournalHeader) -> None:
        self.report = DecisionReplayReport()
        self._limits = header.limits
        self._gate = PreTradeGate(header.limits)
        self._ticks: list[TickEntry] = []
        self._changes: list[AccountChange] = []
        self._accounts = header.accounts
        self._store = self._new_store()
        self._strategies: dict[str, Strategy[Any]] = {}
        self._markets: dict[str, MarketCalls] = {}
        self._stores: dict[str, ReplayedStore] = {}
        self._cycles: dict[int, tuple[int, Cycle | StepFailedError]] = {}  # with the account
        for instance in header.strategies:
            strategy = instance.create()
            self._set_strategy(strategy)
            self._stores[strategy.key] = self._new_store()

    def _new_store(self) -> ReplayedStore:
        return ReplayedStore(self._ticks, self._changes, self._accounts)

    def _set_strategy(self, strategy: Strategy[Any]) -> None:
        self._strategies[strategy.key] = strategy
        self._markets[strategy.key] = MarketCalls(strategy)

    @property
    def states(self) -> dict[str, bytes]:
        """The states of the strategies that have one, as they are now."""
        kept = (each for each in self._strategies.values() if each.State is not NoState)
        return {each.key: encode_state(each.key, each.state) for each in kept}

    def entry(self, entry: Entry) -> None:
        match entry:
            case TickEntry():
                self._ticks.append(entry)
            case FillEntry() | StartEntry() | OwnerEntry() | OrderEntry():
                self._changes.append(entry)
            case ParamsEntry():
                strategy = self._strategies[entry.strategy_key]
                strategy.set_params(strategy.parse_params(entry.params))
            case RestartEntry():
                strategy = self._strategies[entry.strategy_key]
                self._set_strategy(strategy.renewed())
            case StateEntry():
                self._strategies[entry.strategy_key].restore_state(entry.state)
            case StrategyCallEntry():
                self._called(entry)
            case ExtractEntry():
                self._extracted(entry)
            case DecideEntry():
                self._decided(entry)
            case GateEntry():
                self._gated(entry)
            case PreCheckEntry():
                pass  # it depends on the cache
            case JournalHeader():
                raise RefusedError("the journal is damaged: it has two headers")

    def _called(self, was: StrategyCallEntry) -> None:
        strategy = self._strategies[was.strategy_key]
        market = self._markets[was.strategy_key]
        view = market.view_of(self._stores[was.strategy_key].view_at(was.version, was.now))
        where = f"{was.strategy_key} at {was.now:%H:%M:%S.%f}"
        if was.moment is not None:
            market.add(was.bars)
            signals = call_strategy(getattr(strategy, was.moment), view).instructions
            self.report.calls += 1
            self.report.signals += len(signals)
            self.report.compare(f"{was.moment} of {where}", was.on_tick, signals)
            return
        on_update = [
            signal
            for update in was.updates
            for result in call_with_update(strategy, update, view)
            for signal in result.instructions
        ]
        ticks = [Tick(*fields) for fields in was.ticks]
        results = [result for _, result in market.run(was.bars, ticks, view) if result]
        on_tick = [signal for result in results for signal in result.instructions]
        evaluated = [call_strategy(strategy.evaluate, view).instructions for _ in was.evaluated]
        self.report.calls += sum(update.calls for update in was.updates)
        self.report.calls += len(results) + len(evaluated)
        self.report.signals += len(on_update) + len(on_tick) + sum(map(len, evaluated))
        self.report.compare(f"signals after orders of {where}", was.on_update, on_update)
        self.report.compare(f"signals of {where}", was.on_tick, on_tick)
        self.report.compare(f"evaluation of {where}", was.evaluated, evaluated)

    def _extracted(self, was: ExtractEntry) -> None:
        view = self._store.view_at(was.version, was.now, was.account)
        cycle = Cycle(number=was.number, strategy_key=was.strategy_key, started_at=was.started_at)
        extracted: Cycle | StepFailedError
        try:
            extracted = transform(extract(cycle, view))
        except StepFailedError as error:
            extracted = error
        except Exception as error:  # noqa: BLE001 - as in a run
            extracted = StepFailedError("FS030", repr(error))
        self._cycles[was.number] = was.account, extracted

    def _decided(self, was: DecideEntry) -> None:
        if was.instruments is None:
            raise RefusedError(
                "the journal has no instruments; replay it with the version that wrote it"
            )
        account, cycle = self._cycles.pop(was.number)
        self._store.advance_to(was.version)
        owners = self._store.state.accounts[account].owners
        decisions: tuple[Decision, ...] = ()
        code = ""
        try:
            if isinstance(cycle, StepFailedError):
                raise cycle
            instruments = Instruments(was.instruments)
            cycle = evaluate(cycle, was.signals, self._limits, instruments, owners)
            decisions = decide(cycle, was.policy).decisions
        except StepFailedError as error:
            code = error.code
        except Exception:  # noqa: BLE001 - as in a run
            code = "FS030"
        self.report.cycles += 1
        self.report.decisions += len(decisions)
        self.report.compare(f"cycle {was.number}", (was.decisions, was.code), (decisions, code))

    def _gated(self, was: GateEntry) -> None:
        answer = self._gate.check(was.proposal, was.snapshot)
        reasons = answer.reasons if isinstance(answer, Refusal) else ()
        codes = tuple(reason.code for reason in reasons)
        self.report.answers += 1
        order = f"{was.proposal.side} {was.proposal.quantity} {was.proposal.symbol}"
        self.report.compare(f"the gate on {order}", was.codes, codes)


def replay_decisions(path: Path) -> DecisionReplayReport:
    """Replay the journal at `path`; raise RefusedError where it is not one."""
    entries = read_journal(path)
    run = _begin(path, entries)
    for entry in entries:
        run.entry(entry)
    return run.report


def replay_states(path: Path, until: float) -> dict[str, bytes]:
    """Return the states that strategies had before the first tick at `until` or later."""
    entries = read_journal(path)
    run = _begin(path, entries)
    for entry in entries:
        if isinstance(entry, TickEntry) and entry.at >= until:
            break
        if not isinstance(entry, ExtractEntry | DecideEntry | GateEntry):
            run.entry(entry)
    return run.states


def _begin(path: Path, entries: Iterator[Entry]) -> _Run:
    header = next(entries, None)
    if not isinstance(header, JournalHeader):
        raise RefusedError(f"{path} is damaged: it does not begin with a header")
    return _Run(header)
