"""`qts dev verify isolation` and `qts dev lanes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import typer

from qts.cli import lanes, verify
from qts.domain import RefusedError
from qts.events import EventEngine, EventsConfig, Priority
from qts.verify import IsolationLoad, IsolationReport, verify_isolation

LANES = typer.Typer()
LANES.command()(lanes.lanes)


def run(app: typer.Typer, *arguments: str) -> int:
    result = typer.main.get_command(app).main(list(arguments), standalone_mode=False)
    return result if isinstance(result, int) else 0


def read(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())


def test_a_p0_handler_of_100_ms_fails_the_verdict(tmp_path: Path) -> None:
    """Ten times the limit of p99, so the verdict does not depend on the machine."""
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


def assert_p0_is_fast(report: IsolationReport) -> None:
    """Ten times what a busy machine needs, beyond its own stalls."""
    assert report.p0_in_order
    assert report.p0_due_ms["p50"] - report.machine_stall_ms["p50"] < 50


def test_p0_is_fast_and_a_slow_p0_would_fail_this_test() -> None:
    assert_p0_is_fast(verify_isolation(2.0))
    slow = verify_isolation(2.0, load=IsolationLoad(plant_p0_ms=100, p0_per_s=5))
    assert any(line.startswith("P0 p50") and "is due" in line for line in slow.broken)
    with pytest.raises(AssertionError):
        assert_p0_is_fast(slow)


def test_latency_counts_from_the_moment_the_publisher_is_due() -> None:
    """A publisher that waits for the interpreter delays its events, though the lane does not."""
    report = verify_isolation(2.0, load=IsolationLoad(burners=0, ticks_per_s=100))
    for part, late in report.publisher_late_ms.items():
        assert report.p0_due_ms[part] >= late
    assert report.p0_due_ms["p50"] >= report.lanes["P0"].p50_ms * 0.99


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_load_is_what_it_says(isolation: Literal["thread", "process"]) -> None:
    """Distinct keys do not collapse, P2 is always full, and its handlers burn all the time."""
    config = EventsConfig()
    lanes = {
        lane: msgspec.structs.replace(getattr(config, lane), isolation=isolation)
        for lane in ("p2", "p3")
    }
    report = verify_isolation(3.0, msgspec.structs.replace(config, **lanes))
    p2 = report.lanes["P2"]
    assert p2.collapsed == 0
    assert p2.waiting >= 900
    assert report.p2_busy > 0.9
    assert report.lanes["P3"].published > 10_000
    if isolation == "thread":
        assert report.lanes["P3"].max_ms > 500  # its handler slept beside them


def test_the_verdict_is_fail_exactly_when_something_is_broken() -> None:
    report = verify_isolation(0.5, load=IsolationLoad(burners=0, ticks_per_s=100))
    assert (report.verdict == "FAIL") == bool(report.broken)
    assert report.p0_in_order


@pytest.mark.parametrize(
    "arguments", [["--for", "soon"], ["--for", "-1s"], ["--json", "/no/where/x"]]
)
def test_bad_input_is_refused(arguments: list[str]) -> None:
    with pytest.raises(RefusedError):
        run(verify.app, "isolation", *arguments)


def test_dev_lanes_shows_every_lane_and_counts_every_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lanes.json"
    assert run(LANES, "--for", "1s", "--json", str(out)) == 0
    shown = capsys.readouterr().out
    for lane in ("P0", "P1", "P2", "P3"):
        assert f"\n{lane} " in shown
    lanes = read(out)["lanes"]
    assert lanes["P0"]["handled"] == lanes["P0"]["published"] > 0
    assert lanes["P2"]["collapsed"] > 0


def test_dev_lanes_runs_with_isolated_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lane in ("P2", "P3"):
        monkeypatch.setenv(f"QTS_EVENTS__{lane}__ISOLATION", "process")
    out = tmp_path / "lanes.json"
    assert run(LANES, "--for", "1s", "--json", str(out)) == 0
    lanes = read(out)["lanes"]
    assert lanes["P2"]["handled"] > 0
    assert lanes["P3"]["handled"] > 0


def test_the_panel_shows_a_paused_lane() -> None:
    engine = EventEngine()
    engine.pause(Priority.P3)
    lines = lanes.panel(engine.status(), {"P0": 12.0})
    assert "PAUSED" in lines[4]
    assert "12" in lines[1]


@pytest.mark.soak
def test_long_c_calls_in_threads_fail_the_verdict_and_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--for", "3s", "--isolation", "thread", "--c-call-ms", "100", "--naive"]
    assert run(verify.app, "isolation", *arguments) == 1
    shown = capsys.readouterr().out
    # P0 waits in its lane, or its publisher waits for the interpreter.
    assert "broken: P0" in shown
    assert "ms for the interpreter" in shown
    assert "P0 on one queue.PriorityQueue" in shown


def test_long_c_calls_in_processes_do_not_delay_p0(tmp_path: Path) -> None:
    """A p99 as long as half a call would mean that P0 waited for the GIL."""
    out = tmp_path / "isolation.json"
    arguments = ["--for", "4s", "--isolation", "process", "--c-call-ms", "100", "--json", str(out)]
    code = run(verify.app, "isolation", *arguments)
    report = read(out)
    assert code == (0 if report["verdict"] == "PASS" else 1)
    assert (report["isolation"], report["goal_ms"]) == ("process", {"p99": 1})
    assert report["p0_in_order"] is True
    assert report["lanes"]["P0"]["p99_ms"] < 50 + report["machine_stall_ms"]["p99"]
    assert report["lanes"]["P2"]["handled"] > 0
    assert report["lanes"]["P3"]["handled"] > 0


def test_a_compiled_p0_handler_counts_its_events(tmp_path: Path) -> None:
    out = tmp_path / "isolation.json"
    run(verify.app, "isolation", "--for", "1s", "--p0", "compiled", "--json", str(out))
    report = read(out)
    assert (report["p0"], report["goal_ms"]) == ("compiled", {"p99": 0.2})
    assert report["p0_seen"] == report["p0_sent"] > 50
    assert report["p0_in_order"] is True
    assert any("only" in line and "P0 events" in line for line in report["warnings"])
