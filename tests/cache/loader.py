"""CacheLoaders for tests: values in a table or in memory, counted and delayed on demand."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from qts.cache import (
    CachedOrder,
    CachedPosition,
    CachedRisk,
    CachedStrategyParams,
    CacheEntry,
    TradeIds,
)
from qts.database import Database
from qts.domain import UnreachableError

_TYPES: dict[str, type[CacheEntry]] = {
    each.kind: each
    for each in (CachedPosition, CachedRisk, CachedOrder, CachedStrategyParams, TradeIds)
}


class TableLoader:
    """CacheLoader on PostgreSQL: one row per value, as JSON."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.loads: Counter[tuple[str, str]] = Counter()

    async def create(self) -> None:
        await self._database.execute(
            "CREATE TABLE cached (kind text, name text, body jsonb, PRIMARY KEY (kind, name))"
        )

    async def store(self, value: CacheEntry) -> None:
        await self._database.execute(
            "INSERT INTO cached VALUES ($1, $2, $3) "
            "ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body",
            value.kind,
            value.name,
            msgspec.to_builtins(value),
        )

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        self.loads[kind, name] += 1
        body = await self._database.fetchval(
            "SELECT body FROM cached WHERE kind = $1 AND name = $2", kind, name
        )
        return None if body is None else msgspec.convert(body, _TYPES[kind])


class MemoryLoader:
    """CacheLoader in memory that can be delayed and made to fail."""

    def __init__(self, *values: CacheEntry) -> None:
        self.rows = {(value.kind, value.name): value for value in values}
        self.loads: Counter[tuple[str, str]] = Counter()
        self.open = asyncio.Event()
        self.open.set()
        self.is_down = False

    def store(self, value: CacheEntry) -> None:
        self.rows[value.kind, value.name] = value

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        self.loads[kind, name] += 1
        found = self.rows.get((kind, name))  # read before the wait, as a slow reply would be
        await self.open.wait()
        if self.is_down:
            raise UnreachableError("the database is down")
        return found
