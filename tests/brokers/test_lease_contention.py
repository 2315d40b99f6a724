"""The invariants of the lease under contention, and that the judge finds what breaks them."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from qts.brokers import AccountLease, open_account
from qts.database import Database
from qts.domain import Secret, TimeLimit
from qts.orders import attempts as attempts_module
from qts.orders.ledger_values import SQL
from qts.risk import KillSwitch
from tests.brokers import contenders as kit
from tests.brokers.contenders import KEY, Contender, Request

SHORT_S, LONG_S = 6.0, 60.0
SEEDS = [int(os.environ["QTS_SEED"])] if "QTS_SEED" in os.environ else list(range(1, 11))


async def run(
    database: Database, url: Secret, monkeypatch: pytest.MonkeyPatch, seed: int, seconds: float
) -> tuple[list[str], dict[str, int]]:
    await open_account(database, KEY, is_live=False)
    await KillSwitch(database, KEY).enable_unset(("test",), "tests")
    await database.execute(kit.WATCH)
    kit.pause_statements(monkeypatch)
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    venue: list[Request] = []
    count = chance.randint(2, 5)
    contenders = [
        Contender(url, venue, random.Random(chance.random()))  # noqa: S311
        for _ in range(count)
    ]

    async def end_session() -> None:
        """End the session that holds the lock, as a restart of the server does."""
        if chance.random() < 0.3:
            await database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                " AND mode = 'ExclusiveLock' AND granted AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            )

    await kit.contend(contenders, seconds, end_session)
    taken = await database.fetchval("SELECT count(*) FROM test_log WHERE kind = 'taken'")
    figures = {
        "contenders": count,
        "takeovers": taken,
        "requests": len(venue),
        "pauses": sum(each.pauses.count for each in contenders),
        "held back by the deadline": sum(each.late for each in contenders),
        "held back by the epoch": sum(each.fenced for each in contenders),
    }
    return await kit.judge(url, venue), figures


async def check(
    database: Database, url: Secret, monkeypatch: pytest.MonkeyPatch, seed: int, seconds: float
) -> None:
    wrong, figures = await run(database, url, monkeypatch, seed, seconds)
    print(f"seed {seed}: {figures}")
    assert wrong == [], f"seed {seed}: {wrong[:5]}"
    assert figures["takeovers"] > 1
    assert figures["requests"] > 0


async def test_no_two_holders_and_nothing_with_an_old_epoch(
    database: Database, database_url: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check(database, database_url, monkeypatch, 7, SHORT_S)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_two_holders_and_nothing_with_an_old_epoch_for_long(
    database: Database, database_url: Secret, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    await check(database, database_url, monkeypatch, seed, LONG_S)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("planted", ["no comparison", "no deadline"])
async def test_a_missing_check_is_found(
    database: Database, database_url: Secret, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    if planted == "no comparison":
        compared = "AND epoch = $5 FOR SHARE"
        assert compared in SQL.send

        class Planted:
            send = SQL.send.replace(compared, "AND $5::bigint IS NOT NULL")

            def __getattr__(self, name: str) -> Any:
                return getattr(SQL, name)

        monkeypatch.setattr(attempts_module, "SQL", Planted())
    else:
        monkeypatch.setattr(TimeLimit, "is_over", lambda *_: False)
        monkeypatch.setattr(AccountLease, "may_send", AccountLease.is_held)
    wrong, figures = await run(database, database_url, monkeypatch, 3, LONG_S)
    print(f"{planted}: {figures}, {len(wrong)} found: {wrong[:3]}")
    expected = "SENT with epoch" if planted == "no comparison" else "request of epoch"
    assert any(each.startswith(expected) for each in wrong)
