"""`qts route` for users: exit codes, one-line errors, signals, pipes, journals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qts.cli.main import run_command
from qts.router import builtin_scenarios
from tests.router.support import scenario, short_stall_floor  # noqa: F401 - a fixture for every test here

ROOT = Path(__file__).parents[2]
QTS = [sys.executable, "-m", "qts"]
BASELINE: dict[str, Any] = json.loads(builtin_scenarios()["baseline"].read_text())


def written(tmp_path: Path, values: object) -> str:
    path = tmp_path / "scenario.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


def small(tmp_path: Path, seconds: float = 0.1, rate: float = 50_000) -> str:
    producers = BASELINE["producers"] | {"messages_per_sec": rate}
    return written(tmp_path, BASELINE | {"duration_secs": seconds, "producers": producers})


# Bad scenarios


def producers(**changes: object) -> dict[str, Any]:
    return BASELINE | {"producers": BASELINE["producers"] | changes}


TWO_PROCESSORS = [{"msg_type": kind, "processors": [0, 1]} for kind in range(4)]
FAR_STRATEGY = [{"msg_type": kind, "strategy": 9} for kind in range(4)]
BAD: dict[str, tuple[object, str]] = {
    "order and two processors": (BASELINE | {"stage1_rules": TWO_PROCESSORS}, "ordering_required"),
    "no rule": (BASELINE | {"stage1_rules": []}, "no rule for msg_type 0"),
    "id out of range": (
        BASELINE | {"stage2_rules": FAR_STRATEGY},
        "strategy is 9; expected 0 to 2",
    ),
    "shares": (producers(distribution={"msg_type_0": 0.5}), "distribution"),
    "no shares": (producers(distribution={}), "distribution"),
    "rate 0": (producers(messages_per_sec=0), "messages_per_sec is 0; expected"),
    "negative rate": (producers(messages_per_sec=-5), "messages_per_sec is -5; expected"),
    "rate 1e30": (producers(messages_per_sec=1e30), "messages_per_sec is 1e+30; expected"),
    "unknown key": (BASELINE | {"speed": 3}, "speed is not a key of a scenario"),
    "broken JSON": ('{"scenario": ', "not valid JSON"),
    "300 producers": (producers(count=300), "count is 300; expected an integer from 1 to 256"),
    "duration 0": (BASELINE | {"duration_secs": 0}, "duration_secs is 0; expected"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_scenario_is_one_line_and_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, expected = BAD[name]
    assert run_command(["route", written(tmp_path, values)]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("qts: ")
    assert expected in line
    assert printed.out == ""


def test_a_bad_scenario_ends_a_real_process_the_same_way(tmp_path: Path) -> None:
    path = written(tmp_path, BASELINE | {"duration_secs": 0})
    done = subprocess.run([*QTS, "route", path], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "duration_secs is 0" in done.stderr
    assert done.stdout == ""


# A run


def test_a_run_reports_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert run_command(["route", small(tmp_path), "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    assert values["verdict"] == "PASSED"
    assert values["produced"] == values["delivered"] == 20_000
    assert values["rss_mb"] > 0
    assert values["streams"] == []
    assert capsys.readouterr().out.splitlines()[-1] == "PASSED"


def test_json_on_standard_output_is_alone_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["route", small(tmp_path), "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "PASSED"
    assert printed.err.splitlines()[-1] == "PASSED"


# Journal


def test_a_journal_replays_to_the_expected_streams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, journal, report = small(tmp_path), str(tmp_path / "j"), str(tmp_path / "r.json")
    arguments = ["--journal", journal, "--fsync", "never", "--json", report]
    assert run_command(["route", path, *arguments]) == 0
    streams = json.loads(Path(report).read_text())["streams"]
    assert sum(each["delivered"] for each in streams) == 20_000
    assert set(streams[0]) == {"strategy", "producer", "msg_type", "delivered", "digest"}
    assert run_command(["route", path, "--replay", journal, "--expect", report]) == 0
    out = capsys.readouterr().out
    assert f"note: replayed {journal}: 20,000 messages" in out
    assert "note: all 16 streams are as expected" in out


def test_another_delivery_than_expected_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, journal, report = small(tmp_path), str(tmp_path / "j"), tmp_path / "r.json"
    assert run_command(["route", path, "--journal", journal, "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    values["streams"][0]["digest"] = "0" * 16
    report.write_text(json.dumps(values))
    assert run_command(["route", path, "--replay", journal, "--expect", str(report)]) == 1
    out = capsys.readouterr().out
    assert "failure: not as expected: strategy 0, producer 0, type 0:" in out
    assert out.splitlines()[-1] == "FAILED: 1 failures"


def test_the_same_seed_meets_the_expectation_and_another_does_not(tmp_path: Path) -> None:
    path, report = small(tmp_path), str(tmp_path / "r.json")
    arguments = ["route", path, "--journal", str(tmp_path / "j"), "--json", report]
    assert run_command(arguments) == 0
    assert run_command(["route", path, "--expect", report]) == 0
    assert run_command(["route", path, "--expect", report, "--seed", "77"]) == 1


def test_a_damaged_journal_fails_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, journal = small(tmp_path), tmp_path / "j"
    assert run_command(["route", path, "--journal", str(journal)]) == 0
    content = bytearray(journal.read_bytes())
    content[64 + 16 + 5] ^= 1
    journal.write_bytes(content)
    capsys.readouterr()
    assert run_command(["route", path, "--replay", str(journal)]) == 1
    printed = capsys.readouterr()
    assert printed.err == (
        f"qts: journal {journal} is damaged at byte 64: its checksum does not match\n"
    )
    assert printed.out == ""


def test_contradicting_journal_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, taken, none = small(tmp_path), tmp_path / "taken", str(tmp_path / "none")
    taken.write_text("{}")
    for arguments, expected in [
        (["--journal", str(taken)], "exists and is never written over"),
        (["--journal", none + "/j"], "cannot write journal"),
        (["--replay", none], "cannot read journal"),
        (["--replay", str(taken)], "is not a journal"),
        (["--replay", none, "--journal", none], "--journal has no meaning with --replay"),
        (["--replay", none, "--seed", "1"], "--seed has no meaning with --replay"),
        (["--replay", none, "--duration", "1s"], "--duration has no meaning with --replay"),
        (["--expect", none], "cannot read report"),
        (["--expect", str(taken)], "holds no streams"),
        (["--expect", path], "holds no streams"),
        (["--journal", str(taken), "--fsync", "often"], "often"),
    ]:
        assert run_command(["route", path, *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
    assert taken.read_text() == "{}"


# Signals


@contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    pytest.fail(f"it ended without saying {words!r}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_mid_run_drains_and_passes(number: int, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    path = small(tmp_path, seconds=60)
    with started(*QTS, "route", path, "--json", str(report)) as process:
        read_until(process, "delivered")  # the first live line
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert err == ""
    assert out.splitlines()[-1] == "PASSED"
    values = json.loads(report.read_text())
    assert 0 < values["produced"] == values["delivered"] < values["offered"]
    assert "never sent (the run was stopped)" in values["notes"][-1]


STUCK = """
import sys, threading
from qts.router import ProgressLine, Router, watch_run
from tests.router.support import plan_for, scenario

