"""`qts backtest` over bars: the catalogue, files, ranges, its report and the command in it."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qts import telemetry
from qts.cli.main import run_command

STRATEGY = """
import msgspec
from qts import IntentType, Side, Signal, Strategy

class Params(msgspec.Struct, frozen=True):
    every: int = 2

class Days(Strategy[Params], key="days"):
    kind = "PORTFOLIO"
    timeframes = ("1d",)

    def __init__(self, params):
        super().__init__(params)
        self.count = 0

    def on_bar(self, bar, view):
        self.count += 1
        if view.quantity(bar.symbol):
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)
        elif self.count % self.params.every == 0:
            yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at)

class Loop(Days, key="loop"):
    def on_bar(self, bar, view):
        while True:
            pass

class Never(Days, key="never"):
    def on_start(self, view):
        while True:
            pass

class Others(Days, key="others"):
    symbols = ("000660",)
"""
SYMBOLS = ("005930", "000660")


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder with a strategy, a CSV of 60 days of two symbols, and the same in the catalogue."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("QTS_CONFIG", raising=False)
    (tmp_path / "mine.py").write_text(STRATEGY)
    chance = random.Random(5)  # noqa: S311 - a walk, not a secret
    lines = ["date,symbol,open,high,low,close,volume"]
    for symbol in SYMBOLS:
        price = 50_000.0
        for day in range(60):
            first = round(price * (1 + chance.gauss(0, 0.01)) / 50) * 50
            last = round(first * (1 + chance.gauss(0, 0.02)) / 50) * 50
            high, low = max(first, last) + 100, min(first, last) - 100
            date = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(days=day)
            if date.weekday() < 5:
                lines.append(f"{date:%Y-%m-%d},{symbol},{first},{high},{low},{last},1000")
            price = last
    (tmp_path / "days.csv").write_text("\n".join(lines) + "\n")
    words = ["data", "import", "days.csv", "--venue", "krx", "--timeframe", "1d"]
    assert run_command(words) == 0
    yield tmp_path
    telemetry.shutdown()


def report(*arguments: str) -> dict[str, Any]:
    """Run the command and return its report."""
    assert run_command(["backtest", *arguments, "--json", "report.json"]) == 0
    found: dict[str, Any] = json.loads(Path("report.json").read_text())
    return found


MINE = ("mine.py:Days", "--no-stops")


def test_the_catalogue_and_its_file_are_the_same_bars() -> None:
    catalogue, file = report(*MINE, "--bars", "1d"), report(*MINE, "days.csv", "--timeframe", "1d")
    assert catalogue["fills"] > 20
    assert catalogue["digest"] == file["digest"]
    assert catalogue["data"]["digest"] == file["data"]["digest"]
    assert (catalogue["data"]["kind"], catalogue["data"]["symbols"]) == ("1d", 2)


def test_symbols_and_a_range_are_chosen() -> None:
    whole = report(*MINE, "--bars", "1d", "--symbols", "005930")
    assert whole["data"]["symbols"] == 1
    span = ("--from", "2026-03-10", "--to", "2026-03-20")
    part = report(*MINE, "--bars", "1d", *span)
    assert part["data"]["events"] == 2 * 8
    assert (part["began"], part["ended"]) == ("2026-03-10T00:00:00Z", "2026-03-19T06:30:00Z")
    file = report(*MINE, "days.csv", "--timeframe", "1d", *span)
    assert file["digest"] == part["digest"]


def test_a_symbol_without_a_bar_in_this_time_is_a_warning() -> None:
    Path("one.csv").write_text("date,open,high,low,close,volume\n2026-01-05,10,10,10,10,1\n")
    words = [
        "data",
        "import",
        "one.csv",
        "--venue",
        "krx",
        "--timeframe",
        "1d",
        "--symbol",
        "035420",
    ]
    assert run_command(words) == 0
    found = report(*MINE, "--bars", "1d", "--from", "2026-03-01")
    assert found["data"]["missing"] == ["035420"]
    assert found["warnings"][0] == "no data in this time: 035420"


def test_the_command_of_the_report_gives_the_same_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTS_RISK__LIMITS__MAX_ORDER_VALUE", "1000000")
    monkeypatch.setenv("QTS_BROKERS__PAPER__SLIPPAGE_TICKS", "1")
    words = ("mine.py:Days", "--also", "mine.py:Others", "--param", "days.every=3", "--bars", "1d")
    first = report(*words, "--from", "2026-03-05", "--cash", "50,000,000")
    assert first["settings"]["limits"]["max_order_value"] == 1_000_000
    assert first["settings"]["paper"]["seed"] is not None
    assert [each["params"] for each in first["strategies"]] == [{"every": 3}, {"every": 2}]
    monkeypatch.delenv("QTS_RISK__LIMITS__MAX_ORDER_VALUE")
    monkeypatch.delenv("QTS_BROKERS__PAPER__SLIPPAGE_TICKS")
    (tmp_path / "elsewhere").mkdir()
    command = shlex.split(first["command"])
    at = command.index("qts")
    variables = dict(word.split("=", 1) for word in command[:at])
    again = tmp_path / "again.json"
    subprocess.run(
        [sys.executable, "-m", *command[at:], "--json", str(again)],
        cwd=tmp_path / "elsewhere",
        env={"PATH": "/usr/bin:/bin", **variables},
        check=True,
        capture_output=True,
        timeout=100,
    )
    second = json.loads(again.read_text())
    assert second["digest"] == first["digest"]
    assert second["data"]["digest"] == first["data"]["digest"]
    assert second["settings"] == first["settings"]


def test_what_was_not_carried_out_is_shown_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("qts.toml").write_text("[risk.limits]\nmax_open_symbols = 1\n")
    found = report("mine.py:Days", "--bars", "1d", "--no-stops", "--param", "every=1",
                   "--html", "page.html")  # fmt: skip
    printed, page = capsys.readouterr(), Path("page.html").read_text()
    assert found["refusals"]["G_OPEN_SYMBOLS"] > 0
    assert found["expired_orders"] == {"the data ended": 1}
    for text in (printed.out, page):
        assert "G_OPEN_SYMBOLS" in text
        assert "the data ended" in text
    assert "warning: 1 of " in printed.err
    assert found["warnings"] == [
        line.removeprefix("warning: ") for line in printed.err.strip().splitlines()
    ]


@pytest.mark.parametrize(("name", "method"), [("Loop", "on_bar"), ("Never", "on_start")])
def test_a_strategy_that_never_returns_ends_with_an_error(
    name: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["backtest", f"mine.py:{name}", "--bars", "1d", "--call-limit", "0.4"]) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"qts: strategy {name.lower()} did not return within 0.4 s at mine.py:")
    assert f" in {method}; ended." in error
    assert len(error.splitlines()) == 1


def test_code_that_cannot_be_interrupted_ends_the_process(workdir: Path) -> None:
    """A call into C that holds the interpreter leaves only the process to end."""
    (workdir / "stuck.py").write_text(
        "from qts import NoParams, Strategy\n"
        "class Stuck(Strategy[NoParams], key='stuck'):\n    timeframes = ('1d',)\n"
        "    def on_bar(self, bar, view):\n        sum(range(10**12))\n"
        "        return ()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "qts", "backtest", "stuck.py:Stuck", "--bars", "1d",
         "--call-limit", "0.4"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "stuck.py" in done.stderr
    assert "in on_bar" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bars", "1d", "days.csv"], "expected one of DATA, --bars TIMEFRAME"),
        (["--bars", "1m"], "the catalogue has no 1m bars of any symbol"),
        (["--bars", "1d", "--symbols", "005935"], "no 1d bars of 005935; did you mean 005930?"),
        (["--bars", "1d", "--from", "soon"], "'soon' is not a time"),
        (["--bars", "1d", "--from", "2027-01-01"], "the data has no events"),
        (["days.csv", "--timeframe", "1d", "--symbols", "005935"], "005935"),
        (["days.csv", "--timeframe", "1d", "--way", "compiled"], "the data has bars"),
        (["days.csv"], "name their length with --timeframe"),
        (["--bars", "1d", "--param", "hours=2"], "has no parameter 'hours'"),
        (["--bars", "1d", "--also", "mine.py:Others", "--param", "every=2"], "KEY.NAME=VALUE"),
        (["--bars", "1d", "--also", "mine.py:Days"], "two strategies have the same key"),
        (["--simulated-day", "1", "--symbols", "many"], "how many symbols the simulated day has"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["backtest", "mine.py:Days", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_ticks_are_selected_too(workdir: Path) -> None:
    rows = "".join(
        f"2026-11-16T00:00:{n:02}+00:00,{symbol},{10_000 + n},5\n"
        for n in range(30)
        for symbol in SYMBOLS
    )
    (workdir / "ticks.csv").write_text(f"time,symbol,price,volume\n{rows}")
    span = ("--from", "2026-11-16T09:00:05", "--to", "2026-11-16T09:00:15")
    found = report("moving_average_swing", "ticks.csv", "--symbols", "005930", *span)
    assert found["data"]["events"] == 10
    assert found["began"] == "2026-11-16T00:00:05Z"
    more = report("moving_average_swing", "ticks.csv", "--symbols", "005930,035420", *span)
    assert more["digest"] == found["digest"]
    assert more["warnings"] == ["no data in this time: 035420"]
