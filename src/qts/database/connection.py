"""Connections: the asyncpg methods in use, JSON, transaction control, errors, LISTEN."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal, Protocol, Self

import asyncpg
import msgspec
from asyncpg import InterfaceError, InternalClientError, PostgresError, QueryCanceledError

from qts import telemetry
from qts.domain import Clock, OperationError, OutcomeUnknownError, RefusedError, UnreachableError

log = telemetry.logger("database")

MIN_MAJOR = 15

Isolation = Literal["read committed", "repeatable read", "serializable"]

_BEGIN: dict[Isolation, str] = {
    "read committed": "BEGIN ISOLATION LEVEL READ COMMITTED",
    "repeatable read": "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "serializable": "BEGIN ISOLATION LEVEL SERIALIZABLE",
}
_JSONB_VERSION = b"\x01"


class Row(Protocol):
    """Row of a result; columns by name or index."""

    def __getitem__(self, column: str | int, /) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def keys(self) -> Iterable[str]: ...
    def items(self) -> Iterable[tuple[str, Any]]: ...


class Connection(Protocol):
    """Connection of asyncpg; the server binds the arguments ($1, $2 …)."""

    async def execute(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - asyncpg's parameter
    ) -> str: ...
    async def executemany(self, command: str, args: Iterable[Sequence[Any]]) -> None: ...
    async def fetch(self, query: str, *args: Any) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: Any) -> Row | None: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Sequence[Any]], columns: Sequence[str]
    ) -> str: ...


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]
    """Connection that the pool resets only after a caller used it directly.

    A statement, or a transaction with SET LOCAL, leaves no session state; a reset after each would
    cost another round trip.
    """

    needs_reset = False

    def get_reset_query(self) -> str:
        query = super().get_reset_query() if self.needs_reset else ""
        self.needs_reset = False
        return str(query)


async def configure_connection(connection: Any, where: str) -> None:
    """Refuse an old server, and read and write JSON with msgspec.

    A `msgspec.Raw` value is stored unchanged; NaN and the infinities become null, as in JSON.
    """
    version = connection.get_server_version()
    if version.major < MIN_MAJOR:
        raise RefusedError(
            f"PostgreSQL at {where} is version {version.major}.{version.minor}; "
            f"QTS needs {MIN_MAJOR} or newer"
        )
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=lambda value: _JSONB_VERSION + msgspec.json.encode(value),
        decoder=lambda data: msgspec.json.decode(data[1:]),
    )
    await connection.set_type_codec(
        "json",
        schema="pg_catalog",
        format="binary",
        encoder=msgspec.json.encode,
        decoder=msgspec.json.decode,
    )


def begin(isolation: Isolation, read_only: bool, durable: bool = False) -> str:
    command = _BEGIN[isolation] + (" READ ONLY" if read_only else "")
    return command + ("; SET LOCAL synchronous_commit = on" if durable else "")


async def commit(connection: Connection) -> None:
    """Commit; raise if PostgreSQL rolled back because the block suppressed an error."""
    if await connection.execute("COMMIT") == "ROLLBACK":
        raise OperationError(
            "the transaction was rolled back: a statement in it failed and its error was "
            "suppressed; put such a statement in a savepoint"
        )


async def rollback(connection: Any) -> None:
    """Roll back; if that fails, close the connection, and the server rolls back."""
    try:
        await connection.execute("ROLLBACK")
    except DRIVER_ERRORS:
        if not is_gone(connection):
            connection.terminate()


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """Run a part of a transaction that is rolled back alone if it raises."""
    await connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        if not is_gone(connection):
            await connection.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
        raise
    await connection.execute("RELEASE SAVEPOINT part")


# COPY is excluded: it waits for its client in normal operation.
_TERMINATE_STUCK = """
SELECT pid, pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name LIKE 'qts%'
   AND pid <> pg_backend_pid()
   AND state = 'active' AND wait_event IN ('ClientRead', 'ClientWrite')
   AND state_change < clock_timestamp() - $1::interval
   AND query !~* '^\\s*COPY'
