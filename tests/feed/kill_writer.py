"""Program: write records in a child, kill it at a random moment, check what is left; many times.

python -m tests.feed.kill_writer FOLDER LIVES
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

from qts.domain import SystemClock
from qts.feed import Recorder, read_records
from qts.feed.replay import recorded_files
from tests.feed.records import record

LIFE = 1_000_000
NOON = record(1).snapshot.meta.time


def write_for_ever(folder: Path, life: int, ready: int) -> None:
    recorder = Recorder(folder, SystemClock(), 0.02)
    os.write(ready, b"!")
    for number in range(life * LIFE + 1, (life + 1) * LIFE):
        recorder.write(record(number, raw={"padding": "x" * (number % 700)}, time=NOON))


def main(folder: Path, lives: int) -> None:
    luck = random.Random(11)  # noqa: S311 - the same every time
    kept: list[int] = []
    for life in range(lives):
        heard, ready = os.pipe()
        child = os.fork()
        if child == 0:
            write_for_ever(folder, life, ready)
        os.close(ready)
        os.read(heard, 1)
        os.close(heard)
        time.sleep(luck.uniform(0.0, 0.04))  # a kill at any moment is what is tested
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        numbers = [each.number for each in read_records(folder)] if recorded_files(folder) else []
        if numbers[: len(kept)] != kept:
            sys.exit(f"life {life} changed what was there before it")
        if any(b - a != 1 and b % LIFE != 1 for a, b in pairwise(numbers)):
            sys.exit(f"life {life} left a hole")
        kept = numbers
    print(len(kept), len(recorded_files(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
