"""`qts optimise`: the same study with any processes, after kills and interruptions."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qts import telemetry
from qts.cli.main import run_command

STRATEGY = Path(__file__).with_name("strategies.py")
SEARCH = ("cross.py:Cross", "days.csv", "--timeframe", "1d", "--no-stops", "--trials", "8",
          "--param", "fast=2..9", "--param", "slow=8..12")  # fmt: skip


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder with a strategy and a CSV of 60 days of one symbol."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TEST_OPTIMISE_FOLDER", str(tmp_path))
    monkeypatch.delenv("QTS_CONFIG", raising=False)
    (tmp_path / "cross.py").write_text(STRATEGY.read_text())
    chance = random.Random(5)  # noqa: S311 - a walk, not a secret
    lines, price = ["date,symbol,open,high,low,close,volume"], 50_000.0
    for day in range(84):
        first, last = (round(price * (1 + chance.gauss(0, 0.02)) / 50) * 50 for _ in range(2))
        date = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(days=day)
        if date.weekday() < 5:
            high, low = max(first, last) + 100, min(first, last) - 100
            lines.append(f"{date:%Y-%m-%d},005930,{first},{high},{low},{last},1000")
        price = last
    (tmp_path / "days.csv").write_text("\n".join(lines) + "\n")
    yield tmp_path
    telemetry.shutdown()


def optimise(*arguments: str) -> dict[str, Any]:
    """Run the command in this process and return its report."""
    assert run_command(["optimise", *SEARCH, *arguments, "--json", "report.json"]) == 0
    found: dict[str, Any] = json.loads(Path("report.json").read_text())
    return found


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which a strategy may end."""
    words = [sys.executable, "-m", "qts", "optimise", *SEARCH, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)


def starts() -> list[str]:
    return Path("starts").read_text().splitlines()


