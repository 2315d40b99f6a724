"""One connection: the asyncpg methods in use, JSON columns, and transaction control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import asyncpg
import msgspec

from qts.database.errors import DRIVER_ERRORS, is_gone
from qts.domain import OperationError, RefusedError

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
