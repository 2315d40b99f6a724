"""Search of parameters: two processes beside one, two nodes of a cluster, and killed workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from benchmarks.measure import Sample, Series
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row
from qts.database import Database, DatabaseConfig, migrate
from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home

SYMBOLS, DAYS, TRIALS, QUICK_TRIALS = 20, 245, 200, 8
_ROUNDS = 3
_LEASE_S = 2
_CHECK = 1  # out of sample
_CHECKOUT = Path(__file__).parents[1]
_STRATEGY = f"{Path(__file__).with_name('optimise_strategy.py')}:Cross"
_QTS = [sys.executable, "-m", "qts", "optimise"]


class Study(NamedTuple):
    seconds: float  # of the whole command
    digest: str
    runs: int  # backtests that were started


class Bench:
    """A folder with the bars; every study begins in a new home."""

    def __init__(self, folder: Path, trials: int) -> None:
        self._folder = folder
        self._number = 0
        self.trials = trials
        self._starts = folder / "starts"
        _write_days(folder / "days.csv")

    def run(self, *where: str, kill: Callable[[int], None] | None = None) -> Study:
        """Run a study; `kill` is called once with the process of its latest start, halfway."""
        self._number += 1
        self._starts.unlink(missing_ok=True)
        output = self._folder / "study.json"
        ranges = ["--param", "fast=2..20", "--param", "slow=25..80", "--timeframe", "1d"]
        words = [*_QTS, _STRATEGY, str(self._folder / "days.csv"), *ranges, *where]
        words += ["--trials", str(self.trials), "--json", str(output)]
        began = time.perf_counter()
        process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            cwd=_CHECKOUT,
            env=self.environ | {"QTS_HOME": str(self._folder / f"home-{self._number}")},
        )
        if kill is not None:
            kill(self._halfway(process))
        if code := process.wait():
            raise RuntimeError(f"{' '.join(words)} ended with exit code {code}")
        seconds = time.perf_counter() - began
        return Study(seconds, json.loads(output.read_text())["digest"], len(self._lines()))

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {"BENCH_STARTS": str(self._starts)}

    def _lines(self) -> list[str]:
        return self._starts.read_text().splitlines() if self._starts.exists() else []

    def _halfway(self, process: subprocess.Popen[bytes]) -> int:
        while len(self._lines()) < self.trials // 2 and process.poll() is None:
            time.sleep(0.01)
        return int(self._lines()[-1].split()[0])


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    with tempfile.TemporaryDirectory(prefix="qts-bench-") as folder:
        bench = Bench(Path(folder), QUICK_TRIALS if quick else TRIALS)
        alone, both, studies = _processes(bench, 1 if quick else _ROUNDS, progress)
        progress("two processes, one of them killed")
        killed = bench.run("--processes", "2", kill=lambda pid: os.kill(pid, signal.SIGKILL))
        with _database(Path(folder)) as url:
            progress("two nodes")
            with _nodes(bench, url, 2):
                cluster = bench.run("--cluster", url)
            progress("two nodes, one of them killed")
            with _nodes(bench, url, 2) as nodes:
                lost = bench.run("--cluster", url, kill=lambda _pid: nodes[0].kill())
    rows = [_speed(both, alone, "2 processes", 1.8 if not quick else None)]
    nodes_speed = Series((Sample(bench.trials / cluster.seconds),))
    rows.append(_speed(nodes_speed, alone, "2 nodes, 1 process each", None))
    rows.append(_digests([*studies, killed, cluster, lost]))
    rows += [_repeated("a process", killed, bench), _repeated("a node", lost, bench)]
    notes = [
        f"{bench.trials} trials, random, over {SYMBOLS} symbols x {DAYS} daily bars; a speed is of"
        " the whole command, with its start and its report",
        "the nodes are processes of this machine, started before, that share one PostgreSQL",
    ]
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    picture = Picture("optimise-speed", bars("Trials a second", rows[:2]))
    return Result(machine=described, rows=tuple(rows), notes=tuple(notes), pictures=(picture,))


def _processes(
    bench: Bench, rounds: int, progress: Callable[[str], None]
) -> tuple[Series, Series, list[Study]]:
    """Return the speeds of one and of two processes, measured in turn, and all studies."""
    found: dict[int, list[Study]] = {1: [], 2: []}
    for number in range(rounds):
        for processes, studies in found.items():
            progress(f"{bench.trials} trials, processes: {processes}, round {number + 1}")
            studies.append(bench.run("--processes", str(processes)))
    alone, both = (
        Series(tuple(Sample(bench.trials / each.seconds) for each in found[count]))
        for count in (1, 2)
    )
    return alone, both, [*found[1], *found[2]]


@contextmanager
def _database(folder: Path) -> Iterator[str]:
    with EmbeddedServers(Home.at(folder / "server"), EmbeddedConfig(), valkey=False) as servers:
        if servers.postgres is None:
            raise AssertionError("PostgreSQL did not start")
        url = servers.postgres.url
        asyncio.run(_migrate(url))
        yield url.reveal()


async def _migrate(url: Secret) -> None:
    async with Database.open(url, DatabaseConfig(pool_min=1, pool_max=1)) as database:
        await migrate(database)


@contextmanager
def _nodes(bench: Bench, url: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start workers of the cluster, and wait until each is ready."""
    words = [*_QTS, "worker", "--processes", "1", "--lease", str(_LEASE_S), "--database", url]
    with ExitStack() as stack:
        nodes = []
        for _ in range(count):
            node = stack.enter_context(
                subprocess.Popen(
                    words, stdout=subprocess.PIPE, text=True, cwd=_CHECKOUT, env=bench.environ
                )
            )
            stack.callback(node.kill)
            nodes.append(node)
        for node in nodes:
            if node.stdout is None or "waiting for trials" not in node.stdout.readline():
                raise RuntimeError(f"{' '.join(words)} did not start")
        yield nodes


