"""`--account`: names of accounts, all of them at once, and the column that tells them apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from qts.brokers import open_account
from qts.cli.main import run_command
from qts.database import Database
from qts.domain import AccountKey, Secret
from qts.risk import KillSwitch

FIRST, SECOND = AccountKey.of("paper", "first"), AccountKey.of("paper", "second")
UPBIT = AccountKey.of("upbit", "real", "main")

Qts = Callable[..., Awaitable[tuple[int, list[str]]]]


@pytest.fixture
def qts(
    database_url: Secret,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Qts:
    """Run a command of the first account; return its exit code and the lines that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_HOME", str(tmp_path))
    monkeypatch.setenv("QTS_DATABASE__URL", database_url.reveal())
    monkeypatch.setenv("QTS_BROKERS__PAPER__ACCOUNT", "first")

    async def run(*words: str) -> tuple[int, list[str]]:
        code = await asyncio.to_thread(run_command, words)
        printed = capsys.readouterr()
        return code, (printed.err if code else printed.out).splitlines()

    return run


@pytest.fixture
async def accounts(database: Database) -> None:
    for key in (FIRST, SECOND, UPBIT):
        await open_account(database, key, is_live=False)


@pytest.mark.parametrize(
    "command",
    ["kill status", "kill off", "failsafe status", "orders list", "orders reconcile", "positions"],
)
@pytest.mark.usefixtures("accounts")
async def test_an_unknown_account_is_refused_with_the_nearest(qts: Qts, command: str) -> None:
    typo = str(SECOND)[:-1]
    code, (line,) = await qts(*command.split(), "--account", typo)
    assert code == 2
    assert line == (
        f"qts: account {typo!r} is unknown; expected one of {FIRST}, {SECOND}, {UPBIT};"
        f" did you mean {SECOND}?"
    )


async def test_an_account_is_refused_where_none_was_opened(qts: Qts) -> None:
    code, (line,) = await qts("orders", "list", "--account", "first")
    assert code == 2
    assert line == "qts: account 'first' is unknown; expected one of none"


@pytest.mark.usefixtures("accounts")
async def test_a_broker_limits_the_accounts_to_its_own(qts: Qts) -> None:
    code, (line,) = await qts(
        "positions", "adopt", "005930", "1", "--price", "70000",
        "--broker", "paper", "--account", str(UPBIT),
    )  # fmt: skip
    assert code == 2
    assert line.startswith(f"qts: account '{UPBIT}' at paper is unknown; expected one of {FIRST},")
    assert str(UPBIT) not in line.partition("expected")[2]


@pytest.mark.parametrize(
    "name", [str(SECOND), SECOND.account, SECOND.short, SECOND.short.removeprefix("paper:")]
)
@pytest.mark.usefixtures("accounts")
async def test_an_account_has_its_digest_whole_or_short_as_its_name(
    qts: Qts, database: Database, name: str
) -> None:
    assert (await qts("kill", "off", "--account", name))[0] == 0
    assert (await KillSwitch(database, SECOND).all())["account"].enabled
    assert await KillSwitch(database, FIRST).all() == {}


@pytest.mark.usefixtures("accounts")
async def test_only_all_accounts_together_have_a_column(qts: Qts) -> None:
    for key, quantity in ((FIRST, "1"), (SECOND, "2")):
        adopted = ("positions", "adopt", "005930", quantity, "--price", "70000")
        assert (await qts(*adopted, "--account", str(key)))[0] == 0
    code, (head, line) = await qts("positions")
    assert code == 0
    assert "account" not in head
    assert FIRST.short not in line
    code, (head, *lines) = await qts("positions", "--account", "all")
    assert code == 0
    assert head.split()[0] == "account"
    assert {line.split()[0] for line in lines} == {FIRST.short, SECOND.short}
    _, text = await qts("positions", "--account", "all", "--json")
    rows = msgspec.json.decode("\n".join(text))["positions"]
    assert {row["account"] for row in rows} == {FIRST.account, SECOND.account}
