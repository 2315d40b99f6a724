"""The examples of the router run and print their documented output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("router_live", "PASSED: 600 of 600 messages delivered"),
        ("router_compiled", "compiled  PASSED  1,249,975,000"),
    ],
)
def test_the_example_runs(name: str, last: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == last