def _speed(mine: Series, alone: Series, name: str, goal: float | None) -> Row:
    return Row(
        name=name,
        metric="median",
        unit="trials/s",
        better="higher",
        ours=mine.median,
        peer=alone.median,
        peer_name="1 process",
        goals=(Goal("ratio", ">=", goal),) if goal is not None else (),
        note=f"{mine.low:.3g} to {mine.high:.3g}; 1 process {alone.low:.3g} to {alone.high:.3g}",
    )


def _digests(studies: list[Study]) -> Row:
    first, *others = [each.digest for each in studies]
    return Row(
        name="studies with another digest",
        metric="all runs",
        unit="studies",
        better="lower",
        ours=sum(each != first for each in others),
        peer=len(studies),
        peer_name="studies",
        goals=(Goal("ours", "<=", 0),),
        note=f"digest {first}",
    )


def _repeated(what: str, study: Study, bench: Bench) -> Row:
    return Row(
        name=f"trials run again after kill -9 of {what}",
        metric="one kill",
        unit="trials",
        better="lower",
        ours=study.runs - bench.trials - _CHECK,
        peer=bench.trials,
        peer_name="trials of the study",
        goals=(Goal("ours", "<=", 1),),
    )


def _write_days(file: Path) -> None:
    random: Any = np.random.default_rng(3)
    days = [date(2025, 1, 6) + timedelta(7 * week + day) for week in range(60) for day in range(5)]
    steps = random.normal(0.0003, 0.02, (DAYS, SYMBOLS))
    closes = np.round(50_000 * np.exp(np.cumsum(steps, axis=0)) / 100) * 100
    opens = np.vstack((closes[:1], closes[:-1]))
    lines = ["date,symbol,open,high,low,close,volume"]
    for row, day in enumerate(days[:DAYS]):
        for number in range(SYMBOLS):
            first, last = opens[row, number], closes[row, number]
            high, low = max(first, last) + 100, min(first, last) - 100
            prices = f"{first:.0f},{high:.0f},{low:.0f},{last:.0f}"
            lines.append(f"{day},{number + 1:06},{prices},100000")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
