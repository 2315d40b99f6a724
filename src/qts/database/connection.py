"""One connection: the part of asyncpg the rooms use, JSON columns, and transaction words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import asyncpg
import msgspec

from qts.database.errors import DRIVER_ERRORS, is_gone
from qts.domain import OperationError, RefusedError

OLDEST_MAJOR = 15

Isolation = Literal["read committed", "repeatable read", "serializable"]

_BEGIN: dict[Isolation, str] = {
    "read committed": "BEGIN ISOLATION LEVEL READ COMMITTED",
    "repeatable read": "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "serializable": "BEGIN ISOLATION LEVEL SERIALIZABLE",
}
_JSONB_VERSION = b"\x01"


class Row(Protocol):
    """A row of a result; columns by name or by place."""

    def __getitem__(self, column: str | int, /) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def keys(self) -> Iterable[str]: ...
    def items(self) -> Iterable[tuple[str, Any]]: ...


class Connection(Protocol):
    """Arguments are bound by the server ($1, $2 …), never written into the query."""

    async def execute(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - asyncpg's own word
    ) -> str: ...
    async def executemany(self, command: str, args: Iterable[Sequence[Any]]) -> None: ...
    async def fetch(self, query: str, *args: Any) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: Any) -> Row | None: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Sequence[Any]], columns: Sequence[str]
    ) -> str: ...


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]
    """Tidied up on its way back to the pool only where a caller had the whole of it.

    A statement, or a transaction with SET LOCAL, leaves nothing behind; to ask the server to reset
    itself after each would be one more answer to wait for.
    """

    lent = False

    def get_reset_query(self) -> str:
        query = super().get_reset_query() if self.lent else ""
        self.lent = False
        return str(query)


async def configure_connection(connection: Any, where: str) -> None:
    """Make a new connection ours: refuse an old server, read and write JSON with msgspec.

    A `msgspec.Raw` value is stored as it is; NaN and the infinities become null, as in JSON.
    """
    version = connection.get_server_version()
    if version.major < OLDEST_MAJOR:
        raise RefusedError(
            f"PostgreSQL at {where} is version {version.major}.{version.minor}; "
            f"QTS needs {OLDEST_MAJOR} or newer"
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
    words = _BEGIN[isolation] + (" READ ONLY" if read_only else "")
    return words + ("; SET LOCAL synchronous_commit = on" if durable else "")


async def commit(connection: Connection) -> None:
    """Commit, or fail when PostgreSQL rolled back because an error in the block was swallowed."""
    if await connection.execute("COMMIT") == "ROLLBACK":
        raise OperationError(
            "the transaction was rolled back: a statement in it had failed and its error was "
            "caught; put such a statement in a savepoint"
        )


async def rollback(connection: Any) -> None:
    """Roll back; when even that fails the connection is cut, and the server does it."""
    try:
        await connection.execute("ROLLBACK")
    except DRIVER_ERRORS:
        if not is_gone(connection):
            connection.terminate()


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """Part of a transaction that may fail alone: undone on an error, which is raised on."""
    await connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        if not is_gone(connection):
            await connection.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
        raise
    await connection.execute("RELEASE SAVEPOINT part")
