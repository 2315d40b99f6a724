"""`qts backtest`: its data, its reports and its errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qts import telemetry
from qts.backtest.tape import _ticks
from qts.cli.main import run_command
from qts.domain import ManualClock, Secret
from qts.feed import FeedConfig, Observer, QuoteIngest, Recorder
from qts.venues import Quote
from tests.backtest.tapes import walk

MINE = """
import msgspec
from qts import Side, Signal, Strategy

class Params(msgspec.Struct, frozen=True):
    every: int = 50

class Mine(Strategy[Params], key="mine"):
    count = 0

    def on_tick(self, tick, view):
        self.count += 1
        if self.count % self.params.every == 0 and not view.quantity(tick.symbol):
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)
"""


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("QTS_CONFIG", raising=False)
    yield tmp_path
    telemetry.shutdown()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Recorded data as the feed writes it: cumulative volumes, raw quotes of the venue."""
    folder, clock = tmp_path / "record", ManualClock()
    recorder = Recorder(folder, clock)
    ingest = QuoteIngest(FeedConfig(), Observer([recorder.write]), "test")
    volumes: dict[str, float] = {}
    for tick in walk(7, 120, ["005930", "000660"]):
        if not 0 < tick.price < float("inf"):
            continue
        volumes[tick.symbol] = volumes.get(tick.symbol, 0.0) + tick.volume
        raw = {"bidp1": str(tick.bid), "askp1": str(tick.ask)} if tick.bid else {}
        quote = Quote(
            tick.symbol, tick.price, volumes[tick.symbol], tick.bid, tick.ask, raw, "kis_rest"
        )
        ingest.ingest(quote, tick.at, datetime.fromtimestamp(tick.at, UTC))
    recorder.close()
    return folder


def report(*arguments: str) -> dict[str, Any]:
    """Run the command and return its report."""
    assert run_command(["backtest", *arguments, "--json", "report.json"]) == 0
    found: dict[str, Any] = json.loads(Path("report.json").read_text())
    return found


SCALP = ("rsi_scalper", "--param", "length=4", "--param", "low=35", "--param", "high=65")


def test_a_recorded_day_is_decided_the_same_again_and_either_way(record: Path) -> None:
    found = [report(*SCALP, str(record), "--way", way) for way in ("auto", "compiled", "generic")]
    assert found[0]["trades"]
    assert len({each["digest"] for each in found}) == 1
    assert [each["way"] for each in found] == ["compiled", "compiled", "generic"]


def test_a_record_is_run_with_the_ticks_own_volumes_and_quotes(record: Path) -> None:
    ticks = list(_ticks([record], cumulative=True))
    original = [tick for tick in walk(7, 120, ["005930", "000660"]) if 0 < tick.price < math.inf]
    assert [tick.symbol for tick in ticks] == [tick.symbol for tick in original]
    assert [(t.bid, t.ask, t.at) for t in ticks] == [
        (t.bid or t.price, t.ask or t.price, t.at) for t in original
    ]
    assert [tick.volume for tick in ticks[2:]] == [tick.volume for tick in original[2:]]


def test_exported_records_are_the_same_tape(record: Path) -> None:
    assert run_command(["data", "export", str(record), "day.parquet"]) == 0
    one, two = report(*SCALP, str(record)), report(*SCALP, "day.parquet", "--volume", "day")
    assert one["events"] == two["events"]
    assert one["began"] == two["began"]


def test_a_csv_of_ticks_is_run(workdir: Path) -> None:
    rows = "".join(f"2026-11-16T00:00:{n:02}+00:00,005930,{10_000 + n},5\n" for n in range(30))
    (workdir / "ticks.csv").write_text(f"time,symbol,price,volume\n{rows}")
    found = report("moving_average_swing", "ticks.csv")
    assert (found["events"], found["symbols"]) == (30, 1)
    assert found["began"] == "2026-11-16T00:00:00Z"


def test_a_simulated_day_is_the_same_for_the_same_seed() -> None:
    words = ("surge_breakout", "--symbols", "50", "--seconds", "120", "--param", "window=3")
    found = [report(*words, "--simulated-day", seed) for seed in ("1", "1", "2")]
    assert found[0]["events"] == 50 * 120
    assert found[0]["digest"] == found[1]["digest"]
    assert found[0]["signals"] != found[2]["signals"]


def test_a_strategy_in_a_file_is_run_with_its_parameters(workdir: Path, record: Path) -> None:
    (workdir / "mine.py").write_text(MINE)
    found = report("mine.py:Mine", str(record), "--param", "every=20", "--no-stops")
    assert (found["strategy"], found["params"], found["way"]) == ("mine", {"every": 20}, "generic")
    assert found["fills"] > 0


