"""`qts data download` as a process: killed at any page, it continues; the limits hold."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qts.cli.main import run_command
from qts.history import BarCatalogue
from qts.simulators import KisKey

DEADLINE_S = 120
# From the first minute of the day on: a start late in a day takes seconds.
SMALL = ["--symbols", "5", "--start", f"{datetime.now(UTC):%Y-%m-%d}T09:01"]


class Simulator:
    """`qts dev simulate` as a process."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "qts", "dev", "simulate", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found
        self.url = found[0]

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + "/_control/stats", timeout=60) as reply:  # noqa: S310 - our own
            found: dict[str, Any] = json.load(reply)
            return found

    def meters(self) -> list[dict[str, Any]]:
        """Return the counters of requests, wherever the venue shows them."""
        return list(_meters(self.stats()))

    def requests(self) -> int:
        return sum(each["requests"] for each in self.meters())

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def _meters(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if {"requests", "refused", "worst", "limits"} <= set(value):
            yield value
            return
        for each in value.values():
            yield from _meters(each)
    elif isinstance(value, list):
        for each in value:
            yield from _meters(each)


@pytest.fixture
def simulate() -> Iterator[Any]:
    started: list[Simulator] = []

    def start(*arguments: str) -> Simulator:
        started.append(Simulator(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def environment(home: Path, url: str) -> dict[str, str]:
    key = KisKey()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "QTS_HOME": str(home),
        "QTS_VENUES__UPBIT__URL": url,
        "QTS_VENUES__KIS__URL": url,
        "QTS_VENUES__KIS__APP_KEY": key.app_key,
        "QTS_VENUES__KIS__APP_SECRET": key.app_secret,
    }


def start(home: Path, url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "qts", "data", *arguments],
        env=environment(home, url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(home: Path, url: str, *arguments: str) -> tuple[int, str, str]:
    process = start(home, url, *arguments)
    output, errors = process.communicate(timeout=900)
    return process.returncode, output, errors


def content(home: Path) -> dict[str, Any]:
    catalogue = BarCatalogue(home, simulated=True)
    return {
        str(series): (catalogue.rows(series), catalogue.covered(series))
        for series in catalogue.series()
    }


def kill_at(process: subprocess.Popen[str], simulator: Simulator, requests: int) -> bool:
    """Kill the process when the venue has counted so many requests; False if it ended before."""
    deadline = time.monotonic() + DEADLINE_S
    while simulator.requests() < requests:
        assert time.monotonic() < deadline
        if process.poll() is not None:
            process.communicate()
            return False
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return True


def download_with_kills(
    tmp_path: Path, simulator: Simulator, arguments: list[str], kills: int, pages: int
) -> None:
    rng, killed = random.Random(7), 0  # noqa: S311 - the same every time
    home, whole = tmp_path / "killed", tmp_path / "whole"
    for _ in range(kills):
        process = start(home, simulator.url, *arguments)
        killed += kill_at(process, simulator, simulator.requests() + rng.randint(2, pages))
    assert killed > 0
    for each in (home, whole):
        if each == whole:  # the same key: its token and its count of requests
            whole.mkdir(mode=0o700)
            for name in ("tokens", "budgets"):
                if (home / name).exists():
                    shutil.copytree(home / name, whole / name)
        code, output, errors = run(each, simulator.url, *arguments)
        assert code == 0, (output, errors)
    first, second = content(home), content(whole)
    assert first.keys() == second.keys()
    assert first
    for series, (rows, covered) in first.items():
        assert len(rows) > 100
        assert np.array_equal(rows, second[series][0]), series
        assert covered == second[series][1]
        assert len(covered) == 1
    for meter in simulator.meters():
        assert meter["refused"] == 0
        for name, limit in meter["limits"].items():
            assert not limit or meter["worst"][name] <= limit


def upbit_arguments(days: int) -> list[str]:
    symbols = "KRW-BTC,KRW-ETH"
    span = ["--from", f"{days + 1} days ago", "--to", "yesterday"]
    return ["download", "upbit", "--symbols", symbols, "--bars", "1m", *span]


def test_a_download_of_upbit_survives_sigkill(tmp_path: Path, simulate: Any) -> None:
    simulator = simulate("upbit", *SMALL)
    download_with_kills(tmp_path, simulator, upbit_arguments(2), kills=2, pages=8)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_month_of_upbit_survives_sigkill(tmp_path: Path, simulate: Any) -> None:
    simulator = simulate("upbit", *SMALL)
    download_with_kills(tmp_path, simulator, upbit_arguments(30), kills=12, pages=60)
    assert all(len(rows) > 40_000 for rows, _ in content(tmp_path / "whole").values())


def kis_arguments(symbols: list[str]) -> list[str]:
    span = ["--from", "1095 days ago", "--to", "yesterday"]
    return ["download", "kis", "--symbols", ",".join(symbols), "--bars", "1d", *span]


def listed(simulator: Simulator) -> list[str]:
    with urllib.request.urlopen(simulator.url + "/_control/symbols", timeout=60) as reply:  # noqa: S310 - our own
        return str(reply.read(), "ascii").split()


@pytest.mark.soak
def test_a_download_of_kis_survives_sigkill(tmp_path: Path, simulate: Any) -> None:
    simulator = simulate("kis", "--symbols", "60")
    download_with_kills(tmp_path, simulator, kis_arguments(listed(simulator)[:3]), kills=2, pages=8)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_years_of_fifty_symbols_survive_sigkill(tmp_path: Path, simulate: Any) -> None:
    simulator = simulate("kis", "--symbols", "60")
    symbols = listed(simulator)[:50]
    download_with_kills(tmp_path, simulator, kis_arguments(symbols), kills=6, pages=60)


@pytest.mark.soak
def test_ctrl_c_ends_a_download_that_the_next_one_continues(tmp_path: Path, simulate: Any) -> None:
    simulator, arguments = simulate("upbit", *SMALL), upbit_arguments(2)
    process = start(tmp_path, simulator.url, *arguments)
    deadline = time.monotonic() + DEADLINE_S
    while simulator.requests() < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "qts: interrupted; what was read is stored, the same command continues\n"
    code, plan, _ = run(
        tmp_path, simulator.url, *arguments, "--plan", "--json", str(tmp_path / "plan")
    )
    assert code == 0
    assert "simulated data, in a catalogue of its own" in plan
    assert 0 < json.loads((tmp_path / "plan").read_text())["requests"] < 30


def test_list_check_and_refusals(
    tmp_path: Path,
    simulate: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulator = simulate("upbit", *SMALL)
    for name, value in environment(tmp_path, simulator.url).items():
        monkeypatch.setenv(name, value)

    def run_here(*arguments: str) -> tuple[int, str, str]:
        code = run_command(["data", *arguments])
        return code, *capsys.readouterr()

    arguments = ["download", "upbit", "--bars", "1d", "--from", "30 days ago", "--to", "yesterday"]
    code, output, _ = run_here(*arguments, "--symbols", "KRW-BTC", "--json", "-")
    assert code == 0
    assert json.loads(output) == {
        "pages": 1, "bars": 29, "read_again": [], "without_bars": [], "failed": {}
    }  # fmt: skip
    (row,) = json.loads(run_here("list", "--json")[1])
    assert row.keys() == {
        "venue", "symbol", "timeframe", "from", "to", "bars", "gaps", "size_bytes", "simulated"
    }  # fmt: skip
    assert (row["venue"], row["symbol"], row["timeframe"], row["bars"], row["gaps"]) == (
        "upbit", "KRW-BTC", "1d", 29, 0,
    )  # fmt: skip
    assert row["simulated"]
    assert "KRW-BTC  1d" in run_here("list")[1]
    assert run_here("check")[:2] == (0, "no damage found\n")
    code, _, errors = run_here(*arguments, "--symbols", "KRW-BTX")
    assert code == 2
    assert "Upbit symbol 'KRW-BTX' is unknown; expected one of KRW-BTC" in errors
    many = ",".join(f"KRW-A{number}" for number in range(100))  # longer than a file's name
    code, output, _ = run_here(*arguments, "--symbols", many, "--plan")
    assert (code, output.count("symbols: 100, to read: 100")) == (0, 1)
    for path in tmp_path.rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-10])
    code, output, _ = run_here("check")
    assert code == 1
    assert re.search(r"DAMAGED .*2026\.parquet: .*cannot be read.*\n1 damaged\n", output)
    assert run_here("list")[0] == 1
