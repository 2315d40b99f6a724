"""A run as its journal has it: the account it began with, and what became of each signal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import astuple, fields

from qts.domain import OrderSnapshot, OrderType, Position, RefusedError, Side
from qts.pipeline import (
    Decision,
    DecisionJournal,
    DecisionPolicy,
    JournaledRun,
    JournalHeader,
    journal_files,
    load_journaled_run,
)
from qts.pipeline.decision_journal import (
    DecideEntry,
    Entry,
    ExtractEntry,
    FillEntry,
    GateEntry,
    OrderEntry,
    OwnerEntry,
    ParamsEntry,
    PreCheckEntry,
    StartEntry,
    StateEntry,
    StrategyCallEntry,
    TickEntry,
)
from qts.pipeline.journaled_run import NOT_CHECKED, NOT_DECIDED, asked_size
from qts.risk import (
    Exposure,
    OrderProposal,
    QuoteSnapshot,
    RiskLimitsConfig,
    RiskSnapshot,
    SafetyState,
    Switches,
)
from qts.strategies import Cancel, Replace, Signal
from tests.instruments import LISTED
from tests.pipeline.portfolios import NOW, signal, tick

AT = NOW.timestamp()
DAY = (AT - 100, AT + 100)
D = Decimal


def read(tmp_path: Path, *entries: Entry, span: tuple[float, float] = DAY) -> JournaledRun:
    path = tmp_path / f"{NOW:%Y%m%dT%H%M%S.%f}.journal"
    with DecisionJournal(path, JournalHeader(NOW, (), RiskLimitsConfig().exact)) as journal:
        for entry in entries:
            journal.append(entry)
    return load_journaled_run(path, *span)


def ticked(at: float = AT) -> TickEntry:
    return TickEntry(*astuple(tick(at=at)))


def called(*signals: Signal) -> StrategyCallEntry:
    return StrategyCallEntry("s", 0, NOW, (), signals, ())


def extracted(number: int = 1) -> ExtractEntry:
    return ExtractEntry(number, "s", NOW, 0, NOW)


def proposed(number: int, asked: Signal, key: str = "s") -> OrderProposal:
    return OrderProposal(
        strategy_key=key,
        symbol=asked.symbol,
        side=asked.side,
        type=OrderType.MARKET,
        quantity=D(3),
        signal_id=UUID(int=number),
        decided_at=datetime.fromtimestamp(asked.at, UTC),
        expires_at=NOW + timedelta(seconds=5),
    )


def decided(*decisions: Decision, number: int = 1, code: str = "") -> DecideEntry:
    signals = tuple(each.signal for each in decisions)
    made = () if code else decisions
    return DecideEntry(number, 0, signals, DecisionPolicy(), made, code, ())


def checked(proposal: OrderProposal, *codes: str) -> GateEntry:
    zeros: dict[str, Any] = {each.name: each.type(0) for each in fields(Exposure)}
    snapshot = RiskSnapshot(
        instrument=LISTED["005930"],
        market=QuoteSnapshot(last=D(1), bid=D(1), ask=D(1), age_ms=0.0),
        exposure=Exposure(**zeros),
        switches=Switches(
            account_enabled=True,
            strategy_enabled=True,
            market_active=True,
            frozen=False,
            reconciled=True,
            session_open=True,
            safety=SafetyState.NORMAL,
        ),
        now=NOW,
    )
    return GateEntry(proposal, snapshot, codes)


def order() -> OrderSnapshot:
    return OrderSnapshot(
        intent_id="i",
        symbol="005930",
        side=Side.BUY,
        state="ACKED",
        filled=D(0),
        remaining=D(1),
        price=D(10),
        strategy_key="s",
    )


def reasons(run: JournaledRun) -> list[str]:
    return [each.reason for each in run.signals]


def test_the_account_is_that_before_the_first_fill_and_the_first_decision(tmp_path: Path) -> None:
    held = Position("005930", D(2), D(100))
    start: list[Entry] = [
        StartEntry(D(900), ()),
        StartEntry(D(1000), (held,)),
        OwnerEntry("005930", "s"),
    ]
    bought = FillEntry("005930", D(5), D(100), D(700))
    for first in (bought, extracted()):
        run = read(tmp_path / str(type(first).__name__), *start, ticked(), first, bought)
        assert run.opening.cash == 1000
        assert run.opening.positions == {"005930": held}
        assert run.opening.owners == {"005930": "s"}


def test_a_day_begins_with_the_account_after_the_fills_of_the_days_before(tmp_path: Path) -> None:
    before: list[Entry] = [
        StartEntry(D(1000), ()),
        ticked(AT - 500),
        FillEntry("005930", D(5), D(100), D(500)),
    ]
    today: list[Entry] = [ticked(AT), FillEntry("005930", D(7), D(100), D(300)), ticked(AT + 9)]
    tomorrow: list[Entry] = [
        ticked(AT + 100),
        FillEntry("005930", D(1), D(100), D(1)),
        ticked(AT + 101),
    ]
    run = read(tmp_path, *before, *today, *tomorrow)
    assert (run.opening.cash, run.opening.positions["005930"].quantity) == (D(500), D(5))
    assert (run.began, run.ended) == (AT, AT + 9)


def test_every_signal_has_its_outcome(tmp_path: Path) -> None:
    first, second, third, fourth, fifth = asked = [
        signal(at=AT + n, quantity=n) for n in range(1, 6)
    ]
    sent, refused, cached = proposed(1, first), proposed(2, second), proposed(3, third)
    run = read(
        tmp_path,
        ticked(),
        called(*asked),
        extracted(),
        decided(
            Decision(first, sent),
            Decision(second, refused),
            Decision(third, cached),
            Decision(fourth, None, "GR030"),
        ),
        PreCheckEntry(cached.signal_id, ("G_OPEN_SYMBOLS",)),
        checked(refused, "G_MAX_VALUE", "G_CASH"),
        checked(sent),
    )
    assert [each.asked for each in run.signals] == ["1", "2", "3", "4", "5"]
    assert {each.strategy_key for each in run.signals} == {"s"}
    expected = ["", "G_MAX_VALUE G_CASH", "G_OPEN_SYMBOLS", "GR030", NOT_DECIDED]
    assert reasons(run) == expected
    assert fifth.at == run.signals[-1].at


def test_a_check_that_is_repeated_counts_by_its_last_answer(tmp_path: Path) -> None:
    asked = signal()
    proposal = proposed(1, asked)
    entries: Sequence[Entry] = [
        ticked(),
        called(asked),
        extracted(),
        decided(Decision(asked, proposal)),
    ]
    refused, passed = checked(proposal, "G_CASH"), checked(proposal)
    assert reasons(read(tmp_path / "a", *entries, refused, passed)) == [""]
    assert reasons(read(tmp_path / "b", *entries, passed, refused)) == ["G_CASH"]
    assert reasons(read(tmp_path / "c", *entries)) == [NOT_CHECKED]


def test_a_cycle_that_failed_refused_its_signals(tmp_path: Path) -> None:
    asked = signal()
    failed = decided(Decision(asked, None), code="FS030")
    assert reasons(read(tmp_path, ticked(), called(asked), extracted(), failed)) == ["FS030"]


def test_an_exit_of_the_stops_is_a_signal_of_its_own(tmp_path: Path) -> None:
    proposal = proposed(1, signal(side=Side.SELL), "risk")
    run = read(tmp_path, ticked(), checked(proposal, "G_DUST"))
    (found,) = run.signals
    assert (found.strategy_key, found.side, found.asked) == ("risk", Side.SELL, "3")
    assert (found.at, found.reason) == (AT, "G_DUST")


def test_a_manual_order_and_a_cancel_are_no_signals(tmp_path: Path) -> None:
    manual = proposed(1, signal(), "manual")
    kept = order()
    returned = StrategyCallEntry("s", 0, NOW, (), (Cancel(kept), Replace(kept, price=D(9))), ())
    run = read(tmp_path, OrderEntry(kept, True), ticked(), returned, checked(manual, "G_CASH"))
    assert run.signals == []
    assert run.opening.orders == {"i": kept}


def test_a_fill_before_the_first_tick_is_no_part_of_the_account_at_the_start(
    tmp_path: Path,
) -> None:
    bought = FillEntry("005930", D(5), D(100), D(500))
    run = read(tmp_path, StartEntry(D(1000), ()), bought, ticked())
    assert (run.opening.cash, run.opening.positions) == (D(1000), {})


def test_the_states_are_those_that_the_strategies_were_started_with(tmp_path: Path) -> None:
    start, later = StateEntry("s", b"start"), StateEntry("s", b"of its new process")
    assert read(tmp_path, start, ticked(), extracted(), later).states == {"s": b"start"}


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        ({}, ""),
        ({"quantity": "1000.50"}, "1,000.5"),
        ({"value": 300_000}, "300,000 won"),
        ({"share": "0.050"}, "0.05 of the equity"),
        (
            {"risk": "0.01", "stop": 9_900},
            "a risk of 0.01 of the equity with the stop 9,900",
        ),
    ],
)
def test_a_size_is_what_the_signal_asked_for(size: dict[str, Any], asked: str) -> None:
    assert asked_size(signal(**size)) == asked


def test_parameters_change_after_the_tick_before_them(tmp_path: Path) -> None:
    changes: list[Entry] = [ParamsEntry("s", {"n": 1}), ticked(AT + 1), ParamsEntry("s", {"n": 2})]
    run = read(tmp_path, *changes)
    assert [(each.at, each.params) for each in run.params] == [
        (AT, {"n": 1}),  # when the run began
        (AT + 1, {"n": 2}),
    ]


def test_journals_of_a_time_are_found_by_their_name_and_their_end(tmp_path: Path) -> None:
    read(tmp_path, ticked())
    (tmp_path / "other.journal").write_bytes(b"")
    hour = timedelta(hours=1)
    written = datetime.now(UTC)
    assert len(journal_files(tmp_path, NOW - hour, NOW + hour)) == 1
    assert not journal_files(tmp_path, NOW - 2 * hour, NOW - hour)
    assert not journal_files(tmp_path, written + hour, max(written, NOW) + 2 * hour)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b"something else")
    with pytest.raises(RefusedError, match="is not a decision journal"):
        load_journaled_run(path, *DAY)
