"""The example runs as it is printed in the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "cache_precheck.py"


def test_the_example_answers_and_then_refuses() -> None:
    result = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=True
    )
    first, second = result.stdout.splitlines()
    assert first == "last 75050, position 100, limit 0.55"
    assert second.startswith("refused: the price of 005930 is ")