def test_one_and_two_processes_give_the_same_study(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bayes = ("--method", "bayes", "--walk-forward", "2", "--seed", "7")
    one = optimise(*bayes, "--processes", "1")
    monkeypatch.setenv("QTS_HOME", str(workdir / "other"))
    fast = one["trials"][3]["params"]["fast"]
    (workdir / f"worker-{fast}").touch()  # and one worker is killed on the way
    two = optimise(*bayes, "--processes", "2", "--html", "page.html")
    for report in (one, two):
        for name in ("command", "best_command", "check_command"):
            report[name] = report[name].replace(str(workdir / "other"), str(workdir / "home"))
    assert one == two
    assert len(one["trials"]) == 16
    assert {fold["fold"] for fold in one["folds"]} == {1, 2}
    assert_page_is_one_file(Path("page.html").read_text(), one)


def assert_page_is_one_file(page: str, report: dict[str, Any]) -> None:
    for outside in ("http:", "https:", "<script", "<link", "src=", "url(", "@import"):
        assert outside not in page
    valued = [each for each in report["trials"] if each["fold"] == 2 and each["value"] is not None]
    assert page.count('class="cell"') == len({str(each["params"]) for each in valued})
    assert page.count('class="best"') == 1
    assert page.count('<polyline class="curve"') == 3  # two folds and the chain of both
    assert report["digest"] in page
    assert all(each["digest"] in page for each in report["trials"])


INSTANCES = """
[[strategy]]
class = "cross.py:Cross"
name = "slow_one"
symbols = ["005930"]
capital = 300_000
parameters = { slow = 9 }
[[strategy]]
class = "cross.py:Cross"
"""


def test_an_instance_keeps_its_parameters_symbols_and_capital(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("qts.toml").write_text(INSTANCES)
    _, *data = SEARCH[:9]
    words = ["optimise", "slow_one", *data[:3], "--no-stops", "--config", "qts.toml"]
    words += ["--param", "fast=2..8", "--trials", "7", "--processes", "1", "--json", "report.json"]
    assert run_command(words) == 0
    report = json.loads(Path("report.json").read_text())
    assert report["strategy"] == "slow_one"
    assert {line.split()[1] for line in starts()} == {"9"}  # slow, of the instance
    best = shlex.split(report["best_command"])
    assert best[best.index("backtest") + 1] == "slow_one"
    assert run_command([*best[best.index("backtest") :], "--json", "best.json"]) == 0
    again = json.loads(Path("best.json").read_text())
    assert again["digest"] in {each["digest"] for each in report["trials"]}
    capsys.readouterr()
    words[1] = "all"
    assert run_command(words) == 2
    assert "slow_one, cross; expected one strategy to search" in capsys.readouterr().err


def test_a_killed_worker_costs_its_trial_only(workdir: Path) -> None:
    whole = optimise("--study", "whole", "--processes", "1")
    Path("starts").unlink()
    fast = whole["trials"][3]["params"]["fast"]
    (workdir / f"worker-{fast}").touch()
    again = optimise("--study", "again", "--processes", "1")
    assert not (workdir / f"worker-{fast}").exists()
    assert again["digest"] == whole["digest"]
    valid = [each for each in whole["trials"] if not each["error"]]
    assert len(starts()) == len(valid) + 1 + 1  # the check out of sample, and the one that died


def test_a_killed_study_is_continued(workdir: Path) -> None:
    whole = optimise("--study", "whole", "--processes", "1")
    runs = len(starts())
    Path("starts").unlink()
    (workdir / f"parent-{whole['trials'][4]['params']['fast']}").touch()
    killed = start("--study", "again", "--processes", "1")
    assert killed.returncode == -signal.SIGKILL
    file = workdir / "home" / "studies" / "again.jsonl"
    assert 2 <= len(file.read_text().splitlines()) < 1 + len(whole["trials"])
    with file.open("a") as torn:
        torn.write('{"part":"in","fold":0,"num')
    again = optimise("--study", "again", "--processes", "1")
    assert again["digest"] == whole["digest"]
    assert again["best"] == whole["best"]
    # The trial in progress ran twice, and one that was done and not yet stored may have.
    assert runs + 1 <= len(starts()) <= runs + 2


def test_an_interrupted_study_is_continued(workdir: Path) -> None:
    whole = optimise("--study", "whole", "--processes", "1")
    (workdir / f"interrupt-{whole['trials'][4]['params']['fast']}").touch()
    stopped = start("--processes", "1")
    assert stopped.returncode == 130, stopped.stderr
    assert "runs are stored; the same command continues" in stopped.stderr
    assert optimise("--processes", "1")["digest"] == whole["digest"]


def test_a_finished_study_runs_nothing_and_more_trials_continue_it() -> None:
    first = optimise("--study", "mine", "--processes", "1")
    before = len(starts())
    assert optimise("--study", "mine")["digest"] == first["digest"]
    assert len(starts()) == before
    more = optimise("--study", "mine", "--trials", "10", "--processes", "1")
    assert more["trials"][:8] == first["trials"]
    assert before < len(starts()) <= before + 3


def test_the_commands_of_the_report_give_the_digests_of_its_trials(tmp_path: Path) -> None:
    report = optimise("--processes", "1")
    best = report["best"]
    for command, part in (("best_command", "in_sample"), ("check_command", "out_of_sample")):
        words = shlex.split(report[command])
        assert run_command([*words[words.index("qts") + 1 :], "--json", "one.json"]) == 0
        assert json.loads(Path("one.json").read_text())["digest"] == best[part]["digest"]
    assert max(each["value"] or -99 for each in report["trials"]) == best["in_sample"]["value"]
    words = shlex.split(report["command"])
    environment = dict(word.split("=", 1) for word in words[: words.index("qts")])
    assert environment["QTS_HOME"] == os.environ["QTS_HOME"]
    words = [*words[words.index("qts") + 1 :], "--json", str(tmp_path / "two.json")]
    assert run_command(words) == 0
    assert json.loads((tmp_path / "two.json").read_text())["digest"] == report["digest"]


def test_a_study_of_another_search_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    optimise("--study", "mine", "--processes", "1")
    capsys.readouterr()
    assert run_command(["optimise", *SEARCH, "--study", "mine", "--metric", "return"]) == 2
    error = capsys.readouterr().err.strip()
    assert error == (
        "qts: study 'mine' has metric sharpe, this command return; name another --study"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--param", "fst=2..4"],
            "parameter of cross 'fst' is unknown; expected one of fast, slow",
        ),
        (["--param", "fast=4..2"], "the range is empty"),
        ([], "no parameter has several values"),
        (["--param", "fast=2..4", "--metric", "shape"], "did you mean sharpe?"),
        (["--param", "fast=2..4", "--method", "gird"], "did you mean grid?"),
        (["--param", "fast=2..4", "--walk-forward", "40"], "60 bars are too few"),
        (["--param", "fast=2..4", "--study", "a/b"], "--study 'a/b': expected letters"),
        (["--param", "fast=2..4", "--symbols", "005935"], "005935"),
        (["--param", "fast=2..9", "--method", "grid", "--trials", "3"], "8 combinations"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["optimise", "cross.py:Cross", "days.csv", "--timeframe", "1d", *arguments]
    assert run_command(words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not Path("starts").exists()
