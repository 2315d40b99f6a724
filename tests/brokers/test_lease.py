"""The lease of an account: one run at a time, freed by the end of its process."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from qts.brokers import AccountLease, AccountTakenError, list_accounts, read_lease
from qts.brokers import lease as lease_module
from qts.database import Database
from qts.domain import AccountKey, RefusedError, Secret, SystemClock
from tests.outbox.kit import until

FIRST = AccountKey.of("paper", "first")
SECOND = AccountKey.of("paper", "second")

HOLDER = """
import asyncio, sys
from qts.brokers import AccountLease
from qts.database import Database, DatabaseConfig
from qts.domain import AccountKey, Secret, SystemClock

async def hold():
    async with Database.open(Secret(sys.argv[1]), DatabaseConfig(pool_min=1, pool_max=2)) as db:
        key = AccountKey.of("paper", "first")
        async with AccountLease(db, key, "/srv/other", SystemClock(), is_live=False):
            print("held", flush=True)
            await asyncio.Event().wait()

asyncio.run(hold())
"""


def lease_of(database: Database, key: AccountKey = FIRST) -> AccountLease:
    return AccountLease(database, key, "/srv/mine", SystemClock(), is_live=False)


@pytest.fixture
async def holder(database_url: Secret) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, database_url.reveal(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


async def test_a_second_run_is_refused_and_sees_who_holds_it(
    database: Database, holder: asyncio.subprocess.Process
) -> None:
    with pytest.raises(RefusedError) as refused:
        async with lease_of(database):
            pass
    text = str(refused.value)
    assert f"account {FIRST} is traded by process {holder.pid} on " in text
    assert "home /srv/other, since " in text
    assert "brokers.paper.account" in text
    async with lease_of(database, SECOND) as other:
        assert other.is_held


async def test_kill_9_of_the_holder_frees_it(
    database: Database, holder: asyncio.subprocess.Process
) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    await holder.wait()

    async def taken() -> bool:
        try:
            async with lease_of(database) as lease:
                return lease.is_held
        except RefusedError:
            return False  # the server has not noticed yet

    await until(taken)


async def test_an_upbit_refusal_names_the_setting_of_the_account(database: Database) -> None:
    key = AccountKey.of("upbit", "real", "main")
    async with lease_of(database, key):
        with pytest.raises(RefusedError, match=r"venues\.upbit\.account"):
            async with lease_of(database, key):
                pass


async def end_session(database: Database) -> None:
    await database.execute(
        "SELECT pg_terminate_backend(l.pid) FROM pg_locks l"
        " WHERE l.locktype = 'advisory' AND l.database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


async def test_a_lost_connection_takes_the_lease_again(database: Database) -> None:
    tripped: list[tuple[str, str]] = []
    async with lease_of(database) as lease:
        await end_session(database)

        async def is_lost() -> bool:
            return not lease.is_held

        async def is_held() -> bool:
            return lease.is_held

        await until(is_lost)
        keeping = asyncio.create_task(lease.run(lambda *code: tripped.append(code)))
        await until(is_held)
        with pytest.raises(RefusedError):
            async with lease_of(database):
                pass
        keeping.cancel()
    assert tripped == []


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_connection_that_is_lost_while_it_takes_the_lease_is_replaced(
    database: Database, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The server dies again: before it writes who holds the account, or before it replies."""
    lost: list[str] = []

    class Lossy(asyncpg.Connection):  # type: ignore[misc]
        async def _end(self, method: Any, query: str, *values: Any) -> Any:
            if lost or "UPDATE account" not in query:
                return await method(query, *values)
            lost.append(query)
            if is_written:
                await method(query, *values)
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed")

        async def fetchrow(self, query: str, *values: Any, **_: Any) -> Any:
            return await self._end(super().fetchrow, query, *values)

    async with lease_of(database) as lease:
        connect = functools.partial(asyncpg.connect, connection_class=Lossy)
        monkeypatch.setattr(asyncpg, "connect", connect)
        keeping = asyncio.create_task(lease.run(lambda *_code: None))
        await end_session(database)

        async def is_held_again() -> bool:
            return keeping.done() or (bool(lost) and lease.is_held)

        await until(is_held_again)
        assert not keeping.done(), keeping.exception()
        keeping.cancel()


async def test_a_run_that_lost_its_account_to_another_one_ends(database: Database) -> None:
    tripped: list[tuple[str, str]] = []
    async with lease_of(database) as lease:
        await end_session(database)

        async def is_lost() -> bool:
            return not lease.is_held

        await until(is_lost)
        async with lease_of(database):
            with pytest.raises(AccountTakenError, match=f"process {os.getpid()}"):
                await lease.run(lambda *code: tripped.append(code))
            assert not lease.is_held
    assert [code for code, _ in tripped] == ["FS112"]


async def test_a_lease_makes_its_account_known(database: Database) -> None:
    assert list(await list_accounts(database)) == []
    async with lease_of(database), lease_of(database, SECOND):
        assert list(await list_accounts(database)) == [FIRST, SECOND]


async def test_a_release_is_notified_to_the_standby(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "POLL_INTERVAL_S", 1000.0)
    first, second = lease_of(database), lease_of(database)
    await first.acquire()
    taking = asyncio.create_task(second.acquire_when_free())

    async def stands_by() -> bool:
        return bool((await read_lease(database, FIRST)).standbys)

    await until(stands_by, 20)
    async with asyncio.timeout(20):
        await first.release()
        await taking
    assert second.may_send
    await second.release()


async def test_a_release_waits_for_the_renewal_in_flight(database: Database) -> None:
    first, second = lease_of(database), lease_of(database)
    await first.acquire()
    async with first._in_use:
        releasing = asyncio.create_task(first.release())
        await asyncio.sleep(0)
        assert not releasing.done()
    await releasing
    await second.acquire()
    assert second.may_send  # at once: the first has released it
    await second.release()


async def test_a_lease_that_is_held_again_is_reported(database: Database) -> None:
    reported: asyncio.Queue[str] = asyncio.Queue()
    async with lease_of(database) as lease:
        running = asyncio.create_task(lease.run(lambda _code, _text: None, reported.put_nowait))
        pid = lease._connection.get_server_pid()
        await database.fetchval("SELECT pg_terminate_backend($1)", pid)
        async with asyncio.timeout(20):
            assert await reported.get() == "account lease held again"
        assert (lease.is_held, lease.epoch) == (True, 2)
        running.cancel()
        await asyncio.wait({running})
