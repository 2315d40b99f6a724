"""The lease of an account: one holder at a time, numbered by an epoch.

    free ──lock, epoch + 1──▶ held ──renewed──▶ held ──silent for LEASE_S──▶ lost, by the server
      ▲                        │ ├──connection lost──▶ lost ──▶ held again, with the next epoch
      └──released, at the end──┘ └──another holder─────▶ AccountTakenError: this run ends

Invariants, whichever process is killed, frozen or cut off, and for however long:

    1. No two holders have the same epoch. Only the session that holds the lock raises it, durably.
    2. No attempt becomes SENT, and no stop or switch is changed by a run, with an old epoch: the
       statement reads the row of the account FOR SHARE until it has committed, and the next
       holder updates that row before it does anything else.
    3. No byte of an order leaves after its deadline: `send_within_s` from before that statement, or
       from before the last renewal of the lease, on clocks that count while the process is frozen
       or the machine sleeps.

The next holder sends nothing until `send_within_s` of the former one has passed since its own epoch
was committed, unless that one released the lease. By 2 and 3 nothing of an old epoch reaches the
venue after the first order of the next one, however the lock was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Self
from uuid import uuid4

import msgspec

from qts import telemetry
from qts.database import Database, Row
from qts.domain import AccountKey, Clock, OperationError, RefusedError, TimeLimit

LEASE_S = 2.0  # of silence: then the server ends the session of the holder
RENEW_INTERVAL_S = 0.4
POLL_INTERVAL_S = 0.1  # of a standby; a release is notified
RETRY_INTERVAL_S = 0.2
CHANNEL = "qts_account_released"
BLOCKED_S = 0.2  # by a session of the former holder that is frozen within a transaction

_OPEN = "SELECT account_open($1, $2, $3)"
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('qts account ' || $1, 0))"
_STAND_BY = "SELECT pg_advisory_lock_shared(hashtextextended('standby of qts account ' || $1, 0))"
_STOOD_BY = "SELECT pg_advisory_unlock_shared(hashtextextended('standby of qts account ' || $1, 0))"
_SESSIONS = """
SELECT s.pid, s.application_name
  FROM hashtextextended($1, 0) AS key
  JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.classid = ((key >> 32) & 4294967295)::oid AND l.objid = (key & 4294967295)::oid
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  JOIN pg_stat_activity s ON s.pid = l.pid
 ORDER BY s.backend_start
"""
_LEASES = """
SELECT a.broker || ':' || a.account AS account, a.epoch, a.host, a.pid, a.home, a.held_at,
       a.handover_at, count(s.pid) FILTER (WHERE k.name = 'qts account ') > 0 AS is_held,
       array_agg(s.application_name ORDER BY s.backend_start)
           FILTER (WHERE k.name <> 'qts account ' AND s.pid IS NOT NULL) AS standbys
  FROM account a
 CROSS JOIN (VALUES ('qts account '), ('standby of qts account ')) AS k (name)
 CROSS JOIN LATERAL hashtextextended(k.name || a.broker || ':' || a.account, 0) AS key
  LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.classid = ((key >> 32) & 4294967295)::oid AND l.objid = (key & 4294967295)::oid
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  LEFT JOIN pg_stat_activity s ON s.pid = l.pid
 GROUP BY a.broker, a.account ORDER BY a.broker, a.account
"""
_TAKE = """
WITH former AS MATERIALIZED (
    SELECT application, CASE WHEN held_at IS NULL OR released_at IS NOT NULL OR holder = $3 THEN 0
                ELSE send_within_s END AS quiet_s
      FROM account WHERE broker = $1 AND account = $2 FOR UPDATE)
UPDATE account a
   SET epoch = epoch + 1, holder = $3, host = $4, pid = $5, home = $6, application = $8,
       send_within_s = GREATEST($7, quiet_s),  -- it may end before the former holder's has passed
       held_at = clock_timestamp(), released_at = NULL, handover_at = NULL
  FROM former
 WHERE broker = $1 AND account = $2
RETURNING a.epoch, former.quiet_s, former.application AS former
"""
_END_BLOCKING = "SELECT pg_terminate_backend(pid) FROM unnest(pg_blocking_pids($1)) AS pid"
_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = $1 AND datname = current_database()"
)
_RENEW = "SELECT handover_at IS NOT NULL FROM account WHERE broker = $1 AND account = $2"
# Unlocked before the commit: the next holder waits for the row, not for the end of this session.
_RELEASE = f"""
UPDATE account SET released_at = clock_timestamp()
 WHERE broker = $1 AND account = $2 AND holder = $3
