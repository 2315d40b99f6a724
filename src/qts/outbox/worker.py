"""Consumer on PostgreSQL, and the notifications that wake it.

    claim ─▶ waiting groups ─▶ slots run handlers ─▶ results ─▶ batch completer
      ▲ notifications, polling    timeouts · heartbeat

A group is handled one event after another: the events of one aggregate in an ordered stream, else
a single event. Claims and results are batches, on connections that are released when idle. Every
loop survives the loss of the server.

The heartbeat that extends locks runs on the same event loop as the handlers, on purpose: a handler
that blocks the loop also stops the heartbeat, so that another worker claims its events.

Events of a lost worker are claimed one at a time. One of them may have crashed it, and must not use
up the attempts of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import asyncpg

from qts import telemetry
from qts.database import Connection, Database, ListenStarted
from qts.domain import Clock, QtsError, SystemClock
from qts.outbox.bus import SQL, EventDispatcher
from qts.outbox.claims import (
    BEGINNING,
    NO_ACCOUNT,
    Accounts,
    BatchCompleter,
    ClaimedEvent,
    Claims,
    Horizon,
)
from qts.outbox.config import StreamConfig
from qts.outbox.handler_pool import HandlerPool
from qts.outbox.handling import TRANSIENT_ERRORS, is_set_within

FULL_SCAN_INTERVAL_NS = 1_000_000_000  # between scans from the beginning
FULL_SCAN_SHARE = 50  # scans that keep taking long use a fiftieth of the time …
FULL_SCAN_MAX_INTERVAL_NS = 5_000_000_000  # … but events of lost workers wait no longer than this
GROWTH = 4  # of the batch while handlers keep up
LINGER_S = 0.5  # how long the idle connection is kept
FIRST_POLL_S = 0.05  # until the listener has started
BACKOFF_S = (0.05, 5.0)
SLOW_WAIT_S = 0.5  # waiting longer for handlers means the batch is too large
QUICK_WAIT_S = 0.1

FIRST_CHECK_S = 0.0005  # a short transaction has committed by then
MIN_INTERVAL_S = 0.003
MAX_CHECK_INTERVAL_S = 0.05
RETRY_INTERVAL_S = 0.5

log = telemetry.logger("outbox")


class OutboxWorker:
    """Consumer of one stream; several may run at once, in any process. Runs once."""

    def __init__(
        self,
        database: Database,
        stream: str,
        config: StreamConfig,
        dispatcher: EventDispatcher,
        clock: Clock | None = None,
        accounts: Accounts = NO_ACCOUNT,
    ) -> None:
        self._database = database
        self._config = config
        self._clock = clock or SystemClock()
        self._claims = Claims(stream, config, accounts=accounts)
        self._horizon = Horizon(stream, config.ordered, accounts)
        self._completer = BatchCompleter(
            database, self._claims, self._horizon, self._clock, self._on_completed
        )
        self._pool = HandlerPool(self._claims, dispatcher, self._completer, self._clock)
        self._stopping = False
        self._wake = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._poll_s = min(FIRST_POLL_S, config.poll_max_s)
        self._batch = min(config.concurrency, config.batch)
        self._full_scan_at_ns = self._full_scan_earliest_ns = (
            self._clock.monotonic_ns() + FULL_SCAN_INTERVAL_NS
        )
        self._full_scan_took_ns = 0
        self._initial_scan_pending = True  # no full scan yet
        self._suspects = False  # there may be events of lost workers
        self._suspect: ClaimedEvent | None = None

    @property
    def name(self) -> str:
        return self._claims.name

    def stop(self) -> None:
        self._stopping = True
        self._pool.release_waiting()
        self._wake.set()
        self._pool.capacity.set()

    async def run(self) -> None:
        log.info("worker started", stream=self._claims.stream, worker=self.name)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(_unless_cancelled(loop))
                    for loop in (
                        self._listen(),
                        self._completer.run(),
                        self._pool.enforce_timeouts(),
                        self._run_heartbeat(),
                    )
                ]
                self._pool.open()
                await _unless_cancelled(self._claim_until_stopped())
                await self._pool.wait_idle()
                await self._completer.drain()
                for helper in helpers:
                    helper.cancel()
        finally:
            self._pool.close()
        log.info("worker stopped", stream=self._claims.stream, worker=self.name)

    async def _claim_until_stopped(self) -> None:
        delay_s, max_s = BACKOFF_S
        while not self._stopping:
            try:
                async with self._database.connection() as connection:
                    await self._claims.prepare(connection)
                    idle_s = await self._claim_while_busy(connection)
                delay_s = BACKOFF_S[0]
            except TRANSIENT_ERRORS as error:
                log.warning("claiming failed; retrying", worker=self.name, error=str(error))
                idle_s, delay_s = delay_s, min(delay_s * 2, max_s)
                self._wake.clear()
            await self._sleep(idle_s)

    async def _claim_while_busy(self, connection: Connection) -> float:
        """Claim until idle for a while; return the seconds until the next claim."""
        while not self._stopping:
            idle_s = await self._claim_due(connection)
            if not await self._sleep(min(idle_s, LINGER_S)) and idle_s > LINGER_S:
                return idle_s - LINGER_S
        return 0.0

    async def _claim_due(self, connection: Connection) -> float:
        """Claim due events; return the seconds until the next claim."""
        waited_s = await self._wait_for_capacity()
        self._wake.clear()
        began_ns = self._clock.monotonic_ns()
        full_scan = began_ns >= self._full_scan_at_ns
        claimed = await self._claim(connection, began_ns, full_scan)
        if full_scan:
            await self._mark_exhausted(connection)
            self._schedule_full_scan(
                began_ns, immediately=bool(claimed) and self._is_behind(claimed)
            )
        stale = await self._claim_stale(connection)
        more = stale or len(claimed) >= self._batch or self._wake.is_set()
        self._adapt(len(claimed), waited_s)
        if more:
            return 0.0
        self._caught_up.set()
        if self._initial_scan_pending:  # once the backlog is claimed
            self._initial_scan_pending = False
            self._full_scan_at_ns = began_ns
        await asyncio.sleep(0)  # let handlers run first
        return await self._idle_s(connection, full_scan)

    async def _claim(
        self, connection: Connection, now_ns: int, full_scan: bool
    ) -> list[ClaimedEvent]:
        since, first_id = self._horizon.due_from, self._horizon.first_id
        closed_to = self._horizon.closed_to
        if full_scan:
            since, first_id = BEGINNING, 0
        claimed = await self._claims.claim(connection, self._batch, now_ns, since, first_id)
        self._pool.submit(claimed)
        if claimed:
            self._horizon.advance(claimed[-1].due_at, closed_to)
        return claimed

    def _is_behind(self, claimed: list[ClaimedEvent]) -> bool:
        """Return whether only another full scan may find more."""
        return len(claimed) >= self._batch and claimed[-1].due_at < self._horizon.due_from

    def _schedule_full_scan(self, began_ns: int, *, immediately: bool) -> None:
        """Schedule the next one, later if both this one and the one before it took long.

        One alone may have taken long because the server hung. Events whose locks expired in that
        time are found only by the next full scan.
        """
        ended_ns = self._clock.monotonic_ns()
        previous_ns, self._full_scan_took_ns = self._full_scan_took_ns, ended_ns - began_ns
        pause_ns = FULL_SCAN_SHARE * min(previous_ns, self._full_scan_took_ns)
        if immediately:
            self._full_scan_earliest_ns = self._full_scan_at_ns = began_ns
        else:
            self._full_scan_earliest_ns = ended_ns + min(pause_ns, FULL_SCAN_MAX_INTERVAL_NS)
            self._full_scan_at_ns = max(
                self._full_scan_earliest_ns, began_ns + FULL_SCAN_INTERVAL_NS
            )

    async def _mark_exhausted(self, connection: Connection) -> None:
        self._suspects = True
        for event_id in await self._claims.mark_exhausted(connection):
            log.error(
                "worker lost during last attempt; dead letter",
                stream=self._claims.stream,
                eventId=str(event_id),
            )

    async def _claim_stale(self, connection: Connection) -> bool:
        """Claim one event of a lost worker unless the previous one is in flight."""
        is_in_flight = self._suspect is not None and self._pool.holds(self._suspect)
        if is_in_flight or not self._suspects:
            return False
        found = await self._claims.claim_stale(connection, 1, self._clock.monotonic_ns())
        self._suspects = bool(found)
        self._suspect = found[0] if found else None
        self._pool.submit(found)
        return bool(found)

    async def _run_heartbeat(self) -> None:
        while True:
            await self._clock.sleep(self._config.lock_ttl_s / 3)
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        """Extend the locks of events in flight and drop those that were lost."""
        held = self._pool.held()
        if not held:
            return
        began_ns = self._clock.monotonic_ns()
        try:
            async with self._database.connection() as connection:
                kept = await self._claims.extend(connection, held)
        except TRANSIENT_ERRORS as error:
            log.warning("extending locks failed", worker=self.name, error=str(error))
            return
        self._pool.apply_heartbeat(held, kept, began_ns + round(self._config.lock_ttl_s * 1e9))

    async def _listen(self) -> None:
        """Follow notifications once the backlog is claimed; before that they are not needed."""
        await self._caught_up.wait()
        async with self._database.listen(f"outbox {self._claims.stream}") as listener:
            async for notification in listener:
                self._poll_s = self._config.poll_max_s
                if isinstance(notification, ListenStarted) or notification.payload:
                    self._full_scan_at_ns = min(self._full_scan_at_ns, self._full_scan_earliest_ns)
                self._wake.set()

    def _on_completed(self, completed: Sequence[ClaimedEvent]) -> None:
        self._pool.completed(completed)
        # The next event of the same aggregate may be free now.
        if self._config.ordered or (self._suspect is not None and self._suspect in completed):
            self._wake.set()

    def _adapt(self, count: int, waited_s: float) -> None:
        """Grow the batch while handlers keep up; shrink it when they are slow."""
        if not count:
            return
        if waited_s > SLOW_WAIT_S:
            self._batch = max(self._batch // 2, min(self._config.concurrency, self._config.batch))
        elif count >= self._batch and waited_s < QUICK_WAIT_S:
            self._batch = min(self._batch * GROWTH, self._config.batch)

    async def _wait_for_capacity(self) -> float:
        began_ns = self._clock.monotonic_ns()
        while not self._stopping and not self._pool.has_capacity(self._batch):
            self._pool.capacity.clear()
            await self._pool.capacity.wait()
        return (self._clock.monotonic_ns() - began_ns) / 1e9

    async def _idle_s(self, connection: Connection, full_scan: bool) -> float:
        due_s = await self._claims.next_due_s(connection)
        limits = [self._poll_s, self._config.lock_ttl_s / 2]
        if due_s is not None:
            limits.append(due_s)
        if not full_scan:  # no long wait without a full scan
            limits.append((self._full_scan_at_ns - self._clock.monotonic_ns()) / 1e9)
        return max(0.0, min(limits))

    async def _sleep(self, seconds: float) -> bool:
        """Wait for a notification or the timeout; return whether one came."""
        if seconds <= 0:
            return True
        return await is_set_within(self._wake, seconds)


async def _unless_cancelled(loop: Coroutine[Any, Any, None]) -> None:
    """Run a loop of the worker; raise an error for a cancellation that nobody requested.

    A task group ignores a task that ends with a cancellation: without its completer or heartbeat
    the worker would hold its events for ever.
    """
    try:
        await loop
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("a loop of the outbox worker was cancelled from within") from error


class WakeupNotifier:
    """Notifier of consumers, for one event loop; `published` never waits.

    A NOTIFY inside a transaction arrives soonest, but commits with a NOTIFY wait for each other. So
    at most one open transaction of this process has one. For the others a dedicated connection
    checks whether they have committed and notifies their streams, once for all gathered meanwhile.

        published ─▶ pending ─▶ committed: notify · rolled back: drop · open: check again

    The driver reports the end of a statement on the publisher's connection, so that the first check
    mostly follows the COMMIT at once. What it does not report is found by the next check.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pending: set[tuple[int, str]] = set()
        self._notifying_tx: Any = None  # connection whose transaction has a NOTIFY
        self._notified_ns = 0
        self._check_s = FIRST_CHECK_S
        self._check = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def may_notify(self, tx: Any) -> bool:
        """Return whether this transaction should notify the consumers itself."""
        now_ns = self._clock.monotonic_ns()
        if _is_open(self._notifying_tx):
            return tx is self._notifying_tx
        if now_ns - self._notified_ns < MIN_INTERVAL_S * 1e9:
            return False
        self._notifying_tx, self._notified_ns = tx, now_ns
        return True

    def published(self, xid: int, stream: str, tx: Any) -> None:
        self._pending.add((xid, stream))
        if tx.is_in_transaction():
            # The driver keeps one per connection, however often it is added.
            tx.add_query_logger(self._statement_ended)
        else:
            self._check.set()
        if self._task is None or self._task.done():
            self._check_s = FIRST_CHECK_S
            self._task = asyncio.create_task(self._notify_all())

    async def close(self) -> None:
        """Stop; consumers find pending events by polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _statement_ended(self, statement: Any) -> None:
        if self._pending and statement.query.startswith("COMMIT"):
            self._check.set()

    async def _notify_all(self) -> None:
        while self._pending:
            try:
                async with self._database.connection() as connection:
                    while self._pending or await is_set_within(self._check, LINGER_S):
                        await self._notify_committed(connection)
            except QtsError as error:
                log.warning("notifying consumers failed; retrying", error=str(error))
                await self._clock.sleep(RETRY_INTERVAL_S)

    async def _notify_committed(self, connection: Connection) -> None:
        await is_set_within(self._check, self._check_s)
        self._check.clear()
        checked = list(self._pending)
        rows = await connection.fetch(
            SQL.notify, [xid for xid, _ in checked], [stream for _, stream in checked]
        )
        still_open = {row["xid"] for row in rows if row["open"]}
        self._pending.difference_update(pair for pair in checked if pair[0] not in still_open)
        if any(row["woken"] for row in rows):
            self._check_s = MIN_INTERVAL_S
            await self._clock.sleep(MIN_INTERVAL_S)
        else:
            self._check_s = min(self._check_s * 1.6, MAX_CHECK_INTERVAL_S)


def _is_open(connection: Any) -> bool:
    try:
        return connection is not None and bool(connection.is_in_transaction())
    except asyncpg.InterfaceError:  # returned to the pool
        return False
