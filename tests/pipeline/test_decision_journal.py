"""A recorded run can be decided again: the journal loses nothing, and a difference is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from qts.cli.main import run_command
from qts.domain import Position, RefusedError, SystemClock, Tick
from qts.pipeline import (
    DecisionJournal,
    JournaledStore,
    JournalHeader,
    Portfolio,
    StrategyConfig,
    replay_decisions,
)
from qts.pipeline.decision_journal import (
    MAGIC,
    Entry,
    ParamsEntry,
    StrategyCallEntry,
    TickEntry,
    encode,
    read_journal,
)
from qts.pipeline.journaled_run import ReplayedStore
from qts.risk import RiskLimitsConfig
from qts.strategies import Signal, Strategy, View
from tests.instruments import LISTED
from tests.pipeline.portfolios import NOW, signal, tick

HERE = f"{__name__}:Follower"
FOLLOWER = StrategyConfig(source=HERE, parameters={"step": "10"})
HEADER = JournalHeader(NOW, (FOLLOWER,), RiskLimitsConfig().exact)


class Params(msgspec.Struct, frozen=True):
    step: float = 10.0


class Follower(Strategy[Params], key="follower"):
    """Buys what rose by a step since it saw it last."""

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._last: dict[str, float] = {}

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        last = self._last.get(tick.symbol, tick.price)
        self._last[tick.symbol] = tick.price
        if tick.price >= last + self.params.step and not view.quantity(tick.symbol):
            yield signal(symbol=tick.symbol, at=tick.at)


@contextmanager
def journal(path: Path) -> Iterator[DecisionJournal]:
    with DecisionJournal(path, HEADER) as made:
        yield made


def called(*ticks: Tick, heard: tuple[Signal, ...] = (), version: int = 0) -> StrategyCallEntry:
    return StrategyCallEntry("follower", version, NOW, tuple(map(astuple, ticks)), heard, ())


def buy(world: Portfolio, position: int) -> None:
    """Apply the fill that made the position."""
    world.apply_position(Position("005930", Decimal(position), Decimal(100)), Decimal(-101))


def test_a_strategy_decides_again_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    rose = tick(price=10_010.0, at=NOW.timestamp() + 1)
    with journal(path) as kept:
        kept.append(called(tick(), rose, heard=(signal(at=rose.at),)))
        kept.append(ParamsEntry("follower", {"step": 50.0}))
        kept.append(called(tick(price=10_050.0)))
    found = replay_decisions(path)
    assert (found.calls, found.signals, found.different) == (3, 1, 0)


def test_a_decision_that_is_another_one_now_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.journal"
    with journal(path) as kept:
        kept.append(called(tick(), heard=(signal(),)))
    assert run_command(["retrace", str(path)]) == 1
    told = capsys.readouterr().out
    assert "1 differ" in told
    assert "signals of follower" in told


def test_what_is_held_is_what_the_strategy_saw(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with journal(path) as kept:
        world = Portfolio(SystemClock(), LISTED, JournaledStore(SystemClock(), kept))
        world.load(Decimal(1000), ())
        world.apply_tick(tick())
        kept.append(called(tick(), version=world.view().version))
        buy(world, 1)
        world.apply_tick(tick(price=10_020.0))
        kept.append(called(tick(price=10_020.0), version=world.view().version))
    assert replay_decisions(path).different == 0  # held by then, and so not bought again


class Meddler(SystemClock):
    """Somebody trades in the middle of the look at the world, as another thread might."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], None]] = []

    def now(self) -> datetime:
        while self.meanwhile:
            self.meanwhile.pop()()
        return NOW


def test_a_view_is_of_one_moment_whatever_changes_meanwhile(tmp_path: Path) -> None:
    path, clock, seen = tmp_path / "a.journal", Meddler(), list[View]()
    with journal(path) as kept:
        world = Portfolio(clock, LISTED, JournaledStore(clock, kept))
        world.load(Decimal(10**6), ())
        for number in range(1, 6):
            clock.meanwhile = [
                partial(world.apply_tick, tick(price=100.0 + number)),
                partial(buy, world, number),
            ]
            seen.append(world.view())
    entries: list[Any] = [
        entry for entry in read_journal(path) if not isinstance(entry, JournalHeader)
    ]
    ticks = [entry for entry in entries if isinstance(entry, TickEntry)]
    past = ReplayedStore(ticks, [entry for entry in entries if entry not in ticks])
    assert [view.version & 0xFFFF for view in seen] == [1, 2, 3, 4, 5]  # ticks
    assert [view.version >> 40 for view in seen] == [2, 3, 4, 5, 6]
    assert [past.view_at(view.version, NOW) for view in seen] == seen


@given(
    price=st.floats(allow_nan=False, allow_infinity=False),
    confidence=st.floats(allow_nan=False, allow_infinity=False),
    wanted=st.decimals(0, 10**17),
)
def test_what_is_read_is_what_was_written(price: float, confidence: float, wanted: Decimal) -> None:
    entry = called(tick(price=price), heard=(signal(confidence=confidence, quantity=wanted),))
    again: Entry = msgspec.msgpack.decode(encode(entry), type=StrategyCallEntry)
    assert encode(again) == encode(entry)


@settings(max_examples=60)
@given(cut=st.integers(0, 400))
def test_a_journal_that_is_cut_short_is_read_as_far_as_it_goes(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.journal"
    with journal(path) as kept:
        for number in range(4):
            kept.append(called(tick(at=NOW.timestamp() + number)))
    left = path.read_bytes()[: -cut or None]
    path.write_bytes(left)
    if len(left) < len(MAGIC) + 4 + len(encode(HEADER)):
        with pytest.raises(RefusedError, match=r"no journal|does not begin"):
            replay_decisions(path)
    else:
        found = replay_decisions(path)
        assert found.different == 0
        assert found.calls == 4 if not cut else found.calls < 4


def test_another_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("PNG")
    for name in ("other", "nowhere"):
        assert run_command(["retrace", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_disk_that_is_gone_ends_the_journal_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with journal(path) as kept:
        kept._file.close()
        for _ in range(1000):
            kept.append(called(tick()))
    assert path.stat().st_size < 10_000
