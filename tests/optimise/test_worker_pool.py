"""Workers are forked from a server that is older than they are, and run what is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from qts.backtest import BacktestConfig, BarTape, default_instruments
from qts.optimise import TrialContext, WorkerPool, start_fork_server
from tests.optimise.test_trial import CROSS, run, tape, tasks

__all__ = ("tape",)  # fixture


def test_a_worker_gives_the_trial_of_this_process(tape: BarTape) -> None:
    task = tasks(tape)[0][0]
    context = TrialContext(CROSS, tape, BacktestConfig(use_stops=False), default_instruments(), 1)
    with WorkerPool(context, 1) as pool:
        pool.submit(task)
        assert pool.wait() == run(tape, task)


def test_a_worker_has_the_environment_of_its_start(
    tape: BarTape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_fork_server()
    monkeypatch.setenv("TEST_OPTIMISE_FOLDER", str(tmp_path))
    context = TrialContext(CROSS, tape, BacktestConfig(), default_instruments(), 1)
    with WorkerPool(context, 1) as pool:
        pool.submit(tasks(tape)[0][0])
        assert not pool.wait().error
    assert (tmp_path / "starts").read_text() == "2 5\n"
