"""The round of all symbols: whose turn it is, who is under way, who is asked again first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from qts.domain import Clock
from qts.feed.quote_requests import Chosen

_RETRIES = 3  # at once; after that a batch waits for its turn, so that it cannot stop the others


class Scan:
    """Symbols in batches of one request each; a batch is under way once at a time."""

    def __init__(
        self, symbols: Sequence[str], per_call: int, clock: Clock, repeat: Callable[[], None]
    ) -> None:
        """`repeat` is told of a batch that will be asked for again at once."""
        starts = range(0, len(symbols), per_call)
        self.batches = [list(symbols[start : start + per_call]) for start in starts]
        self._clock = clock
        self._repeat = repeat
        self._again: deque[int] = deque()
        self._failures: dict[int, int] = {}
        self._flying: set[int] = set()
        self._landed = asyncio.Event()
        self.position = self.scans = 0
        self.last_s = 0.0
        self._began_ns = clock.monotonic_ns()

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def begin(self) -> None:
        self._began_ns = self._clock.monotonic_ns()

    async def ready(self) -> None:
        """Until a batch is not under way; for ever where there are no symbols."""
        while len(self._flying) >= len(self.batches):
            self._landed.clear()
            await self._landed.wait()

    def choose(self) -> Chosen:
        number = self._again.popleft() if self._again else self._turn()
        self._flying.add(number)

        def done(good: bool) -> None:
            self._flying.discard(number)
            self._landed.set()
            failures = 0 if good else self._failures.get(number, 0) + 1
            self._failures[number] = failures
            if failures and failures % (_RETRIES + 1):
                self._again.append(number)
                self._repeat()

        return self.batches[number], done

    def _turn(self) -> int:
        """The next batch in the round that is not under way."""
        while True:
            number = self.position
            self.position = (number + 1) % len(self.batches)
            if self.position == 0:
                now = self._clock.monotonic_ns()
                self.last_s = (now - self._began_ns) / 1e9
                self._began_ns = now
                self.scans += 1
            if number not in self._flying and number not in self._again:
                return number
