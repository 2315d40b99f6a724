"""A recorded run decided again: every strategy, step and answer of the gate.

What the venue did, when fills arrived and which exits the stops asked for is taken as recorded.
What strategies, steps and gate made of it is computed anew and compared, entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from qts.domain import RefusedError
from qts.pipeline.cycle import Cycle, Decision, StepFailedError
from qts.pipeline.decide import decide
from qts.pipeline.decision_journal import (
    Change,
    DecideEntry,
    Entry,
    ExtractEntry,
    FillEntry,
    GateEntry,
    JournalHeader,
    OwnerEntry,
    ParamsEntry,
    RestartEntry,
    StartEntry,
    StrategyCallEntry,
    TickEntry,
    encode,
    read_journal,
)
from qts.pipeline.evaluate import evaluate
from qts.pipeline.extract import extract
from qts.pipeline.journaled_portfolio import ReplayedPortfolio
from qts.pipeline.process_protocol import call
from qts.pipeline.transform import transform
from qts.risk import PreTradeGate, Refusal
from qts.strategies import Signal, Strategy, load_strategy

SHOWN = 20


class DecisionReplayReport(msgspec.Struct, kw_only=True):
    """How a run was retraced. The first differences are told, all are counted."""

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
            if len(self.differences) < SHOWN:
                self.differences.append(f"{where}: was {was!r}, is {now!r}")


class _Run:
    def __init__(self, header: JournalHeader) -> None:
        self.found = DecisionReplayReport()
        self._limits = header.limits
        self._gate = PreTradeGate(header.limits)
        self._changes: list[Change] = []
        self._loop = ReplayedPortfolio(self._changes)
        self._strategies: dict[str, Strategy[Any]] = {}
        self._worlds: dict[str, ReplayedPortfolio] = {}
        self._cycles: dict[int, Cycle | StepFailedError] = {}
        for name, params in header.strategies.items():
            strategy = load_strategy(name).from_params(params)
            self._strategies[strategy.key] = strategy
            self._worlds[strategy.key] = ReplayedPortfolio(self._changes)

    def entry(self, entry: Entry) -> None:
        match entry:
            case TickEntry() | FillEntry() | StartEntry() | OwnerEntry():
                self._changes.append(entry)
            case ParamsEntry():
                strategy = self._strategies[entry.strategy_key]
                strategy.set_params(strategy.parse_params(entry.params))
            case RestartEntry():
                strategy = self._strategies[entry.strategy_key]
                self._strategies[entry.strategy_key] = type(strategy)(strategy.params)
            case StrategyCallEntry():
                self._called(entry)
            case ExtractEntry():
                self._extracted(entry)
            case DecideEntry():
                self._decided(entry)
            case GateEntry():
                self._gated(entry)
            case JournalHeader():
                raise RefusedError("the journal is damaged: it begins twice")

    def _called(self, was: StrategyCallEntry) -> None:
        strategy = self._strategies[was.strategy_key]
        view = self._worlds[was.strategy_key].seen(was.version, was.now)
        heard = [s for tick in was.ticks for s in _call(strategy.on_tick, tick, view)]
        wanted = [_call(strategy.evaluate, view) for _ in was.wanted]
        self.found.calls += len(was.ticks) + len(wanted)
        self.found.signals += len(heard) + sum(map(len, wanted))
        where = f"{was.strategy_key} at {was.now:%H:%M:%S.%f}"
        self.found.compare(f"signals of {where}", was.heard, heard)
        self.found.compare(f"evaluation of {where}", was.wanted, wanted)

    def _extracted(self, was: ExtractEntry) -> None:
        view = self._loop.seen(was.version, was.now)
        cycle = Cycle(number=was.number, strategy_key=was.strategy_key, started_at=was.started_at)
        try:
            self._cycles[was.number] = transform(extract(cycle, view))
        except StepFailedError as error:
            self._cycles[was.number] = error
        except Exception as error:  # noqa: BLE001 - as live
            self._cycles[was.number] = StepFailedError("FS030", repr(error))

    def _decided(self, was: DecideEntry) -> None:
        cycle = self._cycles.pop(was.number)
        self._loop.at(was.version)
        decisions: tuple[Decision, ...] = ()
        code = ""
        try:
            if isinstance(cycle, StepFailedError):
                raise cycle
            signals: Any = was.signals  # what was no signal is none now, either
            cycle = evaluate(cycle, signals, self._limits, self._loop.owners)
            decisions = decide(cycle, was.leave).decisions
        except StepFailedError as error:
            code = error.code
        except Exception:  # noqa: BLE001 - as live
            code = "FS030"
        self.found.cycles += 1
        self.found.decisions += len(decisions)
        self.found.compare(f"cycle {was.number}", (was.decisions, was.code), (decisions, code))

    def _gated(self, was: GateEntry) -> None:
        answer = self._gate.check(was.proposal, was.facts)
        reasons = answer.reasons if isinstance(answer, Refusal) else ()
        codes = tuple(reason.code for reason in reasons)
        self.found.answers += 1
        asked = f"{was.proposal.side} {was.proposal.quantity} {was.proposal.symbol}"
        self.found.compare(f"the gate on {asked}", was.codes, codes)


def _call(method: Callable[..., Iterable[Signal]], *arguments: Any) -> list[Signal]:
    """As in its lane: a strategy that raises wants nothing."""
    found = call(method, *arguments)
    return [] if isinstance(found, Exception) else found


def replay_decisions(path: Path) -> DecisionReplayReport:
    """Decide a recorded run again."""
    entries = read_journal(path)
    header = next(entries, None)
    if not isinstance(header, JournalHeader):
        raise RefusedError(f"{path} is damaged: it does not begin with how the run was set up")
    run = _Run(header)
    for entry in entries:
        run.entry(entry)
    return run.found
