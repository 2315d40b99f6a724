"""A skipped test fails the run that CI asks for; `make test` allows for a missing browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


SKIP = "pytest.skip('no server')"
NO_BROWSER = "pytest.skip('no Chromium found: npm is not on the PATH')"
LEFT_OUT = "1 browser test left out: no Chromium found; install chromium to run them"


def run(tmp_path: Path, body: str, *options: str) -> tuple[int, str]:
    """Run one test; the exit code and the last line."""
    file = tmp_path / "test_one.py"
    file.write_text(f"import pytest\n\ndef test_one():\n    {body}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [*command, "-p", "tests.no_skips", *options, str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take half of the time
        capture_output=True,
        check=False,
        text=True,
    )
    return run.returncode, run.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("body", "options", "code"),
    [
        (SKIP, ["--no-skips"], 1),
        (SKIP, [], 0),
        (SKIP, ["--no-skips", "--allow-missing-browser"], 1),
        ("pass", ["--no-skips"], 0),
        ("assert False", ["--no-skips"], 1),
        ("assert False", ["--no-skips", "--allow-missing-browser"], 1),
        (NO_BROWSER, ["--no-skips"], 1),
    ],
)
def test_a_skip_fails_the_run_when_asked(
    tmp_path: Path, body: str, options: list[str], code: int
) -> None:
    assert run(tmp_path, body, *options)[0] == code


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "1"]])
def test_a_missing_browser_may_be_allowed_and_is_counted_in_the_last_line(
    tmp_path: Path, workers: list[str]
) -> None:
    allowed = ["--no-skips", "--allow-missing-browser", *workers]
    assert run(tmp_path, NO_BROWSER, *allowed) == (0, LEFT_OUT)
    assert run(tmp_path, NO_BROWSER, "--no-skips", *workers) == (1, LEFT_OUT)


def test_the_last_line_says_that_nothing_was_left_out(tmp_path: Path) -> None:
    code, line = run(tmp_path, "pass", "--no-skips")
    assert code == 0
    assert line.startswith("No test was left out")
