"""qts verify isolation and qts events demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from qts.cli import lanes_demo, verify
from qts.domain import RefusedError
from qts.events import EventEngine
from qts.verify import IsolationLoad, verify_isolation


def run(app: typer.Typer, *words: str) -> int:
    result = typer.main.get_command(app).main(list(words), standalone_mode=False)
    return result if isinstance(result, int) else 0


def read(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())


def test_a_planted_p0_handler_of_a_hundred_ms_fails_the_verdict(tmp_path: Path) -> None:
    """Ten times the limit of p99: no machine is so slow that this says something else."""
    out = tmp_path / "isolation.json"
    assert run(verify.app, "isolation", "--for", "1s", "--plant-ms", "100", "--json", str(out)) == 1
    report = read(out)
    assert report["verdict"] == "FAIL"
    assert any(line.startswith("P0 p99") for line in report["broken"])
    assert report["p0_in_order"] is True


def test_the_report_has_the_figures_scripts_rely_on(tmp_path: Path) -> None:
    out = tmp_path / "isolation.json"
    code = run(verify.app, "isolation", "--for", "1s", "--json", str(out))
    report = read(out)
    assert code == (0 if report["verdict"] == "PASS" else 1)
    assert list(report["lanes"]) == ["P0", "P1", "P2", "P3"]
    p0 = report["lanes"]["P0"]
    assert p0["sla_ms"] == {"p50": 2, "p95": 5, "p99": 10, "max": 20}
    assert p0["count"] == report["p0_sent"] == report["p0_seen"] > 50
    assert p0["dropped"] == 0
    assert p0["p50_ms"] <= p0["p95_ms"] <= p0["p99_ms"] <= p0["max_ms"]
    assert set(report["machine_stall_ms"]) == {"p50", "p99", "max"}


def test_the_verdict_is_fail_exactly_when_something_is_broken() -> None:
    report = verify_isolation(0.5, load=IsolationLoad(burners=0, ticks_per_s=100))
    assert (report.verdict == "FAIL") == bool(report.broken)
    assert report.p0_in_order


@pytest.mark.parametrize("words", [["--for", "soon"], ["--for", "-1s"], ["--json", "/no/where/x"]])
def test_bad_input_is_refused(words: list[str]) -> None:
    with pytest.raises(RefusedError):
        run(verify.app, "isolation", *words)


def test_the_demo_shows_every_lane_and_accounts_for_every_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo.json"
    assert run(lanes_demo.app, "demo", "--for", "1s", "--json", str(out)) == 0
    shown = capsys.readouterr().out
    for lane in ("P0", "P1", "P2", "P3"):
        assert f"\n{lane} " in shown
    lanes = read(out)["lanes"]
    assert lanes["P0"]["handled"] == lanes["P0"]["published"] > 0
    assert lanes["P2"]["collapsed"] > 0


def test_the_demo_runs_with_lanes_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lane in ("P2", "P3"):
        monkeypatch.setenv(f"QTS_EVENTS__{lane}__ISOLATION", "process")
    out = tmp_path / "demo.json"
    assert run(lanes_demo.app, "demo", "--for", "1s", "--json", str(out)) == 0
    lanes = read(out)["lanes"]
    assert lanes["P2"]["handled"] > 0
    assert lanes["P3"]["handled"] > 0


def test_the_panel_shows_a_paused_lane() -> None:
    from qts.events import Priority

    engine = EventEngine()
    engine.pause(Priority.P3)
    lines = lanes_demo.panel(engine.status(), {"P0": 12.0})
    assert "PAUSED" in lines[4]
    assert "12" in lines[1]


def test_long_c_calls_in_threads_fail_the_verdict_and_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--for", "3s", "--isolation", "thread", "--c-call-ms", "100", "--naive"]
    assert run(verify.app, "isolation", *words) == 1
    shown = capsys.readouterr().out
    # P0 waits in its lane, or whoever publishes it is kept out of the interpreter.
    assert "broken: P0" in shown
    assert "ms for the interpreter" in shown
    assert "P0 on one queue.PriorityQueue" in shown


def test_long_c_calls_in_processes_leave_p0_alone(tmp_path: Path) -> None:
    """A hundredth of P0 waiting as long as a call would be the interpreter's doing."""
    out = tmp_path / "isolation.json"
    words = ["--for", "4s", "--isolation", "process", "--c-call-ms", "100", "--json", str(out)]
    code = run(verify.app, "isolation", *words)
    report = read(out)
    assert code == (0 if report["verdict"] == "PASS" else 1)
    assert (report["isolation"], report["goal_ms"]) == ("process", {"p99": 1})
    assert report["p0_in_order"] is True
    assert report["lanes"]["P0"]["p99_ms"] < 50
    assert report["lanes"]["P2"]["handled"] > 0
    assert report["lanes"]["P3"]["handled"] > 0


def test_a_compiled_p0_handler_keeps_its_own_record(tmp_path: Path) -> None:
    out = tmp_path / "isolation.json"
    run(verify.app, "isolation", "--for", "1s", "--p0", "compiled", "--json", str(out))
    report = read(out)
    assert (report["p0"], report["goal_ms"]) == ("compiled", {"p99": 0.2})
    assert report["p0_seen"] == report["p0_sent"] > 50
    assert report["p0_in_order"] is True
    assert any("only" in line and "P0 events" in line for line in report["warnings"])