RETURNING pg_advisory_unlock(hashtextextended('qts account ' || $4, 0)), pg_notify('{CHANNEL}', $4)
"""  # noqa: S608 - a constant
_HOLDER = (
    "SELECT epoch, holder, host, pid, home, held_at, handover_at FROM account"
    " WHERE broker = $1 AND account = $2"
)
_REQUEST_HANDOVER = (
    "UPDATE account SET handover_at = clock_timestamp()"
    " WHERE broker = $1 AND account = $2 AND epoch = $3"
)

log = telemetry.logger("brokers")


class AccountTakenError(OperationError):
    """Another run holds the account that this run held before."""


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds an account, or held it last, and who stands by for it."""

    account: str
    epoch: int = 0
    is_held: bool = False
    host: str = ""
    pid: int = 0
    home: str = ""
    held_at: datetime | None = None
    handover_at: datetime | None = None
    standbys: list[str] = []  # host and process


async def read_lease(database: Database, key: AccountKey) -> LeaseStatus:
    row = await database.fetchrow(_HOLDER, *key)
    if row is None:
        return LeaseStatus(account=str(key))
    holders = await database.fetch(_SESSIONS, f"qts account {key}")
    standbys = await database.fetch(_SESSIONS, f"standby of qts account {key}")
    return LeaseStatus(
        account=str(key),
        epoch=row["epoch"],
        is_held=bool(holders),
        host=row["host"],
        pid=row["pid"],
        home=row["home"],
        held_at=row["held_at"],
        handover_at=row["handover_at"],
        standbys=_names(each["application_name"] for each in standbys),
    )


async def read_leases(database: Database) -> list[LeaseStatus]:
    """Return the lease of every account that was ever opened."""
    return [
        LeaseStatus(**{**row, "standbys": _names(row["standbys"] or ())})
        for row in map(dict, await database.fetch(_LEASES))
    ]


def _names(applications: Iterable[str]) -> list[str]:
    return [each.removeprefix("qts ") for each in applications]


async def request_handover(database: Database, key: AccountKey, epoch: int) -> None:
    """Ask the holder of this epoch to release the lease."""
    await database.execute(_REQUEST_HANDOVER, *key, epoch)


