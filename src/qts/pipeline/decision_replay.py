"""Replay of a decision journal: calls strategies, steps and gate again and compares the results.

Inputs (ticks, fills, risk snapshots, exits of the stops) are taken as recorded; outputs are
computed and compared entry by entry.
"""

from __future__ import annotations

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
from qts.pipeline.strategy_call import call_strategy
from qts.pipeline.transform import transform
from qts.risk import PreTradeGate, Refusal
from qts.strategies import Strategy, load_strategy

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
        self._changes: list[Change] = []
        self._portfolio = ReplayedPortfolio(self._changes)
        self._strategies: dict[str, Strategy[Any]] = {}
        self._portfolios: dict[str, ReplayedPortfolio] = {}
        self._cycles: dict[int, Cycle | StepFailedError] = {}
        for name, params in header.strategies.items():
            strategy = load_strategy(name).from_params(params)
            self._strategies[strategy.key] = strategy
            self._portfolios[strategy.key] = ReplayedPortfolio(self._changes)

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
                raise RefusedError("the journal is damaged: it has two headers")

    def _called(self, was: StrategyCallEntry) -> None:
        strategy = self._strategies[was.strategy_key]
        view = self._portfolios[was.strategy_key].view_at(was.version, was.now)
        on_tick = [
            signal
            for tick in was.ticks
            for signal in call_strategy(strategy.on_tick, tick, view).signals
        ]
        evaluated = [call_strategy(strategy.evaluate, view).signals for _ in was.evaluated]
        self.report.calls += len(was.ticks) + len(evaluated)
        self.report.signals += len(on_tick) + sum(map(len, evaluated))
        where = f"{was.strategy_key} at {was.now:%H:%M:%S.%f}"
        self.report.compare(f"signals of {where}", was.on_tick, on_tick)
        self.report.compare(f"evaluation of {where}", was.evaluated, evaluated)

    def _extracted(self, was: ExtractEntry) -> None:
        view = self._portfolio.view_at(was.version, was.now)
        cycle = Cycle(number=was.number, strategy_key=was.strategy_key, started_at=was.started_at)
        try:
            self._cycles[was.number] = transform(extract(cycle, view))
        except StepFailedError as error:
            self._cycles[was.number] = error
        except Exception as error:  # noqa: BLE001 - as in a run
            self._cycles[was.number] = StepFailedError("FS030", repr(error))

    def _decided(self, was: DecideEntry) -> None:
        cycle = self._cycles.pop(was.number)
        self._portfolio.advance_to(was.version)
        decisions: tuple[Decision, ...] = ()
        code = ""
        try:
            if isinstance(cycle, StepFailedError):
                raise cycle
            cycle = evaluate(cycle, was.signals, self._limits, self._portfolio.owners)
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
    header = next(entries, None)
    if not isinstance(header, JournalHeader):
        raise RefusedError(f"{path} is damaged: it does not begin with a header")
    run = _Run(header)
    for entry in entries:
        run.entry(entry)
    return run.report
