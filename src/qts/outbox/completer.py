"""Batched writing of handler results: gathered while the previous batch is written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import asyncpg

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, QtsError
from qts.outbox import handling
from qts.outbox.claims import ClaimedEvent, Claims, Horizon
from qts.outbox.handling import HandlerResult, backoff_s

# Errors of a database call that a retry may resolve.
TRANSIENT_ERRORS = (QtsError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
MAX_BATCH = 1000
GATHER_INTERVAL_S = 0.002  # how long results wait for others while handlers are busy
LINGER_S = 0.01  # how long an idle connection is kept for the next result
BACKOFF_S = (0.05, 2.0)

log = telemetry.logger("outbox")


class BatchCompleter:
    """Writes results until cancelled; retries each while the worker may still hold its event."""

    def __init__(
        self,
        database: Database,
        claims: Claims,
        horizon: Horizon,
        clock: Clock,
        on_completed: Callable[[Sequence[ClaimedEvent]], None],
    ) -> None:
        self._database = database
        self._claims = claims
        self._horizon = horizon
        self._clock = clock
        self._on_completed = on_completed
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._done: list[ClaimedEvent] = []
        self._failed: list[tuple[ClaimedEvent, HandlerResult, float]] = []
        self._unused: list[ClaimedEvent] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered = 0
        self._flush_at = claims.config.batch
        self._more = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def backlog(self) -> int:
        return len(self._done) + len(self._failed) + len(self._unused)

    def add(self, claimed: ClaimedEvent, result: HandlerResult) -> None:
        if result.kind == "done":
            self._done.append(claimed)
        else:
            delay_s = backoff_s(self._claims.config, claimed.delivery.attempt, self._random)
            self._failed.append((claimed, result, delay_s))
        self._gathered += 1
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_INTERVAL_S, self.flush)
        elif self._gathered >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Write the gathered results without waiting for more."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
            self._gathered = 0
            self._more.set()

    def release(self, unused: Sequence[ClaimedEvent]) -> None:
        """Release events that were not attempted."""
        self._unused.extend(unused)
        self._more.set()

    async def drain(self) -> None:
        """Wait until all results are written, at most for the lock TTL."""
        if not self.backlog:
            return
        self._drained.clear()
        self._more.set()
        try:
            async with asyncio.timeout(self._claims.config.lock_ttl_s):
                await self._drained.wait()
        except TimeoutError:
            log.error("results not written; events will be redelivered", count=self.backlog)

    async def run(self) -> None:
        delay_s = BACKOFF_S[0]
        while True:
            await self._more.wait()
            try:
                async with self._database.connection() as connection:
                    await self._claims.prepare(connection)
                    while await self._has_more():
                        self._more.clear()
                        await self._write(connection)
                        await self._horizon.update(connection, self._clock.monotonic_ns())
                        delay_s = BACKOFF_S[0]
            except TRANSIENT_ERRORS as error:
                log.warning(
                    "writing results failed; retrying", error=str(error), retry_in_s=delay_s
                )
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, BACKOFF_S[1])
                self._more.set()

    async def _has_more(self) -> bool:
        """Return whether there are results to write; wait a moment for them."""
        if self.backlog and self._gathering is None:
            return True
        if not self.backlog:
            self._drained.set()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._more.wait()
        except TimeoutError:
            return False
        return True

    async def _write(self, connection: Connection) -> None:
        stream = self._claims.stream
        if done := self._done[:MAX_BATCH]:
            count = await self._claims.complete(connection, done)
            del self._done[: len(done)]
            handling.count_results(stream, "done", count)
            self._complete(done, count)
        if failed := self._failed[:MAX_BATCH]:
            count = await self._claims.fail(connection, failed)
            del self._failed[: len(failed)]
            for result in ("retry", "dead"):
                handling.count_results(
                    stream, result, sum(_final_kind(each) == result for each in failed)
                )
            self._complete([claimed for claimed, _, _ in failed], count)
        if unused := self._unused[:MAX_BATCH]:
            await self._claims.release(connection, unused)
            del self._unused[: len(unused)]
            self._on_completed(unused)

    def _complete(self, events: Sequence[ClaimedEvent], count: int) -> None:
        if stale := len(events) - count:
            handling.count_results(self._claims.stream, "stale", stale)
            log.warning(
                "results discarded; locks expired and events were reclaimed",
                stream=self._claims.stream,
                worker=self._claims.name,
                count=stale,
            )
        self._on_completed(events)


def _final_kind(failed: tuple[ClaimedEvent, HandlerResult, float]) -> str:
    claimed, result, _ = failed
    is_last = claimed.delivery.attempt >= claimed.delivery.max_attempts
    return "dead" if is_last else result.kind
