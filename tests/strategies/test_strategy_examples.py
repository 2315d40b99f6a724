"""The example strategies run and print their results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/strategies"


@pytest.mark.parametrize(
    ("name", "last"),
    [("buy_the_dip", "2 trades, +0.008%"), ("channel_step", "the same decisions")],
)
def test_the_example_runs(name: str, last: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == last
