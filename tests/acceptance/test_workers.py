"""The workers of a run: backtest jobs and system events end handled, and none stays pending."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.runs import INTERPRETED, SLOW_MARKET, Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

QUICK = ("--simulated-day", "7", "--symbols", "5", "--seconds", "60")
LONG = ("--simulated-day", "7", "--symbols", "100", "--way", "generic")
WAITING = """
SELECT stream, status FROM outbox_event WHERE stream NOT LIKE 'everbit.trade.%'
"""
HANDLED = "SELECT event_type FROM outbox_event_all WHERE stream = $1 AND status = 'DONE'"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


def qts(home: Path, *arguments: str) -> str:
    """Run a command as the operator does; return what it prints."""
    command = [sys.executable, "-m", "qts", *arguments]
    environ = {**os.environ, **INTERPRETED, "QTS_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit(home: Path, *arguments: str) -> str:
    return qts(home, "backtest", *arguments, "--job")


def job(run: Run, job_id: str) -> tuple[str, int]:
    (row,) = run.query("SELECT status, attempts FROM backtest_job WHERE job_id = $1", job_id)
    return row["status"], row["attempts"]


def handled(run: Run, stream: str) -> list[str]:
    return [row["event_type"] for row in run.query(HANDLED, stream)]


def test_a_run_consumes_jobs_and_system_events(home: Path) -> None:
    settings = {
        **SLOW_MARKET,
        "QTS_NOTIFY__LOG": "true",
        "QTS_PIPELINE__STRATEGIES": "tests.acceptance.breaker:Breaker",
    }
    with running(home, **settings) as run:
        run.until("Ready")
        qts(home, "kill", "on", "--reason", "a test")
        job_id = submit(home, "rsi_scalper", *QUICK)
        assert until(lambda: job(run, job_id)[0] == "DONE", 120)
        assert until(lambda: handled(run, "everbit.backtest.event") == ["BacktestCompleted"], 60)
        changes = {"KillSwitchChanged", "StrategyDisabled"}
        assert until(lambda: changes <= set(handled(run, "everbit.system.event")), 60)
        assert until(lambda: run.query(WAITING) == [], 60)
        for text in (
            f"Backtest completed: job {job_id}",
            "the account is STOPPED",
            "Strategy breaker disabled",
        ):
            assert until(functools.partial(logged, run, text), 60)
        run.end(signal.SIGINT)
        assert run.summary["outbox"]["everbit.backtest.command"]["dead"] == 0


def logged(run: Run, text: str) -> bool:
    return text in run.errors


@pytest.mark.soak
def test_a_run_that_stops_ends_its_job_and_the_next_run_repeats_it(home: Path) -> None:
    with running(home, **SLOW_MARKET) as run:
        run.until("Ready")
        job_id = submit(home, "rsi_scalper", *LONG)
        assert until(lambda: job(run, job_id)[0] == "RUNNING" and bool(processes(home)), 60)
        (pid,) = processes(home)
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        assert until(lambda: os.getpriority(os.PRIO_PROCESS, pid) > usual, 10)
        run.ends_well(signal.SIGINT)
        assert processes(home) == []
    with running(home, **SLOW_MARKET) as run:
        run.until("Ready")
        assert until(lambda: job(run, job_id) == ("RUNNING", 2), 120)
        run.ends_well(signal.SIGINT)


def processes(home: Path) -> list[int]:
    """Return the processes of backtest jobs on this home."""
    numbers = (each for each in Path("/proc").iterdir() if each.name.isdigit())
    return [int(each.name) for each in numbers if _is_job(each, home)]


def _is_job(process: Path, home: Path) -> bool:
    try:
        command: Any = (process / "cmdline").read_bytes().split(b"\0")
        environ = (process / "environ").read_bytes()
    except OSError:
        return False
    return b"backtest" in command and b"--job" not in command and str(home).encode() in environ
