"""Short-lived results of queries, which open pages and programs share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from qts.domain import Clock

TTL_S = 0.5
MAX_ENTRIES = 64


class QueryCache:
    """Results by request; concurrent requests share one query in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[int, asyncio.Task[bytes]]] = {}

    async def get(self, key: str, query: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        now = self._clock.monotonic_ns()
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > TTL_S * 1e9:
            self._entries.pop(key, None)  # so that the oldest is first
            while len(self._entries) >= MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            entry = (now, asyncio.create_task(query()))
            self._entries[key] = entry
        try:
            return await asyncio.shield(entry[1])
        except Exception:
            self._entries.pop(key, None)  # the next request runs the query again
            raise

    def clear(self) -> None:
        """Drop all results, after an action changed something."""
        self._entries.clear()
