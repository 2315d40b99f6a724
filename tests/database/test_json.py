"""JSON columns: values are read back unchanged, or refused."""

# ruff: noqa: PT012 - what raises is a whole transaction block

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qts.database import Database

# PostgreSQL keeps no NUL in text; lone surrogates are not Unicode text.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(-1e15, 1e15)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
@pytest.mark.parametrize("kind", ["jsonb", "json"])
async def test_a_value_comes_back_as_it_was(database: Database, kind: str, value: Any) -> None:
    query = {"jsonb": "SELECT $1::jsonb", "json": "SELECT $1::json"}[kind]
    stored = await database.fetchval(query, value)
    # JSON null is a value of the column type, and msgspec reads it as None.
    assert stored == value


async def test_python_none_is_sql_null_inside_a_row(database: Database) -> None:
    assert await database.fetchval("SELECT $1::jsonb IS NULL", None) is True


async def test_encoded_bytes_are_stored_without_encoding_them_again(database: Database) -> None:
    encoded = msgspec.Raw(b'{"price": 12.5, "name": "\xea\xb8\xb0\xec\x95\x84"}')
    assert await database.fetchval("SELECT $1::jsonb ->> 'name'", encoded) == "기아"


async def test_a_struct_is_stored_by_its_fields(database: Database) -> None:
    class Quote(msgspec.Struct):
        symbol: str
        price: float

    stored = await database.fetchval("SELECT $1::jsonb", Quote("005930", 71_200.0))
    assert stored == {"symbol": "005930", "price": 71_200.0}


@pytest.mark.parametrize("value", ["a\0b", {"a\0": 1}, ["\0"]])
async def test_nul_is_refused_and_nothing_is_written(database: Database, value: Any) -> None:
    await database.execute("CREATE TABLE note (body jsonb)")
    with pytest.raises(asyncpg.UntranslatableCharacterError):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES ('1')")
            await connection.execute("INSERT INTO note VALUES ($1)", value)
    assert await database.fetchval("SELECT count(*) FROM note") == 0


async def test_nul_in_a_text_column_is_refused(database: Database) -> None:
    with pytest.raises(asyncpg.CharacterNotInRepertoireError):
        await database.fetchval("SELECT $1::text", "a\0b")
