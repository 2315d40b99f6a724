"""Claims on outbox events, and their results: each statement is fenced by the token of its claim.

A token belongs to one claim only, so a worker whose lock expired cannot change an event that was
claimed again since, even by itself.

A claim scans for due events from a `Horizon`: everything before it was handled. While a session
holds an old snapshot, handled rows cannot be cleaned up, and a claim that scans from the beginning
reads all of them each time. The server reports where the first unfinished row may be; an event that
is moved before that point is found by the periodic full scan.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database, Row
from qts.domain import Clock
from qts.outbox.bus import SQL, Delivery, Envelope, decode_envelope
from qts.outbox.config import StreamConfig
from qts.outbox.handling import (
    TRANSIENT_ERRORS,
    HandlerResult,
    backoff_s,
    count_results,
    is_set_within,
)

BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
UPDATE_INTERVAL_NS = 20_000_000
# While a publisher's transaction stays open, the horizon does not advance. An unordered stream then
# scans from this long before its newest claim; an ordered one waits, because order comes first.
LATE_COMMIT = timedelta(seconds=1)

MAX_BATCH = 1000
GATHER_INTERVAL_S = 0.002  # how long results wait for others while handlers are busy
LINGER_S = 0.01  # how long an idle connection is kept for the next result
BACKOFF_S = (0.05, 2.0)

log = telemetry.logger("outbox")

Accounts = Sequence[str] | None  # whose events a worker takes, "" for those of none; None: all
NO_ACCOUNT = ("",)


class Horizon:
    """Start of the scan of one worker."""

    def __init__(self, stream: str, ordered: bool, accounts: Accounts = NO_ACCOUNT) -> None:
        self._stream = stream
        self._ordered = ordered
        self._accounts = accounts
        self._mark: tuple[datetime, int, int] = (BEGINNING, 0, 0)
        self._update_at_ns = 0
        self.due_from = BEGINNING
        self.first_id = 0  # of the unfinished events; ordered streams only
        self.closed_to = BEGINNING  # no open transaction can add an event due before this

    def advance(self, newest: datetime, closed_to: datetime) -> None:
        """Advance after a claim took all free events up to `newest`.

        `closed_to` is its value when the claim began: the claim saw all events due before it.
        """
        if not self._ordered:
            self.due_from = max(self.due_from, min(newest, closed_to), newest - LATE_COMMIT)

    async def update(self, connection: Connection, now_ns: int) -> None:
        """Read the horizon from the server, at most once per interval."""
        if now_ns < self._update_at_ns:
            return
        self._update_at_ns = now_ns + UPDATE_INTERVAL_NS
        row = await connection.fetchrow(
            SQL.horizon,
            self._stream,
            self._ordered,
            self._accounts,
            self.due_from,
            self.first_id,
            *self._mark,
        )
        if row is None:
            return
        due_from, self.first_id, mark_at, mark_id, mark_xid = row
        self.due_from = max(self.due_from, due_from)  # a claim may have advanced it meanwhile
        if mark_xid != self._mark[2]:
            self.closed_to = self._mark[0]
            self._mark = (mark_at, mark_id, mark_xid)


_row_id, _due_at = itemgetter(0), itemgetter(1)


class ClaimedEvent(msgspec.Struct, eq=False, gc=False):
    """Event claimed by this worker; untracked by the garbage collector, so that it stays cheap."""

    id: int
    token: str
    due_at: datetime
    delivery: Delivery
    held_until_ns: int  # monotonic; before the lock in the database expires
    invalid: HandlerResult | None = None  # set if the envelope cannot be decoded


class Claims:
    """Statements of one worker on one stream."""

    def __init__(
        self,
        stream: str,
        config: StreamConfig,
        name: str | None = None,
        accounts: Accounts = NO_ACCOUNT,
    ) -> None:
        self.stream = stream
        self.config = config
        self.accounts = accounts
        self.name = name or process_name()
        self._ttl = timedelta(seconds=config.lock_ttl_s)
        self._numbers = itertools.count(1)

    async def prepare(self, connection: Connection) -> None:
        """Fix the plan for this connection; call it first.

        A plan cached while the table was almost empty would read and sort all due rows, even after
        a burst has filled the table.
        """
        await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")

    async def claim(
        self,
        connection: Connection,
        limit: int,
        now_ns: int,
        since: datetime = BEGINNING,
        first_id: int = 0,
    ) -> list[ClaimedEvent]:
        """Claim due events that are not locked, in the order in which they became due."""
        token = self._new_token()
        if self.config.ordered:
            rows = await connection.fetch(
                SQL.claim_ordered,
                self.stream,
                limit,
                token,
                self._ttl,
                self.accounts,
                False,
                since,
                first_id,
            )
        else:
            rows = await connection.fetch(
                SQL.claim_events, self.stream, limit, token, self._ttl, self.accounts, since
            )
        return self._decode(rows, token, now_ns)

    async def claim_stale(
        self, connection: Connection, limit: int, now_ns: int
    ) -> list[ClaimedEvent]:
        """Claim events whose lock has expired."""
        token = self._new_token()
        if self.config.ordered:
            rows = await connection.fetch(
                SQL.claim_ordered,
                self.stream,
                limit,
                token,
                self._ttl,
                self.accounts,
                True,
                BEGINNING,
                0,
            )
        else:
            rows = await connection.fetch(
                SQL.claim_stale, self.stream, limit, token, self._ttl, self.accounts
            )
        return self._decode(rows, token, now_ns)

    async def mark_exhausted(self, connection: Connection) -> list[UUID]:
        """Mark events dead whose last attempt ended without a result; return their ids."""
        rows = await connection.fetch(SQL.mark_exhausted_dead, self.stream, self.accounts)
        return [row["event_id"] for row in rows]

    async def next_due_s(self, connection: Connection) -> float | None:
        seconds: float | None = await connection.fetchval(SQL.next_due, self.stream, self.accounts)
        return seconds

    async def complete(self, connection: Connection, done: Sequence[ClaimedEvent]) -> int:
        """Archive events; return how many this worker still held."""
        count = 0
        for token, group in groupby(done, attrgetter("token")):
            status = await connection.execute(SQL.complete, [event.id for event in group], token)
            count += int(status.rpartition(" ")[2])
        return count

    async def fail(
        self, connection: Connection, failed: Sequence[tuple[ClaimedEvent, HandlerResult, float]]
    ) -> int:
        """Schedule retries or mark dead; return how many this worker still held."""
        rows = await connection.fetch(
            SQL.fail,
            [claimed.id for claimed, _, _ in failed],
            [claimed.token for claimed, _, _ in failed],
            [delay_s for _, _, delay_s in failed],
            [result.kind == "dead" for _, result, _ in failed],
            [result.code for _, result, _ in failed],
            [result.message for _, result, _ in failed],
        )
        return len(rows)

    async def release(self, connection: Connection, unused: Sequence[ClaimedEvent]) -> None:
        await connection.execute(SQL.release, *_ids_and_tokens(unused))
        await connection.execute(SQL.notify_stream, self.stream)

    async def extend(self, connection: Connection, held: Iterable[ClaimedEvent]) -> set[int]:
        """Extend the locks; return the ids that this worker still holds."""
        ids, tokens = _ids_and_tokens(held)
        rows = await connection.fetch(SQL.extend, ids, tokens, self._ttl, not self.config.ordered)
        return {row["id"] for row in rows}

    def _new_token(self) -> str:
        return f"{self.name}#{next(self._numbers)}"

    def _decode(self, rows: list[Row], token: str, now_ns: int) -> list[ClaimedEvent]:
        held_until_ns = now_ns + round(self.config.lock_ttl_s * 1e9)
        rows.sort(key=_row_id)
        rows.sort(key=_due_at)  # stable: rows due at the same time stay in the order of their ids
        claimed = []
        for row_id, due_at, attempt, max_attempts, kind, name, account, body in rows:
            invalid = None
            try:
                envelope: Envelope = decode_envelope(body)
            except msgspec.MsgspecError as error:
                invalid = HandlerResult("dead", "ENVELOPE_INVALID", str(error))
                envelope = Envelope(type="?", trace_id="?", payload=None)
            delivery = Delivery(
                self.stream, kind, name, envelope, attempt, max_attempts, 0, row_id, account
            )
            claimed.append(ClaimedEvent(row_id, token, due_at, delivery, held_until_ns, invalid))
        return claimed


def process_name() -> str:
    """Return a new name for what claims events in this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def _ids_and_tokens(claimed: Iterable[ClaimedEvent]) -> tuple[list[int], list[str]]:
    events = list(claimed)
    return [event.id for event in events], [event.token for event in events]


class BatchCompleter:
    """Writes results until cancelled; retries each while the worker may still hold its event.

    They are written in batches, each gathered while the previous one is written.
    """

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
        if not await is_set_within(self._drained, self._claims.config.lock_ttl_s):
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
        return await is_set_within(self._more, LINGER_S)

    async def _write(self, connection: Connection) -> None:
        stream = self._claims.stream
        if done := self._done[:MAX_BATCH]:
            count = await self._claims.complete(connection, done)
            del self._done[: len(done)]
            count_results(stream, "done", count)
            self._complete(done, count)
        if failed := self._failed[:MAX_BATCH]:
            count = await self._claims.fail(connection, failed)
            del self._failed[: len(failed)]
            for result in ("retry", "dead"):
                count_results(stream, result, sum(_final_kind(each) == result for each in failed))
            self._complete([claimed for claimed, _, _ in failed], count)
        if unused := self._unused[:MAX_BATCH]:
            await self._claims.release(connection, unused)
            del self._unused[: len(unused)]
            self._on_completed(unused)

    def _complete(self, events: Sequence[ClaimedEvent], count: int) -> None:
        if stale := len(events) - count:
            count_results(self._claims.stream, "stale", stale)
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
