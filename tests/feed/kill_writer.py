"""Program: write records in a child, kill it at a random moment, check the files; repeat.

python -m tests.feed.kill_writer FOLDER RUNS
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

RUN_SIZE = 1_000_000
NOON = record(1).snapshot.meta.time


def write_forever(folder: Path, run: int, ready: int) -> None:
    recorder = Recorder(folder, SystemClock(), 0.02)
    os.write(ready, b"!")
    for number in range(run * RUN_SIZE + 1, (run + 1) * RUN_SIZE):
        recorder.write(record(number, raw={"padding": "x" * (number % 700)}, time=NOON))


def main(folder: Path, runs: int) -> None:
    rng = random.Random(11)  # noqa: S311 - the same every time
    kept: list[int] = []
    for run in range(runs):
        receiver, ready = os.pipe()
        child = os.fork()
        if child == 0:
            write_forever(folder, run, ready)
        os.close(ready)
        os.read(receiver, 1)
        os.close(receiver)
        time.sleep(rng.uniform(0.0, 0.04))  # kill at a random time
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        numbers = [item.number for item in read_records(folder)] if recorded_files(folder) else []
        if numbers[: len(kept)] != kept:
            sys.exit(f"run {run} changed what was there before it")
        if any(b - a != 1 and b % RUN_SIZE != 1 for a, b in pairwise(numbers)):
            sys.exit(f"run {run} left a hole")
        kept = numbers
    print(len(kept), len(recorded_files(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
