"""`qts rehearse` as a command, and `qts run` in live mode after it."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qts.simulators import KisKey, MarketConfig, UpbitKey
from qts.simulators.control import Fault
from tests.acceptance.runs import SMALL
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.app.rehearsals import STEPS, lines_of
from tests.homes import create_home

SECRETS = [
    *(KisKey().app_key, KisKey().app_secret, KisKey().account, KisKey().hts_id),
    *(UpbitKey().access_key, UpbitKey().secret_key),
]


@pytest.fixture
async def account() -> AsyncIterator[SimulatedAccount]:
    market = MarketConfig(symbols=20, always_open=True, surges_per_hour=0)
    async with simulated_account("upbit", market) as account:
        yield account


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path.resolve() / "home"
    create_home(home)
    return home


def environ(home: Path, account: SimulatedAccount | None = None, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    settings = account.settings(home.parent) if account else {}
    return {**clean, **SMALL, **settings, "QTS_HOME": str(home), **more}


async def qts(*words: str, env: dict[str, str]) -> tuple[int, str]:
    """Run a command beside the simulator; return exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qts", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=env,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def transcripts(home: Path) -> list[Path]:
    return sorted((home / "rehearsals").glob("*.jsonl"))


@pytest.mark.parametrize("venue", ["kis", "upbit"])
async def test_a_simulated_rehearsal_is_complete_and_holds_no_secret(
    venue: str, home: Path
) -> None:
    """Whatever key, host and servers the settings name."""
    own = {
        "QTS_VENUES__KIS__APP_KEY": "canary-of-the-real-key",
        "QTS_VENUES__KIS__PAPER": "true",
        "QTS_VENUES__UPBIT__URL": "https://canary.invalid",
        "QTS_DATABASE__URL": "postgresql://canary.invalid/qts",
    }
    words = ("rehearse", venue, "--simulated", "--yes")
    code, output = await qts(*words, env=environ(home, None, **own))
    assert code == 0, output
    assert "canary" not in output
    (path,) = transcripts(home)
    start, *steps, end = lines_of(path)
    assert [each["step"] for each in steps] == STEPS
    assert (start["environment"], end["complete"]) == ("simulator", True)
    text = path.read_text() + output
    assert [secret for secret in SECRETS if secret in text] == []


async def test_live_needs_a_rehearsal_of_this_key(account: SimulatedAccount, home: Path) -> None:
    live = environ(home, account, QTS_BROKERS__MODE="live")
    code, output = await qts("run", "--duration", "1s", env=live)
    assert (code, output.count("\n")) == (2, 1), output
    assert "not rehearsed: it has no rehearsal in this home; run qts rehearse upbit" in output
    code, output = await qts("rehearse", "upbit", "--yes", env=live)
    assert code == 0, output
    other = live | {"QTS_VENUES__UPBIT__SECRET_KEY": "another-key-" * 4}
    code, output = await qts("run", "--duration", "1s", env=other)
    assert code == 2, output
    assert "none was with this key" in output
    code, output = await qts("run", "--duration", "1s", env=live)
    assert code == 0, output


async def test_without_a_terminal_the_steps_cannot_be_confirmed(
    account: SimulatedAccount, home: Path
) -> None:
    code, output = await qts("rehearse", "upbit", env=environ(home, account))
    assert code == 2
    assert output.startswith("qts: --yes is missing")
    assert transcripts(home) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rehearse", "upbitt", "--yes"), "did you mean upbit?"),
        (("rehearse", "upbit", "--yes"), "venues.upbit has no key; run qts setup upbit"),
    ],
)
async def test_bad_input_is_refused_in_one_line(
    words: tuple[str, ...], message: str, home: Path
) -> None:
    code, output = await qts(*words, env=environ(home))
    assert (code, output.count("\n")) == (2, 1), output
    assert message in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_cancels_the_open_order(
    number: signal.Signals, account: SimulatedAccount, home: Path
) -> None:
    stuck = Fault(kind="slow", path="/v1/orders/closed", seconds=60)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qts", "rehearse", "upbit", "--yes"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ(home, account, QTS_VENUES__UPBIT__TIMEOUT_S="60"),
    )
    assert process.stdout
    async for line in process.stdout:
        if line.startswith(b"order "):
            break
        if line.startswith(b"stream "):
            account.simulator.faults.add(stuck)
    # The order is placed, and its listing hangs.
    while not stuck.struck:  # noqa: ASYNC110 - a fault has no event
        await asyncio.sleep(0.01)
    assert account.simulator.stats()["orders"]["open"] == 1
    account.simulator.faults.clear()
    process.send_signal(number)
    rest, _ = await process.communicate()
    assert process.returncode == 130, rest
    assert account.simulator.stats()["orders"]["open"] == 0
    (path,) = transcripts(home)
    assert lines_of(path)[-1]["reason"] == "interrupted"


def test_a_step_is_declined_on_a_terminal(home: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = [sys.executable, "-m", "qts", "rehearse", "upbit", "--simulated"]
        os.execve(sys.executable, words, environ(home))  # noqa: S606 - no shell is wanted
    output, asked = "", 0
    while True:
        try:
            output += os.read(terminal, 65_536).decode()
        except OSError:  # the other end is closed
            break
        if output.count("Go on?") > asked:
            asked += 1
            os.write(terminal, b"n\n" if output.count("\norder ") else b"y\n")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1, output
    assert "step order was declined" in output
    (path,) = transcripts(home)
    assert lines_of(path)[-1]["complete"] is False
