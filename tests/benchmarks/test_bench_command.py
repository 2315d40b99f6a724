"""`qts dev bench`: output, refusals and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import benchmarks.router
from benchmarks.report import Goal, Picture, Result, Row
from qts import _native
from qts.cli import bench as subject
from qts.domain import RefusedError

FIELDS = {"name", "metric", "unit", "better", "ours", "peer", "peer_name", "ratio", "goal", "holds"}


def run(*arguments: str) -> int:
    app = typer.Typer()
    app.command()(subject.bench)
    result = typer.main.get_command(app).main(list(arguments), "bench", standalone_mode=False)
    assert isinstance(result, int)
    return result


def fake_result(ours: float) -> Result:
    row = Row(
        name="ring",
        metric="throughput",
        unit="M messages/s",
        better="higher",
        ours=ours,
        peer=2.0,
        peer_name="textbook",
        goals=(Goal("ratio", ">=", 1.5),),
    )
    return Result(machine={"cores": 2}, rows=(row,), pictures=(Picture("a", "<s/>"),))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the measurement; the last figure of the list is its result."""
    figures = [4.0]
    monkeypatch.setattr(
        benchmarks.router, "run", lambda _quick, _progress: fake_result(figures[-1])
    )
    return figures


def test_quick_run_writes_rows_and_pictures(tmp_path: Path) -> None:
    file, pictures = tmp_path / "rows.json", tmp_path / "new" / "pictures"
    code = run("router", "--quick", "--no-goals", "--json", str(file), "--plot", str(pictures))
    assert code == 0
    written: dict[str, Any] = json.loads(file.read_text())
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["ping_pong_ns"] > 0
    assert isinstance(written["machine"]["noisy"], bool)
    for row in written["rows"]:
        assert set(row) >= FIELDS
        assert row["ours"] > 0
        assert row["peer"] > 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"], rel=0.01)
        assert row["better"] in ("higher", "lower")
        assert isinstance(row["holds"], bool)
    names = [row["name"] for row in written["rows"]]
    assert sum(name.startswith("ring") for name in names) == 6
    assert sum(name.startswith("router, ") for name in names) == 4
    assert sum(name.startswith("router at 1 M/s") for name in names) == 5
    assert sum(name.startswith("Python") for name in names) == 4
    drawn = sorted(path.name for path in pictures.iterdir())
    assert drawn == [f"router-{kind}.svg" for kind in ("latency", "python", "ring", "throughput")]


def test_exit_code_is_0_when_every_goal_holds(measured: list[float]) -> None:
    assert run("router") == 0


def test_exit_code_is_1_when_a_goal_does_not_hold(
    measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    measured.append(2.0)
    assert run("router") == 1
    shown = capsys.readouterr().out
    assert "does not hold" in shown
    assert shown.strip().endswith("1 of 1 goals do not hold: ring")


def test_no_goals_means_exit_code_0(measured: list[float]) -> None:
    measured.append(2.0)
    assert run("router", "--no-goals") == 0


def test_standard_output_has_only_the_json(
    measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("router", "--json", "-") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"][0]["goal"] == "ratio >= 1.5"
    assert "all 1 goals hold" in captured.err


def test_unknown_package_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        RefusedError, match=r"^no benchmark of nothing; expected one of router, cache\b"
    ):
        run("nothing")


def test_plot_that_is_a_file_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RefusedError, match="cannot create the directory"):
        run("router", "--plot", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_json_into_a_missing_directory_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be written"):
        run("router", "--json", str(tmp_path / "none" / "rows.json"))


def test_outside_a_checkout_the_error_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="run this command in a checkout") as refused:
        subject._checkout([tmp_path])
    assert len(str(refused.value).splitlines()) == 1


def test_a_core_without_benchmark_functions_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(_native, "bench_build")
    with pytest.raises(RefusedError, match="built without QTS_BENCH") as refused:
        run("router", "--quick")
    assert len(str(refused.value).splitlines()) == 1


def test_help_loads_neither_benchmarks_nor_the_native_core() -> None:
    code = (
        "import sys, qts.cli.bench\n"
        "print([name for name in sys.modules if name in ('qts._native', 'benchmarks')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
