"""`qts dev router run` refuses bad input before the run: exit code 2, one line, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from qts.cli.router import run as run_scenario
from qts.domain import RefusedError
from qts.router import builtin_scenarios

BASELINE: dict[str, Any] = json.loads(builtin_scenarios()["baseline"].read_text())


def run(*arguments: str) -> int:
    app = typer.Typer()
    app.command()(run_scenario)
    result = typer.main.get_command(app).main(
        list(arguments), prog_name="qts dev router run", standalone_mode=False
    )
    assert isinstance(result, int)
    return result


def refusal(*arguments: str) -> str:
    with pytest.raises(RefusedError) as caught:
        run(*arguments)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def bad(tmp_path: Path, **changes: Any) -> str:
    """Path of baseline with some of its parts changed."""
    values = json.loads(json.dumps(BASELINE))
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_two_processors_for_an_ordered_type_are_refused(tmp_path: Path) -> None:
    rules = [{"msg_type": each, "processors": [0, 1]} for each in range(4)]
    assert "ordering_required" in refusal(bad(tmp_path, stage1_rules=rules))


def test_a_type_without_a_rule_is_refused(tmp_path: Path) -> None:
    assert "no rule for msg_type 0" in refusal(bad(tmp_path, stage1_rules=[]))


def test_an_id_out_of_range_is_refused(tmp_path: Path) -> None:
    rules = [{"msg_type": each, "strategy": 9} for each in range(4)]
    assert "strategy is 9; expected 0 to 2" in refusal(bad(tmp_path, stage2_rules=rules))


def test_shares_that_do_not_sum_to_one_are_refused(tmp_path: Path) -> None:
    shares = {"distribution": {"msg_type_0": 0.5}}
    assert "sum to 0.5; expected 1" in refusal(bad(tmp_path, producers=shares))


@pytest.mark.parametrize("rate", [0, -1, 1e30])
def test_an_impossible_rate_is_refused(tmp_path: Path, rate: float) -> None:
    line = refusal(bad(tmp_path, producers={"messages_per_sec": rate}))
    assert "producers.messages_per_sec is" in line


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    assert "did you mean duration_secs?" in refusal(bad(tmp_path, duration_sec=5))


def test_broken_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    assert f"{path}:1:2: not valid JSON" in refusal(str(path))


def test_three_hundred_producers_are_refused(tmp_path: Path) -> None:
    assert "is 300; expected" in refusal(bad(tmp_path, producers={"count": 300}))


def test_a_duration_of_zero_is_refused(tmp_path: Path) -> None:
    assert "duration_secs is 0" in refusal(bad(tmp_path, duration_secs=0))


@pytest.mark.parametrize("span", ["0", "0s", "-5s", "soon", "1e30s", "", "99999d"])
def test_an_impossible_duration_option_is_refused(span: str) -> None:
    assert "duration" in refusal("baseline", f"--duration={span}")


def test_an_unknown_scenario_lists_the_six() -> None:
    line = refusal("nonsense")
    assert all(name in line for name in builtin_scenarios())


def test_no_scenario_at_all_lists_the_six() -> None:
    line = refusal()
    assert all(name in line for name in builtin_scenarios())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sample", "0"], "--sample is 0; expected"),
        (["--workers", "0"], "workers is 0; expected 1 to 13"),
        (["--workers", "99"], "workers is 99; expected 1 to 13"),
        (["--workers", "2", "--layout", "threads"], "no meaning in layout threads"),
        (["--seed", "-3"], "seed is -3; expected"),
        (["--seed", str(2**64)], "seed is 18446744073709551616; expected"),
        (["--plot", "latency.png"], "ends in .svg"),
        (["--plot", "/none/here.svg"], "there is no directory /none"),
        (["--json", "/none/here.json"], "there is no directory /none"),
        (["--json", "/"], "is a directory"),
    ],
)
def test_a_bad_option_is_refused_before_the_run(options: list[str], expected: str) -> None:
    assert expected in refusal("baseline", *options)


@pytest.mark.parametrize(
    "options",
    [
        ["--layout", "wide"],
        ["--stamps", "some"],
        ["--wait", "sleep"],
        ["--workers", "two"],
        ["--sample", "1.5"],
        ["--nonsense"],
    ],
)
def test_a_word_that_is_no_choice_is_a_usage_error(options: list[str]) -> None:
    with pytest.raises(TyperException):
        run("baseline", *options)


def test_the_list_names_the_six(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(builtin_scenarios())
    assert "4 producers, 4 M messages a second for 10 s, 1.1 cores of work" in printed[0]
