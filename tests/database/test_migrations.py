"""Migrations: each file once, in order, atomically; inconsistencies are refused."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qts.database import Database, DatabaseConfig, migrate, migration_status
from qts.database.sql import FOLDER, read_folder
from qts.domain import OperationError, RefusedError, SchemaTooNewError, Secret

FIRST = (FOLDER / "0001_schema_migration.sql").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three migrations."""
    (tmp_path / "0001_schema_migration.sql").write_text(FIRST)
    (tmp_path / "0002_note.sql").write_text("CREATE TABLE note (id int PRIMARY KEY);\n")
    (tmp_path / "0003_first_note.sql").write_text("INSERT INTO note VALUES (1);\n")
    return tmp_path


@pytest.fixture
async def empty(empty_database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(empty_database_url, DatabaseConfig(pool_min=1, pool_max=3)) as empty:
        yield empty


async def test_an_empty_database_is_brought_to_the_latest(empty: Database, folder: Path) -> None:
    before = await migration_status(empty, folder)
    assert (before.current, before.latest, before.applied) == (0, 3, [])
    assert [m.file for m in await migrate(empty, folder)] == [
        "0001_schema_migration.sql",
        "0002_note.sql",
        "0003_first_note.sql",
    ]
    after = await migration_status(empty, folder)
    assert (after.current, after.latest, after.pending) == (3, 3, [])
    assert [row.name for row in after.applied] == ["schema_migration", "note", "first_note"]
    assert await empty.fetchval("SELECT count(*) FROM note") == 1


async def test_running_again_does_nothing(empty: Database, folder: Path) -> None:
    await migrate(empty, folder)
    first = (await migration_status(empty, folder)).applied
    assert await migrate(empty, folder) == []
    assert (await migration_status(empty, folder)).applied == first


async def test_only_what_is_new_is_applied(empty: Database, folder: Path) -> None:
    await migrate(empty, folder)
    (folder / "0004_more.sql").write_text("INSERT INTO note VALUES (2);")
    assert [m.version for m in (await migration_status(empty, folder)).pending] == [4]
    assert [m.version for m in await migrate(empty, folder)] == [4]


async def test_two_pools_at_once_apply_each_file_once(
    empty_database_url: Secret, folder: Path
) -> None:
    (folder / "0002_note.sql").write_text("CREATE TABLE note (id int); SELECT pg_sleep(0.1);")

    async def one() -> list[int]:
        async with Database.open(empty_database_url, DatabaseConfig(pool_min=1)) as database:
            return [migration.version for migration in await migrate(database, folder)]

    results = await asyncio.gather(one(), one(), one())
    assert sorted(results) == [[], [], [1, 2, 3]]


async def test_two_processes_at_once_apply_each_file_once(
    empty: Database, empty_database_url: Secret, folder: Path
) -> None:
    (folder / "0002_note.sql").write_text("CREATE TABLE note (id int); SELECT pg_sleep(0.3);")
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from qts.database import Database, DatabaseConfig, migrate\n"
        "from qts.domain import Secret\n"
        "async def main():\n"
        "    url = Secret(sys.stdin.readline().strip())\n"
        "    async with Database.open(url, DatabaseConfig()) as database:\n"
        "        print(*(m.version for m in await migrate(database, Path(sys.argv[1]))))\n"
        "asyncio.run(main())\n"
    )

    async def one() -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate(empty_database_url.reveal().encode())
        assert process.returncode == 0
        return out.decode().strip()

    assert sorted(await asyncio.gather(one(), one())) == ["", "1 2 3"]
    assert (await migration_status(empty, folder)).current == 3


async def test_a_slow_migration_outlasts_the_statement_time_limit(
    empty_database_url: Secret, folder: Path
) -> None:
    (folder / "0002_note.sql").write_text("CREATE TABLE note (id int); SELECT pg_sleep(1.6);")
    config = DatabaseConfig(pool_min=1, pool_max=1, statement_timeout_s=0.5, connect_timeout_s=1.0)
    async with Database.open(empty_database_url, config) as database:
        assert len(await migrate(database, folder)) == 3
        with pytest.raises(OperationError):
            await database.execute("SELECT pg_sleep(5)")


async def test_a_failed_migration_is_undone_and_the_earlier_ones_stay(
    empty: Database, folder: Path
) -> None:
    broken = "CREATE TABLE half (id int);\n\nINSERT INTO nowhere VALUES (1);\n"
    (folder / "0003_first_note.sql").write_text(broken)
    (folder / "0004_more.sql").write_text("INSERT INTO note VALUES (2);")
    with pytest.raises(OperationError) as caught:
        await migrate(empty, folder)
    assert str(caught.value) == (
        'migration 0003_first_note.sql failed at line 3: relation "nowhere" does not exist'
    )
    assert (await migration_status(empty, folder)).current == 2
    assert await empty.fetchval("SELECT to_regclass('half')") is None
    (folder / "0003_first_note.sql").write_text("INSERT INTO note VALUES (1);")
    assert [m.version for m in await migrate(empty, folder)] == [3, 4]


