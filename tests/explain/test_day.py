"""Runs of a day by their journals: what is taken of a run that began before, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple, replace

from qts.backtest import BacktestConfig
from qts.dashboard import day_bounds
from qts.domain import MANUAL, AccountKey, RefusedError, Side
from qts.explain import DayLedger, DaySources
from qts.explain.day import _late_notes, load_runs
from qts.pipeline import (
    DecisionJournal,
    JournaledStore,
    JournalHeader,
    Portfolio,
    StrategyConfig,
)
from qts.pipeline.decision_journal import ExtractEntry, StateEntry, StrategyCallEntry
from qts.risk import RiskLimitsConfig
from qts.strategies import encode_state, source_digest
from tests.explain.ledgers import order
from tests.instruments import LISTED
from tests.pipeline.counting import Counting
from tests.pipeline.portfolios import NOW, tick

KEY, NAME = Counting.key, f"{Counting.__module__}:Counting"
DAY = NOW.date()
START, END = day_bounds(DAY)
ACCOUNT = AccountKey("paper", "x")


def header(**more: Any) -> JournalHeader:
    made = JournalHeader(
        NOW,
        (StrategyConfig(source=NAME, name=KEY),),
        RiskLimitsConfig().exact,
        account_keys=(str(ACCOUNT),),
        settings=msgspec.to_builtins(BacktestConfig()),
        sources={KEY: source_digest(Counting)},
    )
    return replace(made, **more)


def write(folder: Path, made: JournalHeader, *ticks: float) -> None:
    """Write the journal of a run that sees these ticks, and decides after each of them."""

    class Clock:
        def now(self) -> datetime:
            return made.began

        def monotonic_ns(self) -> int:
            return 0

        async def sleep(self, seconds: float) -> None:
            raise AssertionError(seconds)

    path = folder / f"{made.began:%Y%m%dT%H%M%S.%f}.journal"
    with DecisionJournal(path, made) as journal:
        store = JournaledStore(Clock(), journal)
        account = Portfolio(Clock(), LISTED, store)
        account.load(Decimal(1000), ())
        journal.append(StateEntry(KEY, encode_state(KEY, Counting.State(calls=38))))
        for number, at in enumerate(ticks):
            account.apply_tick(each := tick(at=at))
            version = store.view().version
            journal.append(StrategyCallEntry(KEY, version, NOW, (astuple(each),), (), ()))
            journal.append(ExtractEntry(number, KEY, NOW, version, NOW))
            account.set_cash(Decimal(1001 + number))


def sources(folder: Path) -> DaySources:
    return DaySources(DAY, START, END, ACCOUNT, folder, folder)


def count_of(states: dict[str, bytes]) -> int:
    return int(msgspec.msgpack.decode(states[KEY], type=Counting.State).calls)


def test_a_run_of_the_day_begins_with_its_stored_state(tmp_path: Path) -> None:
    write(tmp_path, header(), NOW.timestamp(), NOW.timestamp() + 1)
    (run,) = load_runs(sources(tmp_path))
    assert (count_of(run.states), run.opening.cash) == (38, Decimal(1000))


def test_a_run_from_before_begins_with_the_state_and_the_account_of_midnight(
    tmp_path: Path,
) -> None:
    midnight = START.timestamp()
    began = START - timedelta(hours=1)
    write(tmp_path, header(began=began), midnight - 9, midnight - 8, midnight, midnight + 1)
    (run,) = load_runs(sources(tmp_path))
    assert (count_of(run.states), run.opening.cash) == (40, Decimal(1002))
    assert (run.began, run.ended) == (midnight, midnight + 1)


def test_runs_are_those_of_the_account_in_order_of_time(tmp_path: Path) -> None:
    later = NOW + timedelta(hours=1)
    write(tmp_path, header(began=later), later.timestamp())
    write(tmp_path, header(), NOW.timestamp())
    other = header(began=later + timedelta(hours=1), account_keys=("paper:other",))
    write(tmp_path, other, NOW.timestamp())
    assert [run.header.began for run in load_runs(sources(tmp_path))] == [NOW, later]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"accounts": 2}, "traded at 2 venues; qts explain takes runs at one venue"),
        ({"account_keys": ("paper:y",)}, "there are those of paper:y: name one with --account"),
        ({"account_keys": ()}, "have no settings: an earlier version of QTS wrote them"),
        ({"settings": {"cash": "x"}}, "use the version that ran"),
        ({"sources": {}}, f"strategy {KEY} ({NAME}) was edited since the run of"),
    ],
)
def test_a_run_that_cannot_be_explained_is_refused(
    tmp_path: Path, more: dict[str, Any], error: str
) -> None:
    write(tmp_path, header(**more), NOW.timestamp())
    with pytest.raises(RefusedError) as refused:
        load_runs(sources(tmp_path))
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_day_without_a_tick_is_refused(tmp_path: Path) -> None:
    write(tmp_path, header())
    with pytest.raises(RefusedError, match="have no tick of that day"):
        load_runs(sources(tmp_path))


def test_orders_after_the_end_of_the_last_journal_are_noted(tmp_path: Path) -> None:
    write(tmp_path, header(), at := NOW.timestamp())
    runs = load_runs(sources(tmp_path))
    orders = [order(Side.BUY, 1, at=at + second) for second in (0, 4.9, 5.1)]
    manual = order(Side.BUY, 1, at=at + 99, strategy=MANUAL)
    assert list(_late_notes(DayLedger(orders=[*orders[:2], manual]), runs)) == []
    (note,) = _late_notes(DayLedger(orders=orders), runs)
    assert note.startswith("1 orders came after the last journal of the day ended at 01:00:00 UTC")


def test_the_day_begins_at_midnight_in_seoul() -> None:
    assert datetime(2026, 11, 15, 15, tzinfo=UTC) == START
