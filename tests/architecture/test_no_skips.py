"""A skipped test fails the run that CI asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("body", "options", "code"),
    [
        ("pytest.skip('no server')", ["--no-skips"], 1),
        ("pytest.skip('no server')", [], 0),
        ("pass", ["--no-skips"], 0),
        ("assert False", ["--no-skips"], 1),
    ],
)
def test_a_skip_fails_the_run_when_asked(
    tmp_path: Path, body: str, options: list[str], code: int
) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(f"import pytest\n\ndef test_one():\n    {body}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [*command, "-p", "tests.no_skips", *options, str(file)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert run.returncode == code
