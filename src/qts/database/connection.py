"""One connection: address and options, the asyncpg methods in use, JSON, transaction control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
import msgspec

from qts import telemetry
from qts.database.config import DatabaseConfig
from qts.database.errors import DRIVER_ERRORS, is_gone
from qts.domain import ConfigError, OperationError, RefusedError, Secret

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


_FORM = "write postgresql://user:password@host:port/name, special characters percent-encoded"


def address_of(url: Secret) -> str:
    """Return `host:port/name` of a database URL; raise ConfigError if it is invalid.

    The error shows no part of the URL: a password with an unescaped `/` or `@` would be parsed as
    another part.
    """
    try:
        parts = urlsplit(url.reveal())
        _ = parts.port if "," not in parts.netloc else None
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise ConfigError(f"database.url is not a PostgreSQL URL; {_FORM}") from None
    beyond_host = parts.path + parts.query + parts.fragment
    if (
        parts.scheme not in {"postgresql", "postgres"}
        or parts.netloc.count("@") > 1
        or "@" in beyond_host
        or parts.fragment
    ):
        raise ConfigError(f"database.url is not a PostgreSQL URL; {_FORM}")
    host = unquote(parts.netloc.rpartition("@")[2]) or options.get("host", ["the default host"])[-1]
    return f"{host}/{unquote(parts.path.lstrip('/'))}".removesuffix("/")


def connect_options(url: Secret, config: DatabaseConfig, application: str) -> dict[str, Any]:
    """Return the arguments of asyncpg.connect, including the server's timeouts."""
    idle_timeout = _milliseconds(config.idle_transaction_timeout_s)
    return {
        "dsn": url.reveal(),
        "timeout": config.connect_timeout_s,
        # The server cancels a long statement; this timeout is for a silent server.
        "command_timeout": config.statement_timeout_s + config.connect_timeout_s,
        "server_settings": {
            "application_name": application,
            "statement_timeout": _milliseconds(config.statement_timeout_s),
            "idle_in_transaction_session_timeout": idle_timeout,
            "lock_timeout": idle_timeout,
            "timezone": "UTC",
        },
    }


def _milliseconds(seconds: float) -> str:
    """Return a timeout in PostgreSQL's unit; never 0, which means none."""
    return str(max(1, round(seconds * 1000)))


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

log = telemetry.logger("database")


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
