"""`qts kill --strategy`: only a strategy that exists has a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from qts.cli.main import run_command
from qts.database import Database
from qts.domain import Secret
from qts.risk import KillSwitch
from tests.accounts import PAPER

DIP = "from qts import NoParams, Strategy\n\nclass Dip(Strategy[NoParams]):\n    pass\n"

Qts = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def qts(
    database_url: Secret,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Qts:
    """Run a command on the database of the test; return its exit code and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_HOME", str(tmp_path))
    monkeypatch.setenv("QTS_DATABASE__URL", database_url.reveal())

    async def run(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(run_command, words)
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("command", ["on", "off"])
async def test_an_unknown_strategy_is_refused_with_the_nearest(
    qts: Qts, database: Database, command: str
) -> None:
    code, error = await qts("kill", command, "--strategy", "rsi_scalpr")
    assert code == 2
    assert error.splitlines() == [
        "qts: strategy 'rsi_scalpr' is unknown; expected one of moving_average_swing, rsi_scalper,"
        " surge_breakout; did you mean rsi_scalper?"
    ]
    assert await KillSwitch(database, PAPER).all() == {}


async def test_the_account_is_no_strategy(qts: Qts, database: Database) -> None:
    assert (await qts("kill", "off"))[0] == 0
    code, error = await qts("kill", "on", "--strategy", "account")
    assert code == 2
    assert "strategy 'account' is unknown" in error
    assert (await KillSwitch(database, PAPER).all()).keys() == {"account"}


async def test_a_strategy_of_the_settings_is_known(
    qts: Qts, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(DIP)
    monkeypatch.setenv("QTS_PIPELINE__STRATEGIES", "mine.py:Dip")
    code, error = await qts("kill", "on", "--strategy", "dipp")
    assert code == 2
    assert "strategy 'dipp' is unknown; expected one of dip; did you mean dip?" in error
    assert (await qts("kill", "on", "--strategy", "dip"))[0] == 0
    assert not (await KillSwitch(database, PAPER).all())["dip"].enabled


async def test_a_strategy_with_a_switch_is_stopped_though_its_module_cannot_be_loaded(
    qts: Qts, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await KillSwitch(database, PAPER).enable_unset(("dip",), "test")
    monkeypatch.setenv("QTS_PIPELINE__STRATEGIES", "gone.py:Dip")
    assert (await qts("kill", "on", "--strategy", "dip"))[0] == 0
    assert not (await KillSwitch(database, PAPER).all())["dip"].enabled


async def test_a_strategy_with_stored_parameters_is_known(qts: Qts, database: Database) -> None:
    await database.execute(
        "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ('dip', '{}', 'x')"
    )
    assert (await qts("kill", "on", "--strategy", "dip"))[0] == 0
    assert not (await KillSwitch(database, PAPER).all())["dip"].enabled