async def test_a_migration_that_cannot_be_recorded_is_undone(empty: Database, folder: Path) -> None:
    (folder / "0003_first_note.sql").write_text(
        "CREATE TABLE half (id int); ALTER TABLE schema_migration ADD CHECK (version < 3);"
    )
    with pytest.raises(OperationError, match="violates check constraint"):
        await migrate(empty, folder)
    assert await empty.fetchval("SELECT to_regclass('half')") is None


async def test_a_failure_without_a_place_still_names_file_and_cause(
    empty: Database, folder: Path
) -> None:
    (folder / "0003_first_note.sql").write_text("INSERT INTO note VALUES (1), (1);")
    with pytest.raises(OperationError, match=r"0003_first_note\.sql failed: duplicate key value"):
        await migrate(empty, folder)


async def test_the_lock_is_free_after_a_failure(
    empty: Database, empty_database_url: Secret, folder: Path
) -> None:
    (folder / "0003_first_note.sql").write_text("nonsense")
    with pytest.raises(OperationError, match="syntax error"):
        await migrate(empty, folder)
    (folder / "0003_first_note.sql").write_text("INSERT INTO note VALUES (1);")
    async with asyncio.timeout(60), Database.open(empty_database_url, DatabaseConfig()) as other:
        assert [m.version for m in await migrate(other, folder)] == [3]


async def test_a_newer_schema_is_refused(empty: Database, folder: Path) -> None:
    await migrate(empty, folder)
    (folder / "0003_first_note.sql").unlink()
    for function in (migrate, migration_status):
        with pytest.raises(
            SchemaTooNewError, match="has schema 3, this QTS supports schemas up to 2"
        ):
            await function(empty, folder)


async def test_a_file_changed_after_it_was_applied_is_refused(
    empty: Database, folder: Path
) -> None:
    await migrate(empty, folder)
    (folder / "0002_note.sql").write_text("CREATE TABLE note (id bigint PRIMARY KEY);\n")
    (folder / "0004_more.sql").write_text("INSERT INTO note VALUES (2);")
    with pytest.raises(RefusedError, match=r"0002_note\.sql was changed after it was applied"):
        await migrate(empty, folder)
    assert await empty.fetchval("SELECT max(version) FROM schema_migration") == 3


async def test_line_ends_of_another_system_are_no_change(empty: Database, folder: Path) -> None:
    await migrate(empty, folder)
    (folder / "0002_note.sql").write_bytes(b"CREATE TABLE note (id int PRIMARY KEY);\r\n")
    assert await migrate(empty, folder) == []


async def test_a_missing_row_is_refused(empty: Database, folder: Path) -> None:
    await migrate(empty, folder)
    await empty.execute("DELETE FROM schema_migration WHERE version = 2")
    with pytest.raises(RefusedError, match="schema 3, but 2 rows"):
        await migrate(empty, folder)


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ("0005_far.sql", "0004 is missing"),
        ("0002_again.sql", "0002 is duplicate"),
        ("0000_before.sql", "is not named like 0001_first_step.sql"),
        ("4_short.sql", "is not named like 0001_first_step.sql"),
        ("0004_Big.sql", "is not named like 0001_first_step.sql"),
        ("0004-dash.sql", "is not named like 0001_first_step.sql"),
    ],
)
def test_a_folder_out_of_order_is_refused(folder: Path, extra: str, complaint: str) -> None:
    (folder / extra).write_text("SELECT 1;")
    with pytest.raises(RefusedError, match=complaint):
        read_folder(folder)


def test_the_real_folder_is_in_order_and_contains_no_transaction_control() -> None:
    migrations = read_folder(FOLDER)
    assert [m.version for m in migrations] == list(range(1, len(migrations) + 1))
    assert migrations[0].name == "schema_migration"
    control = re.compile(r"(?im)^\s*(BEGIN|COMMIT|ROLLBACK|START TRANSACTION|END)\s*;")
    assert [m.file for m in migrations if control.search(m.sql)] == []
    assert {path.suffix for path in FOLDER.iterdir()} == {".sql"}


async def test_the_real_folder_migrates_an_empty_database(empty: Database) -> None:
    assert len(await migrate(empty)) == len(read_folder(FOLDER))
    assert await migrate(empty) == []


async def test_the_test_database_is_already_migrated(database: Database) -> None:
    assert (await migration_status(database)).pending == []
