"""Taking events and giving their outcome: each statement is fenced by the token of its claim.

A token is used for one claim only, so a worker that lost its lock cannot touch what another
has claimed since, not even when that other is itself.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from uuid import UUID

import msgspec

from qts.database import Connection, Row
from qts.outbox.bus import Delivery
from qts.outbox.config import StreamConfig
from qts.outbox.envelope import Envelope
from qts.outbox.handling import HandlerResult
from qts.outbox.horizon import BEGINNING
from qts.outbox.queries import SQL


class _Received(Envelope, frozen=True, kw_only=True, rename="camel", gc=False):
    payload: msgspec.Raw


_number, _due_at = itemgetter(0), itemgetter(1)  # of a row
_decoder = msgspec.json.Decoder(_Received)


class ClaimedEvent(msgspec.Struct, eq=False, gc=False):
    """An event in hand; part of no cycle, as the collector would walk over all of them anew."""

    id: int
    token: str
    due_at: datetime
    delivery: Delivery
    held_until_ns: int  # on our monotonic clock; safely before the lock in the database ends
    broken: HandlerResult | None = None  # it cannot be read


class Claims:
    """The statements of one stream, for one worker."""

    def __init__(self, stream: str, config: StreamConfig, name: str | None = None) -> None:
        self.stream = stream
        self.config = config
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._ttl = timedelta(seconds=config.lock_ttl_s)
        self._numbers = itertools.count(1)

    async def prepare(self, connection: Connection) -> None:
        """To be called first on a connection.

        A plan made while the table was almost empty would read all that is due and sort it, and
        is kept after a burst has filled the table.
        """
        await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")

    async def claim(
        self,
        connection: Connection,
        at_most: int,
        now_ns: int,
        since: datetime = BEGINNING,
        first_id: int = 0,
    ) -> list[ClaimedEvent]:
        """Due events that nobody holds, in the order in which they came due."""
        token = self._new_token()
        if self.config.ordered:
            rows = await connection.fetch(
                SQL.claim_ordered, self.stream, at_most, token, self._ttl, False, since, first_id
            )
        else:
            rows = await connection.fetch(
                SQL.claim_events, self.stream, at_most, token, self._ttl, since
            )
        return self._claimed(rows, token, now_ns)

    async def claim_stale(
        self, connection: Connection, at_most: int, now_ns: int
    ) -> list[ClaimedEvent]:
        """Events whose holder let its lock run out."""
        token = self._new_token()
        if self.config.ordered:
            rows = await connection.fetch(
                SQL.claim_ordered, self.stream, at_most, token, self._ttl, True, BEGINNING, 0
            )
        else:
            rows = await connection.fetch(SQL.claim_stale, self.stream, at_most, token, self._ttl)
        return self._claimed(rows, token, now_ns)

    async def mark_exhausted(self, connection: Connection) -> list[UUID]:
        """Make dead letters of events that used up their attempts without an outcome."""
        return [
            row["event_id"] for row in await connection.fetch(SQL.mark_exhausted_dead, self.stream)
        ]

    async def next_due_s(self, connection: Connection) -> float | None:
        seconds: float | None = await connection.fetchval(SQL.next_due, self.stream)
        return seconds

    async def complete(self, connection: Connection, done: Sequence[ClaimedEvent]) -> int:
        """Archive them; answers how many were still ours."""
        ours = 0
        for token, group in groupby(done, attrgetter("token")):
            told = await connection.execute(SQL.complete, [each.id for each in group], token)
            ours += int(told.rpartition(" ")[2])
        return ours

    async def fail(
        self, connection: Connection, failed: Sequence[tuple[ClaimedEvent, HandlerResult, float]]
    ) -> int:
        """Send back after a pause or bury; answers how many were still ours."""
        rows = await connection.fetch(
            SQL.fail,
            [claimed.id for claimed, _, _ in failed],
            [claimed.token for claimed, _, _ in failed],
            [pause_s for _, _, pause_s in failed],
            [outcome.result == "dead" for _, outcome, _ in failed],
            [outcome.code for _, outcome, _ in failed],
            [outcome.message for _, outcome, _ in failed],
        )
        return len(rows)

    async def release(self, connection: Connection, unused: Sequence[ClaimedEvent]) -> None:
        await connection.execute(SQL.release, *_ids_and_tokens(unused))
        await connection.execute(SQL.notify_stream, self.stream)

    async def extend(self, connection: Connection, held: Iterable[ClaimedEvent]) -> set[int]:
        """Keep the locks; answers the ids that are still ours."""
        ids, tokens = _ids_and_tokens(held)
        rows = await connection.fetch(SQL.extend, ids, tokens, self._ttl, not self.config.ordered)
        return {row["id"] for row in rows}

    def _new_token(self) -> str:
        return f"{self.name}#{next(self._numbers)}"

    def _claimed(self, rows: list[Row], token: str, now_ns: int) -> list[ClaimedEvent]:
        held_until_ns = now_ns + round(self.config.lock_ttl_s * 1e9)
        rows.sort(key=_number)
        rows.sort(key=_due_at)  # leaves those due at the same moment in the order of their ids
        claimed = []
        for number, due_at, attempt, max_attempts, kind, key, body in rows:
            broken = None
            try:
                envelope: Envelope = _decoder.decode(body)
            except msgspec.MsgspecError as error:
                broken = HandlerResult("dead", "ENVELOPE_INVALID", str(error))
                envelope = Envelope(type="?", trace_id="?", payload=None)
            delivery = Delivery(self.stream, kind, key, envelope, attempt, max_attempts, 0, number)
            claimed.append(ClaimedEvent(number, token, due_at, delivery, held_until_ns, broken))
        return claimed


def _ids_and_tokens(claimed: Iterable[ClaimedEvent]) -> tuple[list[int], list[str]]:
    each = list(claimed)
    return [one.id for one in each], sorted({one.token for one in each})
