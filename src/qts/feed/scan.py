"""Scan of all symbols: the next batch, batches in flight, and retries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from qts.domain import Clock
from qts.feed.quote_requests import Chosen

_MAX_RETRIES = 3  # then the batch waits for its turn


class Scan:
    """Symbols in batches of one request; a batch is in flight once at a time."""

    def __init__(
        self, symbols: Sequence[str], per_call: int, clock: Clock, on_retry: Callable[[], None]
    ) -> None:
        """Create the batches; `on_retry` is called for a batch that is retried at once."""
        starts = range(0, len(symbols), per_call)
        self.batches = [list(symbols[start : start + per_call]) for start in starts]
        self._clock = clock
        self._on_retry = on_retry
        self._retries: deque[int] = deque()
        self._failures: dict[int, int] = {}
        self._in_flight: set[int] = set()
        self._finished = asyncio.Event()
        self.position = self.scans = 0
        self.last_s = 0.0
        self._started_ns = clock.monotonic_ns()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def start(self) -> None:
        self._started_ns = self._clock.monotonic_ns()

    async def ready(self) -> None:
        """Wait until a batch is not in flight; forever if there are no symbols."""
        while len(self._in_flight) >= len(self.batches):
            self._finished.clear()
            await self._finished.wait()

    def choose(self) -> Chosen:
        number = self._retries.popleft() if self._retries else self._next()
        self._in_flight.add(number)

        def done(succeeded: bool) -> None:
            self._in_flight.discard(number)
            self._finished.set()
            failures = 0 if succeeded else self._failures.get(number, 0) + 1
            self._failures[number] = failures
            if failures and failures % (_MAX_RETRIES + 1):
                self._retries.append(number)
                self._on_retry()

        return self.batches[number], done

    def _next(self) -> int:
        """Return the next batch of the scan that is not in flight."""
        while True:
            number = self.position
            self.position = (number + 1) % len(self.batches)
            if self.position == 0:
                now = self._clock.monotonic_ns()
                self.last_s = (now - self._started_ns) / 1e9
                self._started_ns = now
                self.scans += 1
            if number not in self._in_flight and number not in self._retries:
                return number