class AccountLease:
    """Lease of a run on its account; an async context manager on one event loop."""

    def __init__(
        self,
        database: Database,
        key: AccountKey,
        home: str,
        clock: Clock,
        *,
        is_live: bool,
        send_within_s: float = 1.0,
    ) -> None:
        self.key = key
        self._database = database
        self._id = uuid4()
        self._identity = socket.gethostname(), os.getpid(), home
        self._clock = clock
        self._is_live = is_live
        self._send_within_s = send_within_s
        self._connection: Any = None
        self._in_use = asyncio.Lock()  # the connection, by one statement at a time
        self._renewing: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._deadline = self._quiet = TimeLimit(clock, 0.0)
        self.send_by = TimeLimit(clock, 0.0)  # a request may leave: moved by each renewal
        self._epoch = 0
        self.handover = asyncio.Event()  # the operator asked this run to release the lease

    @property
    def epoch(self) -> int:
        """Epoch of this run; it is compared by the statements that write."""
        return self._epoch

    @property
    def is_held(self) -> bool:
        """Return whether no other run can have the account: the session lives, as far as known."""
        is_lost = self._connection is None or self._lost.is_set()
        return not is_lost and not self._deadline.is_over(self._clock)

    @property
    def may_send(self) -> bool:
        """Return whether this run may send orders: the former holder's have left, or never will."""
        return self.is_held and self._quiet.is_over(self._clock)

    async def wait_quiet(self) -> None:
        """Wait until no request of the former holder can leave any more."""
        await asyncio.sleep(max(0.0, self._quiet.left_s(self._clock)))

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def acquire(self) -> None:
        """Take the lease; raise RefusedError when another run has it."""
        await self._hold(self._take)

    async def acquire_when_free(self) -> None:
        """Stand by until the lease is free, and take it."""
        while True:
            try:
                await self._hold(self._take_when_free)
            except OperationError as error:
                log.warning("standby without database; retrying", error=str(error))
                await asyncio.sleep(RETRY_INTERVAL_S)
            else:
                return

    async def release(self) -> None:
        """Let the next holder send at once: this run has ended its requests."""
        if self.may_send:
            values = (*self.key, self._id, str(self.key))
            with contextlib.suppress(Exception):  # it is released without, a second later
                async with asyncio.timeout(LEASE_S), self._in_use:
                    await self._connection.execute(_RELEASE, *values)
        self._drop()

    async def run(
        self, trip: Callable[[str, str], None], on_held: Callable[[str], None] | None = None
    ) -> None:
        """Keep the lease until cancelled; call `on_held` with a reason when it is held again.

        Trip FS112 and raise AccountTakenError when another run has it.
        """
        while True:
            await self._lost.wait()
            log.warning("account lease lost; taking it again", account=str(self.key))
            try:
                await self._acquire_again()
            except AccountTakenError as error:
                trip("FS112", str(error))
                raise
            if on_held is not None:
                on_held("account lease held again")

    async def _acquire_again(self) -> None:
        former = self._connection.get_server_pid()
        while True:
            self._drop()
            try:
                holder = await self._database.fetchrow(_HOLDER, *self.key)
                self._refuse_other(holder)
                # The server may not have noticed yet that our connection is gone.
                await self._database.fetchval("SELECT pg_terminate_backend($1)", former)
                await self._hold(self._take)
            except AccountTakenError:
                raise
            except (OperationError, RefusedError) as error:
                log.warning("account lease not taken; retrying", error=str(error))
                await self._clock.sleep(RETRY_INTERVAL_S)
            else:
                log.info("account lease held again", account=str(self.key), epoch=self._epoch)
                return

    async def _hold(self, take: Callable[[Any], Any]) -> None:
        host, pid, _ = self._identity
        connection = await self._database.connect(
            take,
            application_name=f"qts {host[:40]}, process {pid}",
            idle_session_timeout=str(round(LEASE_S * 1000)),
            synchronous_commit="on",  # an epoch that a crash of the server undid would be reused
        )
        self._lost.clear()
        self._connection = connection
        connection.add_termination_listener(self._on_termination)
        self._renewing = asyncio.create_task(self._renew(connection))

    async def _take(self, connection: Any) -> None:
        deadline = TimeLimit(self._clock, LEASE_S)
        if not await connection.fetchval(_TRY_LOCK, str(self.key)):
            raise RefusedError(await self._refusal(connection))
        await self._raise_epoch(connection, deadline)

    async def _take_when_free(self, connection: Any) -> None:
        released = asyncio.Event()

        def on_notification(_connection: Any, _pid: int, _channel: str, key: str) -> None:
            if key == str(self.key):
                released.set()

        await connection.execute(_STAND_BY, str(self.key))
        await connection.add_listener(CHANNEL, on_notification)
        while True:
            released.clear()
            deadline = TimeLimit(self._clock, LEASE_S)
            if await connection.fetchval(_TRY_LOCK, str(self.key)):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await released.wait()
        await self._raise_epoch(connection, deadline)
        await connection.execute(_STOOD_BY, str(self.key))

    async def _raise_epoch(self, connection: Any, deadline: TimeLimit) -> None:
        await connection.fetchval(_OPEN, *self.key, self._is_live)
        if self._epoch:  # between the first look and the lock another run may have come and gone
            self._refuse_other(await connection.fetchrow(_HOLDER, *self.key))
        values = (*self.key, self._id, *self._identity, self._send_within_s)
        row = await self._unblocked(connection, _TAKE, *values, self._database.application)
        # What a lost holder left open would hold others up.
        if row["quiet_s"] and row["former"] not in ("", self._database.application):
            await connection.execute(_END_SESSIONS, row["former"])
        self._epoch = row["epoch"]
        self._quiet = TimeLimit(self._clock, row["quiet_s"])
        self._deadline = deadline

    async def _unblocked(self, connection: Any, query: str, *values: Any) -> Row:
        """Fetch a row; end the sessions of a frozen holder that keep the statement waiting."""
        task = asyncio.ensure_future(connection.fetchrow(query, *values))
        try:
            while not (await asyncio.wait({task}, timeout=BLOCKED_S))[0]:
                await self._database.fetch(_END_BLOCKING, connection.get_server_pid())
        finally:
            task.cancel()
        row: Row = task.result()
        return row

    async def _renew(self, connection: Any) -> None:
        """Renew until that fails: in real time, as the server counts the silence."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            deadline = TimeLimit(self._clock, LEASE_S)
            send_by = TimeLimit(self._clock, self._send_within_s)
            try:
                async with asyncio.timeout(LEASE_S), self._in_use:
                    is_requested = await connection.fetchval(_RENEW, *self.key)
            except Exception as error:  # noqa: BLE001 - whatever it is, the lease may be gone
                log.warning("account lease not renewed", error=str(error) or repr(error))
                self._lost.set()
                return
            self._deadline = deadline
            self.send_by.move_to(send_by)
            if is_requested:
                self.handover.set()

    def _refuse_other(self, row: Row | None) -> None:
        """Raise AccountTakenError when another run has taken the account since this one has."""
        if row is not None and row["holder"] != self._id:
            raise AccountTakenError(f"account {self.key} was taken by {describe_holder(row)}")

    async def _refusal(self, connection: Any) -> str:
        row = await connection.fetchrow(_HOLDER, *self.key)
        other = describe_holder(row) if row is not None else "another run, which has just started"
        setting = {
            "upbit": "; another Upbit account needs another venues.upbit.account",
            "paper": "; another paper account needs another brokers.paper.account",
        }.get(self.key.broker, "")
        return (
            f"account {self.key} is traded by {other}; stop that run first, or start this one"
            f" with --standby to take over from it{setting}"
        )

    def _on_termination(self, connection: Any) -> None:
        if connection is self._connection:
            self._lost.set()

    def _drop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


def describe_holder(row: Any) -> str:
    since = f"{row['held_at']:%F %T} UTC" if row["held_at"] else "now"
    return f"process {row['pid']} on {row['host']}, home {row['home']}, since {since}"
