"""A venue of a package: its suites pass, and a run trades on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.runs import INTERPRETED
from tests.venues.packages import EXAMPLE, install, install_example

STRATEGY = {"QTS_PIPELINE__STRATEGIES": f"{Path(__file__).with_name('turner.py')}:Turner"}


def command(site: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**clean, **INTERPRETED, **environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
        cwd=site,
        check=False,
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return install_example(tmp_path / "site")


def settings(home: Path) -> dict[str, str]:
    return {
        "QTS_HOME": str(home),
        "QTS_DASHBOARD__ENABLED": "false",
        "QTS_FEED__VENUE": "memory",
        "QTS_FEED__SYMBOLS": str(EXAMPLE / "symbols.txt"),
    }


@pytest.mark.parametrize("broker", [pytest.param("paper", marks=pytest.mark.soak), "memory"])
def test_a_run_trades_on_the_venue_of_a_package(site: Path, tmp_path: Path, broker: str) -> None:
    report = tmp_path / "summary.json"
    environ = settings(tmp_path / "home") | STRATEGY | {"QTS_BROKERS__BROKER": broker}
    ended = command(site, "qts", "run", "--for", "5s", "--json", str(report), **environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads(report.read_text())
    assert summary["ticks"] > 0
    assert summary["fills"] > 0
    assert summary["books_agree"] is True


def test_its_bars_are_downloaded_into_a_catalogue_of_its_own(site: Path, tmp_path: Path) -> None:
    environ = {"QTS_HOME": str(tmp_path / "home")}
    words = ("data", "download", "memory", "--symbols", "MEM-ONE", "--bars", "1m")
    ended = command(site, "qts", *words, "--from", "yesterday", **environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    listed = json.loads(command(site, "qts", "data", "list", "--json", **environ).stdout)
    assert [(each["venue"], each["symbol"]) for each in listed] == [("memory", "MEM-ONE")]
    assert listed[0]["bars"] >= 24 * 60


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("data", "download", "memroy"), "venue 'memroy' is unknown; expected one of kis, upbit"),
        (("data", "download", "memory", "--symbols", "MEMONE"), "symbol of memory, as in MEM-ONE"),
        (("data", "download", "broken"), 'package qts-broken 3 (entry point broken = "absent:X")'),
        (("run", "--for", "1s"), 'package qts-broken 3 (entry point broken = "absent:X")'),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    site: Path, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    install(site, "qts-broken", "3", {"broken": "absent:X"})
    environ = {"QTS_HOME": str(tmp_path / "home")}
    if words[0] == "run":
        environ["QTS_FEED__VENUE"] = "broken"
    ended = command(site, "qts", *words, **environ)
    assert ended.returncode == 2
    assert problem in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_the_example_passes_the_suites(site: Path) -> None:
    ended = command(site, "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests"))
    assert ended.returncode == 0, ended.stdout + ended.stderr


# Each bug is planted in a copy of the example; the suite that must find it is beside it.
BUGS = [
    ("venue.py", 'AccountKey.of(self.name, "sim', 'AccountKey.of("mine", "sim', "TestVenue"),
    ("venue.py", "for symbol in BASES]", "for symbol in (*BASES, *BASES)]", "TestInstruments"),
    ("data.py", " if self.trades_on(day) else []", "", "TestCalendar"),
    ("data.py", "known = [symbol for symbol in choose()", "choose()\n            known = "
     "[symbol for symbol in choose()", "TestQuotes"),
    ("data.py", "max(start, first - step))", "max(start, first))", "TestHistory"),
    ("exchange.py", "if order.is_open and not self._may_wait(request):", "if False:", "TestBroker"),
]  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize(("file", "right", "wrong", "suite"), BUGS, ids=[bug[3] for bug in BUGS])
def test_every_suite_finds_a_planted_bug(
    site: Path, file: str, right: str, wrong: str, suite: str
) -> None:
    path = site / "memory_venue" / file
    code = path.read_text()
    assert right in code
    path.write_text(code.replace(right, wrong))
    tests = EXAMPLE / "tests" / "test_memory_venue.py"
    ended = command(site, "pytest", "-q", "-p", "no:cacheprovider", str(tests), "-k", suite)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"::{suite}::" in ended.stdout
