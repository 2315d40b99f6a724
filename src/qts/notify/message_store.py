"""The database's side: what is to be told, to whom, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from qts.database import Connection, Database
from qts.notify.message import Message

KEEP_DAYS = 90  # as long as the bus keeps events: afterwards none can come twice

_NOTE = (
    "INSERT INTO notification_log (channel, event_id, severity, message)"
    " SELECT channel, $1, $2, $3 FROM notification_channel"
    " WHERE disabled_at IS NULL AND channel = ANY($4) ON CONFLICT (channel, event_id) DO NOTHING"
)
_TAKE = (
    "UPDATE notification_log SET tries = tries + 1,"
    " due_at = clock_timestamp() + make_interval(secs => $3) WHERE id IN ("
    "  SELECT id FROM notification_log WHERE channel = $1 AND state = 'PENDING'"
    "  AND due_at <= clock_timestamp() ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " RETURNING id, tries, message"
)
_OPEN = (
    "INSERT INTO notification_channel (channel, address_hash) VALUES ($1, $2)"
    " ON CONFLICT (channel) DO UPDATE SET address_hash = $2, disabled_at = NULL, reason = '',"
    " since = clock_timestamp() WHERE notification_channel.address_hash <> $2"
)


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message in hand: others leave it alone until the lease ends."""

    id: int
    tries: int
    message: Message


class ChannelBacklog(msgspec.Struct, frozen=True):
    """How many wait for a channel, since when, and whether one of them cannot wait."""

    count: int
    oldest_s: float
    urgent: bool


class ChannelStatus(msgspec.Struct, frozen=True):
    """For the owner."""

    channel: str
    disabled_at: datetime | None
    reason: str
    pending: int
    sent: int
    given_up: int


async def enqueue(tx: Connection, message: Message, channels: Sequence[str]) -> bool:
    """Write it for every channel that is open; False when all of them had it."""
    body = msgspec.json.encode(message).decode()
    done = await tx.execute(_NOTE, message.event_id, message.severity, body, list(channels))
    return done != "INSERT 0 0"


class MessageStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, message: Message, channels: Sequence[str]) -> bool:
        async with self._database.transaction() as tx:
            return await enqueue(tx, message, channels)

    async def open(self, channel: str, address_hash: str) -> bool:
        """Known from now on; a new address opens a channel that was switched off."""
        async with self._database.transaction() as tx:
            await tx.execute(_OPEN, channel, address_hash)
            closed = await tx.fetchval(
                "SELECT disabled_at FROM notification_channel WHERE channel = $1", channel
            )
        return closed is None

    async def enable(self, channel: str) -> None:
        await self._database.execute(
            "UPDATE notification_channel SET disabled_at = NULL, reason = '' WHERE channel = $1",
            channel,
        )

    async def disable(self, channel: str, reason: str) -> None:
        """Nothing is sent there any more; what waits is given up."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "UPDATE notification_channel SET disabled_at = clock_timestamp(), reason = $2"
                " WHERE channel = $1",
                channel,
                reason,
            )
            await tx.execute(
                "UPDATE notification_log SET state = 'GIVEN_UP', ended_at = clock_timestamp(),"
                " error = $2 WHERE channel = $1 AND state = 'PENDING'",
                channel,
                reason,
            )

    async def is_open(self, channel: str) -> bool:
        return bool(
            await self._database.fetchval(
                "SELECT disabled_at IS NULL FROM notification_channel WHERE channel = $1", channel
            )
        )

    async def waiting(self, channel: str) -> ChannelBacklog:
        row = await self._database.fetchrow(
            "SELECT count(*), COALESCE(extract(epoch FROM clock_timestamp() - min(created_at)), 0),"
            " COALESCE(bool_or(severity = 'critical'), false) FROM notification_log"
            " WHERE channel = $1 AND state = 'PENDING' AND due_at <= clock_timestamp()",
            channel,
        )
        return (
            ChannelBacklog(row[0], float(row[1]), row[2]) if row else ChannelBacklog(0, 0.0, False)
        )

    async def claim(self, channel: str, limit: int, lease_s: float) -> list[QueuedMessage]:
        rows = await self._database.fetch(_TAKE, channel, limit, lease_s)
        found = [
            QueuedMessage(row[0], row[1], msgspec.json.decode(row[2], type=Message)) for row in rows
        ]
        return sorted(found, key=lambda each: each.id)

    async def sent(self, taken: Sequence[QueuedMessage]) -> None:
        await self._end(taken, "SENT", "")

    async def give_up(self, taken: Sequence[QueuedMessage], why: str) -> None:
        await self._end(taken, "GIVEN_UP", why)

    async def retry_later(self, taken: Sequence[QueuedMessage], why: str) -> None:
        await self._database.execute(
            "UPDATE notification_log SET due_at = clock_timestamp(), error = $2"
            " WHERE id = ANY($1) AND state = 'PENDING'",
            [each.id for each in taken],
            why,
        )

    async def purge(self, keep_hours: float) -> int:
        """Give up what nobody wants any more, and forget what is old; answers the former."""
        given_up = await self._database.execute(
            "UPDATE notification_log SET state = 'GIVEN_UP', ended_at = clock_timestamp(),"
            " error = 'too old: ' || error WHERE state = 'PENDING'"
            " AND created_at < clock_timestamp() - make_interval(secs => $1)",
            keep_hours * 3600,
        )
        await self._database.execute(
            "DELETE FROM notification_log WHERE state <> 'PENDING'"
            " AND created_at < clock_timestamp() - make_interval(days => $1)",
            KEEP_DAYS,
        )
        return int(given_up.split()[-1])

    async def channels(self) -> list[ChannelStatus]:
        rows = await self._database.fetch(
            "SELECT c.channel, c.disabled_at, c.reason,"
            " count(*) FILTER (WHERE l.state = 'PENDING'),"
            " count(*) FILTER (WHERE l.state = 'SENT'),"
            " count(*) FILTER (WHERE l.state = 'GIVEN_UP')"
            " FROM notification_channel c LEFT JOIN notification_log l USING (channel)"
            " GROUP BY c.channel ORDER BY c.channel"
        )
        return [ChannelStatus(*row) for row in rows]

    async def recent(self, limit: int = 50) -> list[Message]:
        """The youngest first, each once however many channels it went to."""
        rows = await self._database.fetch(
            "SELECT message FROM (SELECT DISTINCT ON (event_id) id, message FROM notification_log"
            " WHERE created_at > clock_timestamp() - interval '7 days' ORDER BY event_id, id) found"
            " ORDER BY id DESC LIMIT $1",
            limit,
        )
        return [msgspec.json.decode(row[0], type=Message) for row in rows]

    async def _end(self, taken: Sequence[QueuedMessage], state: str, error: str) -> None:
        await self._database.execute(
            "UPDATE notification_log SET state = $2, error = $3, ended_at = clock_timestamp()"
            " WHERE id = ANY($1)",
            [each.id for each in taken],
            state,
            error,
        )


async def state_of(database: Database, channel: str, event_id: UUID) -> tuple[str, int] | None:
    """State and tries of one message."""
    row = await database.fetchrow(
        "SELECT state, tries FROM notification_log WHERE channel = $1 AND event_id = $2",
        channel,
        event_id,
    )
    return (row[0], row[1]) if row else None
