"""`qts setup`: the key is asked for, checked at the venue and stored; it is shown nowhere."""

from __future__ import annotations

import asyncio
import os
import pty
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qts.config import load
from qts.domain import RefusedError
from qts.simulators import KisKey, MarketConfig, UpbitKey
from qts.venues.upbit.client import decode_reply
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.cli.test_rehearse import SECRETS, environ, qts
from tests.homes import create_home

KIS, UPBIT = KisKey(), UpbitKey()
TYPED = {
    "kis": ["n", KIS.app_key, KIS.app_secret, KIS.account, KIS.hts_id],
    "upbit": [UPBIT.access_key, UPBIT.secret_key],
}
NAMES = {
    "kis": ["app_key", "app_secret", "account", "hts_id"],
    "upbit": ["access_key", "secret_key"],
}


@pytest.fixture(params=["kis", "upbit"])
async def account(request: pytest.FixtureRequest) -> AsyncIterator[SimulatedAccount]:
    market = MarketConfig(symbols=20, always_open=True, surges_per_hour=0)
    async with simulated_account(request.param, market) as account:
        yield account


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path.resolve() / "home"
    create_home(home)
    return home


def hosts(account: SimulatedAccount, home: Path) -> dict[str, str]:
    """Return settings that lead to the simulator and have no key."""
    given = environ(home, account)
    secret = [f"QTS_VENUES__{account.name}__{name}".upper() for name in NAMES[account.name]]
    return {name: value for name, value in given.items() if name not in secret}


async def on_terminal(answers: list[str], env: dict[str, str], *words: str) -> tuple[int, str]:
    """Run a command on a terminal and type an answer to each question."""
    return await asyncio.to_thread(_on_terminal, answers, env, words)


def _on_terminal(
    answers: list[str], env: dict[str, str], words: tuple[str, ...]
) -> tuple[int, str]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "qts", *words], env)  # noqa: S606 - no shell
    output, waiting = "", list(answers)
    while True:
        try:
            block = os.read(terminal, 65_536).decode()
        except OSError:  # the other end is closed
            break
        output += block
        if waiting and output.endswith(": "):
            os.write(terminal, waiting.pop(0).encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output


def stored(home: Path) -> list[Path]:
    return sorted((home / "secrets").glob("*")) if (home / "secrets").exists() else []


async def test_a_typed_key_is_checked_stored_and_never_shown(
    account: SimulatedAccount, home: Path
) -> None:
    env = hosts(account, home)
    code, output = await on_terminal(TYPED[account.name], env, "setup", account.name)
    assert code == 0, output
    assert f"Next: qts rehearse {account.name}" in output
    assert [secret for secret in SECRETS if secret in output] == []
    assert [path.name for path in stored(home)] == sorted(
        f"{account.name}-{name}" for name in NAMES[account.name]
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in stored(home)} == {0o600}
    assert stat.S_IMODE((home / "secrets").stat().st_mode) == 0o700
    text = (home / "qts.toml").read_text()
    assert [secret for secret in SECRETS if secret in text] == []
    table = getattr(load(None, {"QTS_HOME": str(home)}).venues, account.name)
    found = [getattr(table, name).reveal() for name in NAMES[account.name]]
    assert found == [each for each in TYPED[account.name] if len(each) > 1]
    assert account.orders() == {}
    # The next command uses what was stored.
    code, output = await qts("rehearse", account.name, "--yes", env=env)
    assert code == 0, output


async def test_a_wrong_key_is_named_and_not_stored(account: SimulatedAccount, home: Path) -> None:
    answers = list(TYPED[account.name])
    wrong = answers.index(KIS.app_secret) if account.name == "kis" else 1
    answers[wrong] = "canary-of-a-wrong-secret-" * 4
    code, output = await on_terminal(answers, hosts(account, home), "setup", account.name)
    assert code == 1, output
    assert f"venues.{account.name}." in output
    assert "canary" not in output
    assert stored(home) == []
    assert not (home / "qts.toml").exists()


async def test_without_a_terminal_the_environment_has_the_key(
    account: SimulatedAccount, home: Path
) -> None:
    code, output = await qts("setup", account.name, env=hosts(account, home))
    assert (code, output.count("\n")) == (2, 1), output
    assert f"QTS_VENUES__{account.name.upper()}__" in output
    account.account.cash = 0  # nothing is ordered yet
    code, output = await qts("setup", account.name, env=environ(home, account))
    assert code == 0, output
    assert len(stored(home)) == len(NAMES[account.name])
    assert account.orders() == {}


async def test_an_account_number_of_another_shape_is_refused(home: Path) -> None:
    answers = ["n", KIS.app_key, KIS.app_secret, "50123456-01", KIS.hts_id]
    code, output = await on_terminal(answers, environ(home), "setup", "kis")
    assert code == 2, output
    assert "venues.kis.account is not ten digits; expected" in output
    assert "50123456-01" not in output
    assert stored(home) == []


async def test_paper_is_refused_where_a_venue_has_none(home: Path) -> None:
    code, output = await qts("setup", "upbit", "--paper", env=environ(home))
    assert (code, output.count("\n")) == (2, 1), output
    assert "upbit has no paper trading" in output


@pytest.mark.parametrize(
    ("status", "name", "message"),
    [
        (401, "no_authorization_ip", "address is not on the allow-list"),
        (403, "out_of_scope", "lacks a permission of view assets, view orders, place orders"),
    ],
)
def test_a_key_with_too_few_rights_is_named(status: int, name: str, message: str) -> None:
    data = f'{{"error": {{"name": "{name}", "message": ""}}}}'.encode()
    error = decode_reply(status, data, None, changes=False)
    assert isinstance(error, RefusedError)
    assert message in str(error)
