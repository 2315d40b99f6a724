"""The consumer on PostgreSQL.

    claimer ─▶ waiting lines ─▶ slots run handlers ─▶ outcomes ─▶ settler
       ▲ wake-ups, polling      time limits · locks kept

A line is what has to be handled one after another: the events of one aggregate where the stream
is ordered, else a single event. Claims and outcomes are batches, on connections that are given
back when there is nothing to do. Every loop lives through the loss of its server.

The heartbeat that keeps locks runs on the same loop as the handlers, on purpose: a handler that
blocks the loop for good also stops the heartbeat, so its events are taken over instead of being
held for ever.

Events left behind by a lost worker are taken up one at a time. One of them may be what killed
it, and must not use up the attempts of the others with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from qts import telemetry
from qts.database import Connection, Database, ListenStarted
from qts.domain import Clock, SystemClock
from qts.outbox.bus import EventDispatcher
from qts.outbox.claims import ClaimedEvent, Claims
from qts.outbox.completer import TROUBLE, BatchCompleter
from qts.outbox.config import StreamConfig
from qts.outbox.handler_pool import HandlerPool
from qts.outbox.horizon import BEGINNING, Horizon

FULL_EVERY_NS = 1_000_000_000  # how often everything is looked over, not only what is new
FULL_SHARE = 50  # of our time at most a fiftieth, when there is much to look over
GROW = 4  # by how much more is taken at once while handlers keep up
LINGER_S = 0.5  # a connection is kept so long for what comes next
FIRST_POLL_S = 0.05  # while nobody listens yet
RETRY_S = (0.05, 5.0)
SLOW_S = 0.5  # a batch that waits longer for its handlers is too large
QUICK_S = 0.1

log = telemetry.logger("outbox")


class OutboxWorker:
    """Handles one stream; several may do so at once, here and elsewhere. Runs once."""

    def __init__(
        self,
        database: Database,
        stream: str,
        config: StreamConfig,
        dispatcher: EventDispatcher,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._config = config
        self._clock = clock or SystemClock()
        self._claims = Claims(stream, config)
        self._horizon = Horizon(stream, config.ordered)
        self._settler = BatchCompleter(
            database, self._claims, self._horizon, self._clock, self._on_settled
        )
        self._hands = HandlerPool(self._claims, dispatcher, self._settler, self._clock)
        self._stopping = False
        self._wake = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._poll_s = min(FIRST_POLL_S, config.poll_max_s)
        self._want = min(config.concurrency, config.batch)
        self._full_at_ns = self._full_soonest_ns = self._clock.monotonic_ns() + FULL_EVERY_NS
        self._new = True  # everything is still to be looked over
        self._suspects = False  # there may be events of lost workers
        self._suspect: ClaimedEvent | None = None

    @property
    def name(self) -> str:
        return self._claims.name

    def stop(self) -> None:
        self._stopping = True
        self._hands.release_waiting()
        self._wake.set()
        self._hands.room.set()

    async def run(self) -> None:
        log.info("worker starts", stream=self._claims.stream, worker=self.name)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._listen()),
                    group.create_task(self._settler.run()),
                    group.create_task(self._hands.enforce_timeouts()),
                    group.create_task(self._keep_locks()),
                ]
                self._hands.open()
                await self._claim_until_stopped()
                await self._hands.wait_idle()
                await self._settler.drain()
                for helper in helpers:
                    helper.cancel()
        finally:
            self._hands.close()
        log.info("worker stopped", stream=self._claims.stream, worker=self.name)

    async def _claim_until_stopped(self) -> None:
        delay_s, longest_s = RETRY_S
        while not self._stopping:
            try:
                async with self._database.connection() as connection:
                    await self._claims.prepare(connection)
                    idle_s = await self._claim_while_busy(connection)
                delay_s = RETRY_S[0]
            except TROUBLE as error:
                log.warning("cannot claim, trying again", worker=self.name, error=str(error))
                idle_s, delay_s = delay_s, min(delay_s * 2, longest_s)
                self._wake.clear()
            await self._sleep(idle_s)

    async def _claim_while_busy(self, connection: Connection) -> float:
        """Claim until it was quiet for a while; answers how long there is nothing to look for."""
        while not self._stopping:
            idle_s = await self._look(connection)
            if not await self._sleep(min(idle_s, LINGER_S)) and idle_s > LINGER_S:
                return idle_s - LINGER_S
        return 0.0

    async def _look(self, connection: Connection) -> float:
        """Take what is due; answers how long there is nothing more to look for."""
        waited_s = await self._until_room()
        self._wake.clear()
        began_ns = self._clock.monotonic_ns()
        full = began_ns >= self._full_at_ns
        claimed = await self._take(connection, began_ns, full)
        if full:
            await self._bury(connection)
            self._full_next(began_ns, at_once=bool(claimed) and self._is_behind(claimed))
        recovered = await self._recover(connection)
        more = recovered or len(claimed) >= self._want or self._wake.is_set()
        self._adapt(len(claimed), waited_s)
        if more:
            return 0.0
        self._caught_up.set()
        if self._new:  # the first time that there is time for it
            self._new = False
            self._full_at_ns = began_ns
        await asyncio.sleep(0)  # handlers go first
        return await self._idle_s(connection, full)

    async def _take(self, connection: Connection, now_ns: int, full: bool) -> list[ClaimedEvent]:
        since, first_id = self._horizon.due_from, self._horizon.first_id
        closed_to = self._horizon.closed_to
        if full:
            since, first_id = BEGINNING, 0
        claimed = await self._claims.claim(connection, self._want, now_ns, since, first_id)
        self._hands.submit(claimed)
        if claimed:
            self._horizon.claimed(claimed[-1].due_at, closed_to)
        return claimed

    def _is_behind(self, claimed: list[ClaimedEvent]) -> bool:
        """There may be more where only a full look finds it."""
        return len(claimed) >= self._want and claimed[-1].due_at < self._horizon.due_from

    def _full_next(self, began_ns: int, *, at_once: bool) -> None:
        took_ns = self._clock.monotonic_ns() - began_ns
        self._full_soonest_ns = began_ns if at_once else began_ns + FULL_SHARE * took_ns
        self._full_at_ns = max(self._full_soonest_ns, 0 if at_once else began_ns + FULL_EVERY_NS)

    async def _bury(self, connection: Connection) -> None:
        self._suspects = True
        for event_id in await self._claims.mark_exhausted(connection):
            log.error(
                "event lost its worker with its last attempt",
                stream=self._claims.stream,
                eventId=str(event_id),
            )

    async def _recover(self, connection: Connection) -> bool:
        """Take up one event of a lost worker, unless the last one is still in hand."""
        in_hand = self._suspect is not None and self._hands.holds(self._suspect)
        if in_hand or not self._suspects:
            return False
        found = await self._claims.claim_stale(connection, 1, self._clock.monotonic_ns())
        self._suspects = bool(found)
        self._suspect = found[0] if found else None
        self._hands.submit(found)
        return bool(found)

    async def _keep_locks(self) -> None:
        while True:
            await self._clock.sleep(self._config.lock_ttl_s / 3)
            await self._beat()

    async def _beat(self) -> None:
        """Keep the locks of all that is in hand; what was lost meanwhile is dropped."""
        held = self._hands.held()
        if not held:
            return
        began_ns = self._clock.monotonic_ns()
        try:
            async with self._database.connection() as connection:
                kept = await self._claims.extend(connection, held)
        except TROUBLE as error:
            log.warning("cannot extend locks", worker=self.name, error=str(error))
            return
        self._hands.extended(held, kept, began_ns + round(self._config.lock_ttl_s * 1e9))

    async def _listen(self) -> None:
        """Be woken. While we are behind from the start on there is no need, and another connection
        would only hold us up.
        """
        await self._caught_up.wait()
        async with self._database.listen(f"outbox {self._claims.stream}") as listener:
            async for told in listener:
                self._poll_s = self._config.poll_max_s
                if isinstance(told, ListenStarted) or told.payload:
                    self._full_at_ns = min(self._full_at_ns, self._full_soonest_ns)
                self._wake.set()

    def _on_settled(self, settled: Sequence[ClaimedEvent]) -> None:
        self._hands.settled(settled)
        # Others of the same line may be free now.
        if self._config.ordered or (self._suspect is not None and self._suspect in settled):
            self._wake.set()

    def _adapt(self, got: int, waited_s: float) -> None:
        """More at once while handlers keep up; less in hand when they are slow."""
        if not got:
            return
        if waited_s > SLOW_S:
            self._want = max(self._want // 2, min(self._config.concurrency, self._config.batch))
        elif got >= self._want and waited_s < QUICK_S:
            self._want = min(self._want * GROW, self._config.batch)

    async def _until_room(self) -> float:
        began_ns = self._clock.monotonic_ns()
        while not self._stopping and not self._hands.has_room(self._want):
            self._hands.room.clear()
            await self._hands.room.wait()
        return (self._clock.monotonic_ns() - began_ns) / 1e9

    async def _idle_s(self, connection: Connection, full: bool) -> float:
        due_s = await self._claims.next_due_s(connection)
        limits = [self._poll_s, self._config.lock_ttl_s / 2]
        if due_s is not None:
            limits.append(due_s)
        if not full:  # no long rest without a full look
            limits.append((self._full_at_ns - self._clock.monotonic_ns()) / 1e9)
        return max(0.0, min(limits))

    async def _sleep(self, seconds: float) -> bool:
        """Until woken or until then; answers whether we were woken."""
        if seconds <= 0:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True
