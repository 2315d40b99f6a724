"""Answers kept for a moment: ten open pages ask the database once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from qts.domain import Clock

KEPT_S = 0.5
KEPT = 64


class Answers:
    """By question; an answer that is being made is waited for by all who ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: dict[str, tuple[int, asyncio.Task[bytes]]] = {}

    async def get(self, question: str, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        now = self._clock.monotonic_ns()
        kept = self._made.get(question)
        if kept is None or now - kept[0] > KEPT_S * 1e9:
            self._made.pop(question, None)  # so that the oldest stands first
            while len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            kept = (now, asyncio.create_task(make()))
            self._made[question] = kept
        try:
            return await asyncio.shield(kept[1])
        except Exception:
            self._made.pop(question, None)  # the next one asks anew
            raise

    def forget(self) -> None:
        """Somebody changed something."""
        self._made.clear()
