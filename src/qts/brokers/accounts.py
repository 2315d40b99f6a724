"""Accounts in the database: opening one, and the lock that keeps it to one run at a time.

    acquire ──▶ held ──connection lost──▶ acquired again, on a new connection
       │                     └── another run has it ──▶ AccountTakenError: this run ends
       └── another run has it ──▶ RefusedError, with host, pid and home of the holder

The lock is a session lock of PostgreSQL: it ends with the process, however that ends. The row of
the account says who took it last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Self

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, RefusedError

PING_INTERVAL_S = 5.0
RETRY_INTERVAL_S = 0.2

_OPEN = "SELECT account_open($1, $2, $3)"
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('qts account ' || $1, 0))"
_IS_LOCKED = """
SELECT EXISTS (
    SELECT FROM pg_locks, hashtextextended('qts account ' || $1, 0) AS key
     WHERE locktype = 'advisory' AND granted AND objsubid = 1
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid)
"""
_NEXT_EPOCH = "SELECT epoch + 1 FROM account WHERE broker = $1 AND account = $2"
_HOLD = (
    "UPDATE account SET epoch = $3, host = $4, pid = $5, home = $6,"
    " held_at = clock_timestamp() WHERE broker = $1 AND account = $2"
)
_HOLDER = "SELECT epoch, host, pid, home, held_at FROM account WHERE broker = $1 AND account = $2"

log = telemetry.logger("brokers")


class AccountTakenError(OperationError):
    """Another run holds the account that this run held before."""


async def open_account(database: Database, key: AccountKey, *, is_live: bool) -> None:
    """Make the account known; its first opening moves the rows that are its own (0016)."""
    await database.fetchval(_OPEN, *key, is_live)


async def list_accounts(database: Database) -> Sequence[AccountKey]:
    """Return every account that was ever opened, by broker."""
    rows = await database.fetch("SELECT broker, account FROM account ORDER BY broker, opened_at")
    return [AccountKey(*row) for row in rows]


async def is_account_locked(database: Database, key: AccountKey) -> bool:
    """Return whether a run holds the account now."""
    held: bool = await database.fetchval(_IS_LOCKED, str(key))
    return held


class AccountLock:
    """Lock of a run on its account; an async context manager on one event loop."""

    def __init__(
        self, database: Database, key: AccountKey, home: str, clock: Clock, *, is_live: bool
    ) -> None:
        self.key = key
        self._database = database
        self._identity = socket.gethostname(), os.getpid(), home
        self._clock = clock
        self._is_live = is_live
        self._connection: Any = None
        self._lost = asyncio.Event()
        self._epoch = 0

    @property
    def is_held(self) -> bool:
        """Return whether this run may trade the account."""
        return self._connection is not None and not self._lost.is_set()

    async def __aenter__(self) -> Self:
        await self._acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    async def run(self, trip: Callable[[str, str], None]) -> None:
        """Keep the lock until cancelled.

        Trip FS112 and raise AccountTakenError when another run has it.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_INTERVAL_S):
                    await self._lost.wait()
            if not self._lost.is_set() and await self._answers():
                continue
            self._lost.set()
            log.warning("account lock lost; taking it again", account=str(self.key))
            try:
                await self._acquire_again()
            except AccountTakenError as error:
                trip("FS112", str(error))
                raise

    async def _acquire_again(self) -> None:
        former = self._connection.get_server_pid()
        while True:
            self._drop()
            try:
                holder = await self._database.fetchrow(_HOLDER, *self.key)
                if holder is not None and self._is_other(holder):
                    raise AccountTakenError(f"account {self.key} was taken by {_holder(holder)}")
                # The server may not have noticed yet that our connection is gone.
                await self._database.fetchval("SELECT pg_terminate_backend($1)", former)
                await self._acquire()
            except AccountTakenError:
                raise
            except (OperationError, RefusedError) as error:
                log.warning("account lock not taken; retrying", error=str(error))
                await self._clock.sleep(RETRY_INTERVAL_S)
            else:
                log.info("account lock held again", account=str(self.key))
                return

    async def _acquire(self) -> None:
        connection = await self._database.connect(self._take)
        self._lost.clear()
        self._connection = connection
        connection.add_termination_listener(self._on_termination)

    async def _take(self, connection: Any) -> None:
        if not await connection.fetchval(_TRY_LOCK, str(self.key)):
            raise RefusedError(await self._refusal(connection))
        await connection.fetchval(_OPEN, *self.key, self._is_live)
        # Known before it is written: the reply to the write may be lost.
        self._epoch = await connection.fetchval(_NEXT_EPOCH, *self.key)
        await connection.execute(_HOLD, *self.key, self._epoch, *self._identity)

    def _is_other(self, holder: Any) -> bool:
        """Return whether another run has taken the account since this one has."""
        identity = holder["host"], holder["pid"], holder["home"]
        return holder["epoch"] > self._epoch or identity != self._identity

    async def _refusal(self, connection: Any) -> str:
        row = await connection.fetchrow(_HOLDER, *self.key)
        other = _holder(row) if row is not None else "another run, which has just started"
        setting = {
            "upbit": "; another Upbit account needs another venues.upbit.account",
            "paper": "; another paper account needs another brokers.paper.account",
        }.get(self.key.broker, "")
        return f"account {self.key} is traded by {other}; stop that run first{setting}"

    async def _answers(self) -> bool:
        try:
            await self._connection.execute("SELECT 1", timeout=PING_INTERVAL_S)
        except Exception:  # noqa: BLE001 - whatever it is, the lock may be gone
            return False
        return True

    def _on_termination(self, connection: Any) -> None:
        if connection is self._connection:
            self._lost.set()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


def _holder(row: Any) -> str:
    since = f"{row['held_at']:%F %T} UTC" if row["held_at"] else "now"
    return f"process {row['pid']} on {row['host']}, home {row['home']}, since {since}"
