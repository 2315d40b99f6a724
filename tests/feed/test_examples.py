"""The feed's examples run as they are printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_recorded_minute_is_replayed() -> None:
    command = [sys.executable, str(EXAMPLES / "observe_replay.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "60 records\n005930 moved +3.6%\n"