small = scenario(types=2, strategies=2, rate=10_000, seconds=60)
forever = threading.Event()
router = Router(small, plan_for(small, "two workers"), strategies={1: lambda _: forever.wait()})
router.start()
print("started", flush=True)
watch_run(router, ProgressLine(sys.stdout))
report = router.report
print(report.render())
sys.exit(report.verdict != "PASSED")
"""


def test_a_second_signal_ends_a_run_that_is_stuck() -> None:
    with started(sys.executable, "-c", STUCK) as process:
        read_until(process, "delivered")
        process.send_signal(signal.SIGTERM)
        read_until(process, "a second signal aborts")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 1, err
    assert err == ""
    assert "in strategy 1 did not return" in out
    assert out.splitlines()[-1].startswith("FAILED: ")


RAISING = """
import sys
from qts.router import Router, load_scenario

def fail(message):
    if message.sequence_number >= 1000:
        raise ValueError("no")

report = Router(load_scenario("baseline"), strategies={1: fail}).run()
print(report.render())
sys.exit(report.verdict != "PASSED")
"""


def test_a_script_whose_strategy_raises_ends_with_1_and_says_where() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISING], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "failure: strategy 1 failed at Message(producer" in done.stdout


NOT_STOPPED = """
import time
from qts.router import Router, load_scenario

router = Router(load_scenario("baseline"), strategies={0: lambda message: None})
router.start()
while router.delivered < 1000:
    time.sleep(0.001)
"""


def test_a_script_that_does_not_stop_its_router_ends_cleanly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOT_STOPPED], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Pipes


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    path = small(tmp_path, seconds=1.5, rate=1_000)
    with started(*QTS, "route", path, "--json", str(report)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("plan: ")
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(20) == 0
    assert err == ""
    assert json.loads(report.read_text())["verdict"] == "PASSED"


def test_json_without_a_reader_is_a_failure_in_one_line(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [*QTS, "route", small(tmp_path), "--json", "-"],
            stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=30,
        )  # fmt: skip
    finally:
        os.close(write_end)
    assert done.returncode == 1
    last = "qts: cannot write the report: standard output is closed"
    assert done.stderr.splitlines()[-1] == last
    assert "Traceback" not in done.stderr