def test_the_report_is_printed_and_a_page_written(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["backtest", *SCALP, str(record), "--html", "page.html"]) == 0
    assert "profit factor" in capsys.readouterr().out
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert run_command(["backtest", *SCALP, str(record), "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["strategy"] == "rsi_scalper"
    assert "profit factor" in printed.err


def test_the_cash_and_the_settings_are_taken(workdir: Path, record: Path) -> None:
    (workdir / "qts.toml").write_text("[risk.limits]\nmax_order_value = 50_000\n")
    found = report(*SCALP, str(record), "--cash", "5,000,000", "--config", "qts.toml")
    assert found["performance"]["start_equity"] == 5_000_000
    assert all(
        Decimal(trade["entry"]) * Decimal(trade["quantity"]) < 60_000 for trade in found["trades"]
    )


def test_latency_0_allows_a_fill_on_the_same_tick(record: Path) -> None:
    at_once, usual = report(*SCALP, str(record), "--latency", "0"), report(*SCALP, str(record))
    assert at_once["trades"] != usual["trades"]
    assert usual["digest"] == report(*SCALP, str(record), "--latency", "1")["digest"]


def test_a_disabled_strategy_ends_with_exit_code_1(workdir: Path, record: Path) -> None:
    text = "from qts import NoParams, Strategy\nclass Bad(Strategy[NoParams]):\n"
    (workdir / "bad.py").write_text(
        f"{text}    def on_tick(self, tick, view):\n        return 1/0\n"
    )
    words = ["backtest", "bad.py:Bad", str(record), "--json", "report.json"]
    assert run_command(words) == 1
    assert "ZeroDivisionError" in json.loads(Path("report.json").read_text())["stopped"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope", "x.csv"], "unknown strategy 'nope'; expected module:Class"),
        (["rsi_scalper"], "expected one of DATA, --bars TIMEFRAME and --simulated-day"),
        (["rsi_scalper", "x.csv", "--simulated-day", "1"], "expected one of DATA"),
        (["rsi_scalper", "x.csv"], "x.csv does not exist"),
        (["rsi_scalper", "empty"], "empty holds neither records"),
        (["rsi_scalper", "text.csv"], "text.csv, line 2: time 'noon'"),
        (["rsi_scalper", "headed.csv"], "the data has no events"),
        (["rsi_scalper", "x.csv", "--param", "length"], "expected NAME=VALUE"),
        (["rsi_scalper", "x.csv", "--param", "length=1000"], "Expected `int` <= 500"),
        (["rsi_scalper", "x.csv", "--param", "size=1"], "has no parameter 'size'"),
        (["rsi_scalper", "x.csv", "--cash", "much"], "--cash 'much' is not a number"),
        (["rsi_scalper", "x.csv", "--cash", "-1"], "cash is -1; expected more than 0"),
        (["broken.py:X", "x.csv"], "strategy broken.py:X cannot be loaded: SyntaxError"),
        (["no_such.module:X", "x.csv"], "cannot be loaded: ModuleNotFoundError"),
        (["qts.strategies:Nope", "x.csv"], "qts.strategies has no class 'Nope'"),
        (["qts.domain:Side", "x.csv"], "Side must derive from qts.Strategy"),
        (["rsi_scalper", "x.csv", "--html", "none/x.html"], "--html none/x.html: cannot be"),
        (["rsi_scalper", "x.csv", "--way", "fast"], "--way"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "empty").mkdir()
    (workdir / "text.csv").write_text("time,symbol,price,volume\nnoon,A,1,1\n")
    (workdir / "headed.csv").write_text("time,symbol,price,volume\n")
    (workdir / "broken.py").write_text("class X(:\n")
    assert run_command(["backtest", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_job_is_submitted_listed_run_and_shown(
    record: Path,
    database_url: Secret,
    monkeypatch: pytest.MonkeyPatch,
    workdir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QTS_DATABASE__URL", database_url.reveal())
    (workdir / "mine.py").write_text(MINE)
    assert run_command(["backtest", "mine.py:Mine", "record", "--job", "--param", "every=20"]) == 0
    job = capsys.readouterr().out.strip()
    assert run_command(["ops", "jobs", "list"]) == 0
    assert f"{job}  QUEUED" in capsys.readouterr().out
    assert run_command(["ops", "jobs", "work", "--duration", "6s"]) == 0
    assert run_command(["ops", "jobs", "show", job, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == "DONE"
    assert shown["result"]["strategy"] == "mine"
    assert run_command(["ops", "jobs", "show", "x"]) == 2
