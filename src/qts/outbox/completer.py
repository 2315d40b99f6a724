"""Outcomes on their way to the database: gathered while the last batch is written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import asyncpg

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, QtsError
from qts.outbox import handling
from qts.outbox.claims import ClaimedEvent, Claims
from qts.outbox.handling import HandlerResult, backoff_s
from qts.outbox.horizon import Horizon

# What a database can raise that another try may mend.
TROUBLE = (QtsError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
AT_ONCE = 1000
GATHER_S = 0.002  # so long outcomes wait for others, while more events wait for their handlers
LINGER_S = 0.01  # a connection is kept so long for what ends next
RETRY_S = (0.05, 2.0)

log = telemetry.logger("outbox")


class BatchCompleter:
    """Writes outcomes until it is cancelled; none is dropped while we may still hold the event."""

    def __init__(
        self,
        database: Database,
        claims: Claims,
        horizon: Horizon,
        clock: Clock,
        settled: Callable[[Sequence[ClaimedEvent]], None],
    ) -> None:
        self._database = database
        self._claims = claims
        self._horizon = horizon
        self._clock = clock
        self._settled = settled
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._done: list[ClaimedEvent] = []
        self._failed: list[tuple[ClaimedEvent, HandlerResult, float]] = []
        self._unused: list[ClaimedEvent] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered = 0
        self._enough = claims.config.batch
        self._more = asyncio.Event()
        self._nothing = asyncio.Event()
        self._nothing.set()

    @property
    def backlog(self) -> int:
        return len(self._done) + len(self._failed) + len(self._unused)

    def add(self, claimed: ClaimedEvent, outcome: HandlerResult) -> None:
        if outcome.result == "done":
            self._done.append(claimed)
        else:
            pause = backoff_s(self._claims.config, claimed.delivery.attempt, self._chance)
            self._failed.append((claimed, outcome, pause))
        self._gathered += 1
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self.flush)
        elif self._gathered >= self._enough:
            self.flush()

    def flush(self) -> None:
        """Write what there is: nothing more is about to end."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
            self._gathered = 0
            self._more.set()

    def release(self, unused: Sequence[ClaimedEvent]) -> None:
        """Return events that were not tried."""
        self._unused.extend(unused)
        self._more.set()

    async def drain(self) -> None:
        """Wait until all is written, but no longer than the locks would last anyway."""
        if not self.backlog:
            return
        self._nothing.clear()
        self._more.set()
        try:
            async with asyncio.timeout(self._claims.config.lock_ttl_s):
                await self._nothing.wait()
        except TimeoutError:
            log.error("outcomes could not be written; the events will come again", n=self.backlog)

    async def run(self) -> None:
        delay_s = RETRY_S[0]
        while True:
            await self._more.wait()
            try:
                async with self._database.connection() as connection:
                    await self._claims.prepare(connection)
                    while await self._has_more():
                        self._more.clear()
                        await self._write(connection)
                        await self._horizon.move(connection, self._clock.monotonic_ns())
                        delay_s = RETRY_S[0]
            except TROUBLE as error:
                log.warning("cannot write outcomes, trying again", error=str(error))
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_S[1])
                self._more.set()

    async def _has_more(self) -> bool:
        """Whether there is something to write; for a moment it is waited for."""
        if self.backlog and self._gathering is None:
            return True
        if not self.backlog:
            self._nothing.set()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._more.wait()
        except TimeoutError:
            return False
        return True

    async def _write(self, connection: Connection) -> None:
        stream = self._claims.stream
        if done := self._done[:AT_ONCE]:
            ours = await self._claims.complete(connection, done)
            del self._done[: len(done)]
            handling.count_results(stream, "done", ours)
            self._end(done, ours)
        if failed := self._failed[:AT_ONCE]:
            ours = await self._claims.fail(connection, failed)
            del self._failed[: len(failed)]
            for result in ("retry", "dead"):
                handling.count_results(
                    stream, result, sum(_result(each) == result for each in failed)
                )
            self._end([claimed for claimed, _, _ in failed], ours)
        if unused := self._unused[:AT_ONCE]:
            await self._claims.release(connection, unused)
            del self._unused[: len(unused)]
            self._settled(unused)

    def _end(self, ended: Sequence[ClaimedEvent], ours: int) -> None:
        if stale := len(ended) - ours:
            handling.count_results(self._claims.stream, "stale", stale)
            log.warning(
                "outcomes came too late and were refused: others hold the events now",
                stream=self._claims.stream,
                worker=self._claims.name,
                events=stale,
            )
        self._settled(ended)


def _result(failed: tuple[ClaimedEvent, HandlerResult, float]) -> str:
    claimed, outcome, _ = failed
    used_up = claimed.delivery.attempt >= claimed.delivery.max_attempts
    return "dead" if used_up else outcome.result