"""


async def terminate_stuck_sessions(connection: Connection, idle_s: float) -> int:
    """Terminate sessions stuck within a statement for `idle_s`; return how many.

    A process that stops inside a transaction keeps its locks. How they are freed depends on where
    it stopped:

        between two statements      by the server (idle_in_transaction_session_timeout)
        waiting for a lock          by the server (lock_timeout); the transaction fails
        within a statement, between its messages or while the client does not read the result
                                    by terminate_stuck_sessions()

    The server considers the last kind active and waits forever. A session that runs into
    lock_timeout terminates such sessions if they have been inactive for as long.
    """
    terminated = await connection.fetch(_TERMINATE_STUCK, timedelta(seconds=idle_s))
    for pid, _ in terminated:
        log.warning("terminated stuck database session", pid=pid)
    return len(terminated)


# Errors caused by the server, the network or the session. SQL errors (a violated constraint, a
# typo) pass unchanged. InternalClientError: the server sent its final error while no statement was
# running, before the end of the connection.
DRIVER_ERRORS = (PostgresError, InterfaceError, InternalClientError, OSError, TimeoutError)

# 57P0x: shutdown, crash, startup, dropped, idle too long; 25P03 and 25P04: a transaction that idled
# or lasted too long. Class 08 is the connection itself.
_ENDED = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}

# 25006: read-only, as a standby. Class 53: out of disk, memory, connections or another resource.
_READ_ONLY, _NO_RESOURCES = "25006", "53"


def is_gone(connection: Any) -> bool:
    """Return whether the connection is closed, or its pool has dropped it."""
    try:
        return bool(connection.is_closed())
    except InterfaceError:
        return True


def is_lost(error: BaseException, connection: Any) -> bool:
    """Return whether the error means a lost connection rather than a bad statement."""
    if isinstance(error, PostgresError):
        state = error.sqlstate or ""
        return state.startswith("08") or state in _ENDED
    if isinstance(error, InternalClientError):
        return True
    return isinstance(error, InterfaceError) and is_gone(connection)


def unreachable(where: str, error: BaseException) -> UnreachableError:
    return UnreachableError(f"PostgreSQL at {where} is unreachable: {reason(error)}")


def outcome_unknown(where: str, error: BaseException) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"connection to PostgreSQL at {where} was lost during a write: {reason(error)}; "
        "whether it was committed is not known"
    )


def cancelled(where: str, error: QueryCanceledError, limit_s: float) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where} cancelled a statement: {reason(error)} "
        f"(database.statement_timeout_s is {limit_s:g})"
    )


def is_read_only(error: BaseException) -> bool:
    """Return whether the server answers but cannot write."""
    state = (error.sqlstate or "") if isinstance(error, PostgresError) else ""
    return state == _READ_ONLY or state.startswith(_NO_RESOURCES)


def cannot_write(where: str, error: BaseException) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where} cannot write: {reason(error)}; nothing was changed"
    )


def lock_timeout(where: str, limit_s: float) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where}: no lock within {limit_s:g} s "
        "(database.idle_transaction_timeout_s); nothing was changed"
    )


def reason(error: BaseException) -> str:
    """Describe the error in one line."""
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]


MAX_PENDING = 10_000  # unread notifications; above it the listener reconnects
PING_INTERVAL_S = 10.0  # ping of a silent connection
BACKOFF_S = (0.05, 5.0)  # first, maximum
WARNING_INTERVAL_S = 10.0  # between warnings of all listeners on one server
MAX_CHANNEL_BYTES = 63


class ListenStarted(msgspec.Struct, frozen=True):
    """Marks that notifications arrive from now on; earlier ones may be lost."""


class Notification(msgspec.Struct, frozen=True):
    channel: str
    payload: str


class Listener:
    """Endless async iterator for one reader; used as an async context manager.

    LISTEN runs on a dedicated connection that reconnects automatically. Notifications sent while
    it is down are lost: the iterator yields `ListenStarted` after every connect, and the reader
    then queries for what it missed.

        connect ─▶ ListenStarted ─▶ Notification … ─▶ lost, silent or overrun ─▶ connect …
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channels: Sequence[str],
        where: str,
        clock: Clock,
    ) -> None:
        for channel in channels:
            if not 0 < len(channel.encode()) <= MAX_CHANNEL_BYTES:
                raise ValueError(
                    f"channel name {channel!r}: expected 1 to {MAX_CHANNEL_BYTES} bytes"
                )
        self._connect = connect
        self._channels = channels
        self._where = where
        self._clock = clock
        self._connection: Any = None
        self._pending: asyncio.Queue[Notification | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ListenStarted | Notification:
        while self._connection is not None:
            try:
                async with asyncio.timeout(PING_INTERVAL_S):
                    arrived = await self._pending.get()
            except TimeoutError:
                if await self._ping():
                    continue
                break
            if arrived is None:
                break
            return arrived
        self._drop()
        await self._reconnect()
        return ListenStarted()

    async def _reconnect(self) -> None:
        delay_s, max_delay_s = BACKOFF_S
        while True:
            try:
                self._connection = await self._connect()
                self._connection.add_termination_listener(self._on_termination)
                for channel in self._channels:
                    await self._connection.add_listener(channel, self._on_notification)
            except DRIVER_ERRORS as error:
                self._drop()
                if due := telemetry.log_every(WARNING_INTERVAL_S, ("listen", self._where)):
                    text = "listen failed; retrying"
                    log.warning(text, server=self._where, error=str(error), **due)
                await self._clock.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                delay_s = min(delay_s * 2, max_delay_s)
            except BaseException:
                self._drop()
                raise
            else:
                return

    async def _ping(self) -> bool:
        try:
            await self._connection.execute("SELECT 1", timeout=PING_INTERVAL_S)
        except DRIVER_ERRORS:
            return False
        return True

    def _on_notification(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if self._pending.qsize() < MAX_PENDING:
            self._pending.put_nowait(Notification(channel, payload))
        else:
            self._connection.terminate()

    def _on_termination(self, connection: Any) -> None:
        if connection is self._connection:
            self._pending.put_nowait(None)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._pending = asyncio.Queue()
        if connection is not None and not is_gone(connection):
            connection.terminate()
