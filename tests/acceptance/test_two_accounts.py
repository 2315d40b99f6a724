"""`qts run` twice on one PostgreSQL: two accounts trade side by side, one account trades once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import asyncpg

from qts.domain import AccountKey, Secret
from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

ACCOUNTS = ("first", "second")
# What the paper account itself recorded, beside what the ledger says of the same account.
HELD = "SELECT symbol, quantity FROM paper_account WHERE book = $1 AND symbol <> 'KRW'"
HELD += " AND quantity <> 0"
POSITIONS = "SELECT symbol, quantity FROM position WHERE broker = $1 AND account = $2"
POSITIONS += " AND quantity <> 0"
FOREIGN = """
SELECT count(*) FROM paper_order p LEFT JOIN order_attempt a ON a.identifier = p.identifier
 WHERE p.book = $1 AND a.account IS DISTINCT FROM $2
"""
FILLS = "SELECT count(*) FROM paper_fill WHERE book = $1"
REFUSED = "SELECT count(*) FROM outbox_event_all WHERE last_error_code = 'OTHER_ACCOUNT'"


def fetch(url: Secret, query: str, *values: object) -> list[asyncpg.Record]:
    async def run() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url.reveal())
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()

    return asyncio.run(run())


def start(stack: ExitStack, folder: Path, url: Secret, account: str, *words: str) -> Run:
    home = folder / "home"
    folder.mkdir(exist_ok=True)
    environ = {"QTS_DATABASE__URL": url.reveal(), "QTS_BROKERS__PAPER__ACCOUNT": account}
    return stack.enter_context(running(home, *words, **environ))


def until_filled(url: Secret, account: str) -> None:
    end = time.monotonic() + 90
    while not fetch(url, FILLS, account)[0][0]:
        assert time.monotonic() < end, f"{account} traded nothing"
        time.sleep(0.2)


async def test_two_accounts_trade_side_by_side_and_one_account_once(
    database_url: Secret, tmp_path: Path
) -> None:
    await asyncio.to_thread(_both_trade, database_url, tmp_path)


def _one_view_shows_both(url: Secret, folder: Path) -> None:
    """A view on a home without a run and a cache has both runs, and their sum."""
    environ = {"QTS_DATABASE__URL": url.reveal(), "QTS_HOME": str(folder / "view")}

    def view() -> str:
        words = ["top", "--once", "--account", keys()[0].account[:8]]
        command = [sys.executable, "-m", "qts", *words]
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.stdout if done.returncode == 0 else ""

    def shows_both() -> bool:
        text = view()
        names = all(key.short in text for key in keys())
        return names and text.startswith(f"SIMULATED on {keys()[0].short}") and "sum of 2/2" in text

    # On a busy machine a status may be older than five seconds for a moment.
    assert until(shows_both, seconds=90)


def keys() -> list[AccountKey]:
    return [AccountKey.of("paper", name) for name in ACCOUNTS]


def _both_trade(url: Secret, folder: Path) -> None:
    with ExitStack() as stack:
        runs = {name: start(stack, folder / name, url, name) for name in ACCOUNTS}
        for run in runs.values():
            run.until("Ready")
        for name in ACCOUNTS:
            until_filled(url, name)
        _one_view_shows_both(url, folder)
        third = start(stack, folder / "third", url, "first", "--duration", "5s")
        assert third.end() == 2
        (line,) = [each for each in third.errors.splitlines() if each.startswith("qts: ")]
        key = AccountKey.of("paper", "first")
        assert f"account {key} is traded by process {runs['first'].process.pid} on " in line
        assert str(folder / "first" / "home") in line
        for run in runs.values():
            run.ends_well(signal.SIGINT)
    assert fetch(url, REFUSED)[0][0] == 0
    for name in ACCOUNTS:
        key = AccountKey.of("paper", name)
        assert fetch(url, FOREIGN, name, key.account)[0][0] == 0
        assert dict(fetch(url, HELD, name)) == dict(fetch(url, POSITIONS, *key))
