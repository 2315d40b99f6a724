"""SQL files: the named queries of a package, and the numbered migrations.

A migration is applied once, in order, in a separate transaction; a session lock serialises
concurrent ones.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qts.domain import OperationError, RefusedError, SchemaTooNewError

if TYPE_CHECKING:
    from asyncpg import PostgresError

    from qts.database.connection import Connection
    from qts.database.pool import Database


_MARKER = re.compile(r"^-- name: (.*)$\n?", re.MULTILINE)


class Queries:
    """SQL statements of one file, one attribute per name."""

    def __init__(self, texts: dict[str, str], source: str) -> None:
        self._texts = texts
        self._source = source

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no query named {name!r}") from None

    def __dir__(self) -> list[str]:
        return sorted(self._texts)


def load_queries(package: str) -> Queries:
    """Read `queries.sql` of a package, where `-- name: claim_events` starts a statement.

    Raise ValueError for a statement without a name, a name without a statement, and a name that is
    not an identifier or not unique.
    """
    source = f"{package.replace('.', '/')}/queries.sql"
    return parse_queries(files(package).joinpath("queries.sql").read_text("utf-8"), source)


def parse_queries(text: str, source: str) -> Queries:
    first, *rest = _MARKER.split(text)
    if _has_statement(first):
        raise ValueError(f"{source}: a statement has no name")
    texts: dict[str, str] = {}
    for name, statement in zip(rest[::2], rest[1::2], strict=True):
        if not name.isidentifier() or name in texts:
            raise ValueError(f"{source}: query name {name!r} is not an identifier or not unique")
        if not _has_statement(statement):
            raise ValueError(f"{source}: query {name!r} has no statement")
        texts[name] = statement.rstrip() + "\n"
    return Queries(texts, source)


def _has_statement(text: str) -> bool:
    return any(line and not line.startswith("--") for line in map(str.strip, text.splitlines()))


FOLDER = Path(__file__).parent / "migrations"
LOCK_KEY = int.from_bytes(b"qts schm")  # any constant
TIMEOUT_S = 3600.0  # of a migration, and of the wait for a concurrent one

_FILE_NAME = re.compile(r"(?!0000)([0-9]{4})_([a-z0-9_]+)\.sql")
_APPLIED = "SELECT version, name, checksum, applied_at FROM schema_migration ORDER BY version"
_RECORD = "INSERT INTO schema_migration (version, name, checksum) VALUES ($1, $2, $3)"


class Migration(msgspec.Struct, frozen=True):
    """Migration file."""

    version: int
    name: str
    checksum: str
    sql: str

    @property
    def file(self) -> str:
        return f"{self.version:04}_{self.name}.sql"


class AppliedMigration(msgspec.Struct, frozen=True):
    """Row of schema_migration."""

    version: int
    name: str
    checksum: str
    applied_at: datetime


class MigrationStatus(msgspec.Struct, frozen=True):
    """Schema version of the database (current) and of this program (latest)."""

    current: int
    latest: int
    applied: list[AppliedMigration]
    pending: list[Migration]


async def migrate(database: Database, folder: Path = FOLDER) -> list[Migration]:
    """Apply the pending migrations and return them."""
    known = read_folder(folder)
    async with database.connection() as connection:
        # The pool resets session settings and locks when the connection is released.
        await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY, timeout=TIMEOUT_S)
        pending = _compare(known, await _applied(connection)).pending
        for migration in pending:
            await _apply(connection, migration)
        return pending


async def migration_status(database: Database, folder: Path = FOLDER) -> MigrationStatus:
    """Return the applied and the pending migrations."""
    known = read_folder(folder)
    async with database.connection() as connection:
        return _compare(known, await _applied(connection))


def read_folder(folder: Path) -> list[Migration]:
    """Return the files in order; refuse missing or duplicate numbers and invalid names."""
    found: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        name = _FILE_NAME.fullmatch(path.name)
        if name is None:
            raise RefusedError(f"migration {path.name} is not named like 0001_first_step.sql")
        sql = path.read_text(encoding="utf-8")  # newlines become \n: the checksum is portable
        checksum = hashlib.sha256(sql.encode()).hexdigest()
        found.append(Migration(int(name[1]), name[2], checksum, sql))
    for expected, migration in enumerate(found, start=1):
        if migration.version != expected:
            wrong = "is duplicate" if migration.version < expected else "is missing"
            number = min(migration.version, expected)
            raise RefusedError(
                f"migration {number:04} {wrong} in {folder.name} (see {migration.file})"
            )
    return found


async def _applied(connection: Connection) -> list[AppliedMigration]:
    if await connection.fetchval("SELECT to_regclass('schema_migration')") is None:
        return []
    return [AppliedMigration(*row) for row in await connection.fetch(_APPLIED)]


def _compare(known: list[Migration], applied: list[AppliedMigration]) -> MigrationStatus:
    current, latest = (rows[-1].version if rows else 0 for rows in (applied, known))
    if current > latest:
        raise SchemaTooNewError(
            f"the database has schema {current}, this QTS supports schemas up to {latest}; "
            "install the QTS that migrated it, or a newer one"
        )
    if [row.version for row in applied] != list(range(1, current + 1)):
        raise RefusedError(
            f"schema_migration is incomplete: schema {current}, but {len(applied)} rows"
        )
    for row, migration in zip(applied, known, strict=False):
        if row.checksum != migration.checksum:
            raise RefusedError(
                f"migration {migration.file} was changed after it was applied at "
                f"{row.applied_at:%Y-%m-%d %H:%M:%S} UTC; restore it and write a new file instead"
            )
    return MigrationStatus(current, latest, applied, known[current:])


async def require_schema(database: Database, version: int | None = None) -> None:
    """Refuse a database whose schema is older than a version, the latest without one."""
    found = await migration_status(database)
    if found.current < (found.latest if version is None else version):
        raise RefusedError(
            f"the database at {database.where} has schema {found.current}, and this QTS has"
            f" {found.latest}; start qts run, which migrates it, or run qts ops database migrate"
        )


async def _apply(connection: Connection, migration: Migration) -> None:
    from asyncpg import PostgresError  # here: readers of queries do without the driver

    from qts.database.connection import begin, commit, is_lost, rollback

    await connection.execute(begin("read committed", read_only=False))
    try:
        await connection.execute(migration.sql, timeout=TIMEOUT_S)
        await connection.execute(_RECORD, migration.version, migration.name, migration.checksum)
        await commit(connection)
    except BaseException as error:
        await rollback(connection)
        if isinstance(error, PostgresError) and not is_lost(error, connection):
            raise OperationError(
                f"migration {migration.file} failed{_location(error, migration)}"
            ) from error
        raise


def _location(error: PostgresError, migration: Migration) -> str:
    """Return ` at line 3: error text`, in one line."""
    position = getattr(error, "position", None)
    line = migration.sql.count("\n", 0, int(position) - 1) + 1 if position else None
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return f" at line {line}: {text}" if line else f": {text}"
