"""PostgreSQL and Valkey for tests: servers once per session, a fresh database per test.

QTS_TEST_DATABASE_URL and QTS_TEST_REDIS_URL name servers to use instead of embedded ones; the
PostgreSQL role needs the right to create databases.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from qts.database import Database, DatabaseConfig, migrate
from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home

_numbers = itertools.count(1)


def name_database(url: Secret, name: str) -> Secret:
    """Return the URL of another database on the same server."""
    return Secret(urlsplit(url.reveal())._replace(path=f"/{name}").geturl())


@pytest.fixture(scope="session")
def embedded_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServers]:
    """PostgreSQL and Valkey of this session; used only if no URL is given."""
    with EmbeddedServers(Home.at(tmp_path_factory.mktemp("home")), EmbeddedConfig()) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> Secret:
    """A server on which databases may be created."""
    if url := os.environ.get("QTS_TEST_DATABASE_URL"):
        return Secret(url)
    servers: EmbeddedServers = request.getfixturevalue("embedded_servers")
    assert servers.postgres is not None
    return servers.postgres.url


@pytest.fixture(scope="session")
def valkey_url(request: pytest.FixtureRequest) -> Secret:
    if url := os.environ.get("QTS_TEST_REDIS_URL"):
        return Secret(url)
    servers: EmbeddedServers = request.getfixturevalue("embedded_servers")
    assert servers.valkey is not None
    return servers.valkey.url


@pytest.fixture(scope="session")
async def postgres_admin(postgres_url: Secret) -> AsyncIterator[Any]:
    """Connection outside the pools under test; creates databases and terminates backends."""
    connection = await asyncpg.connect(postgres_url.reveal())
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
async def migrated_template(postgres_url: Secret, postgres_admin: Any) -> AsyncIterator[str]:
    """The name of a migrated database to clone; migrating once keeps tests fast."""
    name = f"qts_test_{os.getpid()}_template"
    await postgres_admin.execute(f'CREATE DATABASE "{name}"')
    try:
        config = DatabaseConfig(pool_min=1, pool_max=1)
        async with Database.open(name_database(postgres_url, name), config) as database:
            await migrate(database)
        yield name
    finally:
        await postgres_admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def database_url(
    postgres_url: Secret, postgres_admin: Any, migrated_template: str
) -> AsyncIterator[Secret]:
    """A migrated database for one test."""
    async with new_database(postgres_url, postgres_admin, migrated_template) as url:
        yield url


@pytest.fixture
async def empty_database_url(postgres_url: Secret, postgres_admin: Any) -> AsyncIterator[Secret]:
    """A database without our schema."""
    async with new_database(postgres_url, postgres_admin, "template0") as url:
        yield url


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=5)) as database:
        yield database


@asynccontextmanager
async def new_database(url: Secret, admin: Any, template: str) -> AsyncIterator[Secret]:
    """Clone a database for one test, or for several that leave it as it is."""
    name = f"qts_test_{os.getpid()}_{next(_numbers)}"
    # file_copy takes half the CPU and writes of wal_log; in memory its checkpoints cost nothing.
    await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
    try:
        yield name_database(url, name)
    finally:
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
