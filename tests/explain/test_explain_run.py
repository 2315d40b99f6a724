"""`qts explain` over a recorded paper run, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from qts.backtest import recorded_tape
from qts.dashboard import day_bounds, parse_day
from qts.domain import SystemClock
from qts.explain import PARTS
from qts.feed import recorded_days
from qts.pipeline import journal_files, load_journaled_run
from tests.acceptance.runs import SLOW_MARKET, SMALL, Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

FILLS = "SELECT count(*), COALESCE(sum(fee), 0) FROM fill WHERE counted"
STRATEGY = """
from tests.acceptance.turner import Turner


class Mine(Turner, key="mine"):
    pass
"""
# Buys each symbol once, whatever becomes of it: its state knows.
ONCE = """
import msgspec

from qts import NoParams, Side, Signal, Strategy


class Once(Strategy[NoParams], key="once"):
    symbols = ("000660", "035720")

    class State(msgspec.Struct):
        bought: list[str] = []

    def on_tick(self, tick, view):
        if tick.symbol in self.state.bought:
            return
        if view.quantity(tick.symbol):
            self.state.bought.append(tick.symbol)
        elif not any(order.symbol == tick.symbol for order in view.orders):
            exits = {"stop": tick.price * 0.5, "target": tick.price * 1.5}
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, value=300_000, **exits)
"""


class Day:
    """Day with runs of a strategy file."""

    def __init__(self, folder: Path, source: str, name: str, **settings: str) -> None:
        self.home, self.journals = folder / "home", folder / "journals"
        self.strategy = folder / "mine.py"
        self.strategy.write_text(source)
        self.settings = {
            "QTS_PIPELINE__STRATEGIES": f"{self.strategy}:{name}",
            "QTS_PIPELINE__JOURNAL": str(self.journals),
            **settings,
        }

    def run(self) -> tuple[int, Decimal]:
        """Trade until there are some fills; return their number and their fees."""
        with running(self.home, **self.settings) as run:
            run.until("Ready")
            assert until(lambda: self._count(run) >= 20, seconds=90)
            run.ends_well(2)
        count, fees = self._sum
        return count, fees

    def _count(self, run: Run) -> int:
        self._sum = run.query(FILLS)[0]
        return int(self._sum[0])

    def explain(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.qts("explain", *arguments, **environ)

    def qts(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
        found = {**clean, **SMALL, "QTS_HOME": str(self.home), **self.settings, **environ}
        return subprocess.run(
            [sys.executable, "-m", "qts", *arguments],
            capture_output=True,
            text=True,
            env=found,
            timeout=120,
            check=False,
        )

    def refused(self, *arguments: str, **environ: str) -> str:
        done = self.explain(*arguments, **environ)
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        return line


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    found = Day(tmp_path_factory.mktemp("explain").resolve(), STRATEGY, "Mine")
    found.run()
    return found


def test_the_parts_of_a_paper_run_add_up(day: Day, tmp_path: Path) -> None:
    page, report = tmp_path / "page.html", tmp_path / "report.json"
    done = day.explain("today", "--json", str(report), "--html", str(page))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    live, backtest = found["live"], found["backtest"]
    assert live["fills"] >= 20
    assert backtest["fills"] > 0
    parts = {part["part"]: Decimal(part["won"]) for part in found["parts"]}
    assert list(parts) == list(PARTS)
    difference = Decimal(live["earned"]) - Decimal(backtest["earned"])
    assert sum(parts.values()) == difference == Decimal(found["difference"])
    assert parts["manual"] == 0
    assert parts["cost"] == 0  # the paper broker takes the fees of the settings
    for part in found["parts"]:
        won = [Decimal(item["won"]) for item in part["items"]]
        assert sum(won) == Decimal(part["won"])
        assert won == sorted(won, key=lambda value: -abs(value))
        assert all(
            item["reason"] and item["strategy"] in ("mine", "risk") for item in part["items"]
        )
    shown = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line.strip()}
    assert shown["together"] == f"{difference:+,.0f}"
    assert f"{difference:+,.0f}" in page.read_text()


def test_every_signal_of_the_run_is_of_a_tick_that_its_backtest_reads(day: Day) -> None:
    """So a decision that both sides take has one signal id."""
    today = parse_day("today", SystemClock().now())
    start, end = day_bounds(today)
    (path,) = journal_files(day.journals, start, end)
    run = load_journaled_run(path, start.timestamp(), end.timestamp())
    assert run.opening.cash == 100_000_000
    assert not run.opening.positions
    tape = recorded_tape(recorded_days(day.home / "record")[today])
    recorded = {
        (tape.symbols[symbol], at)
        for chunk in tape
        for symbol, at in zip(chunk.symbol.tolist(), chunk.at.tolist(), strict=True)
    }
    signals = {(each.symbol, each.at) for each in run.signals if each.strategy_key == "mine"}
    assert len(signals) >= 20
    assert signals <= recorded


def test_what_is_missing_is_refused_in_one_line(day: Day, tmp_path: Path) -> None:
    assert "expected today, yesterday or a date" in day.refused("someday")
    journal = day.settings.pop("QTS_PIPELINE__JOURNAL")
    try:
        assert "pipeline.journal is not set" in day.refused("today")
    finally:
        day.settings["QTS_PIPELINE__JOURNAL"] = journal
    line = day.refused("2020-01-02")
    assert "no journal of 2020-01-02 in" in line
    line = day.refused("today", QTS_FEED__RECORD_DIR=str(tmp_path))
    assert f"in {tmp_path}" in line
    assert "no record of" in line
    assert "--json" in day.refused("today", "--json", str(tmp_path))


def test_another_account_is_refused_with_the_one_that_there_is(day: Day) -> None:
    line = day.refused("today", QTS_BROKERS__PAPER__ACCOUNT="other")
    assert "is of the account paper:" in line
    assert "name one with --account" in line


def test_settings_of_today_do_not_change_the_backtest_of_the_day(day: Day, tmp_path: Path) -> None:
    usual, other = tmp_path / "usual.json", tmp_path / "other.json"
    assert day.explain("today", "--json", str(usual)).returncode == 0
    changed = {"QTS_RISK__LIMITS__MAX_ORDER_VALUE": "100000", "QTS_BROKERS__COSTS__KRX_FEE": "0.05"}
    assert day.explain("today", "--json", str(other), **changed).returncode == 0
    assert json.loads(usual.read_text()) == json.loads(other.read_text())


def test_a_strategy_that_was_edited_is_refused(day: Day) -> None:
    day.strategy.write_text(STRATEGY + "\n# edited\n")
    try:
        line = day.refused("today")
    finally:
        day.strategy.write_text(STRATEGY)
    assert f"strategy mine ({day.strategy}:Mine) was edited since the run of" in line
    assert "restore" in line


@pytest.mark.soak
def test_a_day_of_two_runs_continues_with_positions_states_and_exits(tmp_path: Path) -> None:
    """The operator buys one symbol and closes another; no backtest has these orders."""
    day = Day(tmp_path.resolve(), ONCE, "Once", **SLOW_MARKET)
    state = "SELECT state FROM strategy_state WHERE strategy_key = 'once'"

    def bought(run: Run) -> bool:
        return any(b"000660" in row[0] and b"035720" in row[0] for row in run.query(state))

    with running(day.home, **day.settings) as run:
        run.until("Ready")
        assert until(lambda: bought(run), seconds=90)
        for words in (
            ("orders", "place", "BUY", "005930", "--quantity", "2", "--yes"),
            ("positions", "close", "000660", "--reason", "enough", "--yes"),
        ):
            done = day.qts(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        run.ends_well(2)
    with running(day.home, **day.settings) as run:
        run.until("Ready")
        done = day.qts("positions", "close", "035720", "--reason", "enough", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        run.ends_well(2)
    start, end = day_bounds(parse_day("today", SystemClock().now()))
    _, path = journal_files(day.journals, start, end)
    second = load_journaled_run(path, start.timestamp(), end.timestamp())
    assert second.opening.owners == {"005930": "manual", "035720": "once"}
    assert second.opening.positions.keys() == second.opening.owners.keys()
    assert list(second.states) == ["once"]
    report = tmp_path / "report.json"
    done = day.explain("today", "--json", str(report))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["runs"] == 2
    assert found["live"]["orders"] == 5
    assert found["backtest"]["orders"] == 2  # the entries; without the state it would buy again
    parts = {part["part"]: part for part in found["parts"]}
    total = sum(Decimal(part["won"]) for part in found["parts"])
    assert total == Decimal(found["difference"])
    manual = parts["manual"]["items"]
    assert {item["symbol"] for item in manual} == {"005930", "000660", "035720"}
    assert all(item["reason"].startswith("manual order of cli ") for item in manual)
    assert sum(item["reason"].endswith(": enough") for item in manual) == 2
