"""Messages and channels in PostgreSQL: the queue of each channel and its results.

A claim marks a message as being sent. One that still has the mark when its lease is over may have
been sent: its sender crashed, or could not record the result. Only a channel whose receivers
recognise a message by its `eventId` gets it again; elsewhere it is abandoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from qts.database import Connection, Database
from qts.notify.message import Message

WAKE_CHANNEL = "qts_notification"  # of PostgreSQL: messages are due
SENDING = "being sent"  # error text of a claimed message
OUTCOME_UNKNOWN = "outcome unknown: QTS ended while it was sent"

_ENQUEUE = (
    "INSERT INTO notification_log (channel, event_id, severity, message)"
    " SELECT channel, $1, $2, $3 FROM notification_channel"
    " WHERE disabled_at IS NULL AND channel = ANY($4) ON CONFLICT (channel, event_id) DO NOTHING"
)
_CLAIM = (
    "UPDATE notification_log SET tries = tries + 1, error = $4,"
    " due_at = clock_timestamp() + make_interval(secs => $3) WHERE id IN ("
    "  SELECT id FROM notification_log WHERE channel = $1 AND state = 'PENDING'"
    "  AND due_at <= clock_timestamp() AND (error <> $4 OR $5)"
    "  ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " RETURNING id, tries, message"
)
_OPEN = (
    "INSERT INTO notification_channel (channel, address_hash) VALUES ($1, $2)"
    " ON CONFLICT (channel) DO UPDATE SET address_hash = $2, disabled_at = NULL, reason = '',"
    " since = clock_timestamp() WHERE notification_channel.address_hash <> $2"
)


class QueuedMessage(msgspec.Struct, frozen=True):
    """Claimed message; other senders skip it until the lease ends."""

    id: int
    tries: int
    message: Message


class ChannelBacklog(msgspec.Struct, frozen=True):
    """Due messages of a channel: count, age of the oldest, whether one is critical."""

    count: int
    oldest_s: float
    urgent: bool


class ChannelStatus(msgspec.Struct, frozen=True):
    """Channel with the counts of its messages."""

    channel: str
    disabled_at: datetime | None
    reason: str
    pending: int
    sent: int
    given_up: int


async def enqueue(tx: Connection, message: Message, channels: Sequence[str]) -> bool:
    """Store the message for every enabled channel; return False if all have it already."""
    body = msgspec.json.encode(message).decode()
    done = await tx.execute(_ENQUEUE, message.event_id, message.severity, body, list(channels))
    return done != "INSERT 0 0"


async def wake_senders(database: Database) -> None:
    """Wake the senders of every process on this database."""
    await database.execute("SELECT pg_notify($1, '')", WAKE_CHANNEL)


class MessageStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def enqueue(self, message: Message, channels: Sequence[str]) -> bool:
        async with self._database.transaction() as tx:
            return await enqueue(tx, message, channels)

    async def open(self, channel: str, address_hash: str) -> bool:
        """Register the channel and return whether it is enabled; a new address enables it."""
        async with self._database.transaction() as tx:
            await tx.execute(_OPEN, channel, address_hash)
            disabled_at = await tx.fetchval(
                "SELECT disabled_at FROM notification_channel WHERE channel = $1", channel
            )
        return disabled_at is None

    async def enable(self, channel: str) -> None:
        await self._database.execute(
            "UPDATE notification_channel SET disabled_at = NULL, reason = '' WHERE channel = $1",
            channel,
        )

    async def disable(self, channel: str, reason: str) -> None:
        """Disable the channel and abandon its pending messages."""
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

    async def is_enabled(self, channel: str) -> bool:
        return bool(
            await self._database.fetchval(
                "SELECT disabled_at IS NULL FROM notification_channel WHERE channel = $1", channel
            )
        )

    async def backlog(self, channel: str) -> ChannelBacklog:
        row = await self._database.fetchrow(
            "SELECT count(*), COALESCE(extract(epoch FROM clock_timestamp() - min(created_at)), 0),"
            " COALESCE(bool_or(severity = 'critical'), false) FROM notification_log"
            " WHERE channel = $1 AND state = 'PENDING' AND due_at <= clock_timestamp()",
            channel,
        )
        return (
            ChannelBacklog(row[0], float(row[1]), row[2]) if row else ChannelBacklog(0, 0.0, False)
        )

    async def claim(
        self, channel: str, limit: int, lease_s: float, *, repeat: bool
    ) -> list[QueuedMessage]:
        """Claim due messages; with `repeat` also those that may have been sent."""
        rows = await self._database.fetch(_CLAIM, channel, limit, lease_s, SENDING, repeat)
        found = [
            QueuedMessage(row[0], row[1], msgspec.json.decode(row[2], type=Message)) for row in rows
        ]
        return sorted(found, key=lambda each: each.id)

    async def abandon_unknown(self, channel: str) -> int:
        """Abandon messages that may have been sent, and return how many."""
        status = await self._database.execute(
            "UPDATE notification_log SET state = 'GIVEN_UP', ended_at = clock_timestamp(),"
            " error = $3 WHERE channel = $1 AND state = 'PENDING' AND error = $2"
            " AND due_at <= clock_timestamp()",
            channel,
            SENDING,
            OUTCOME_UNKNOWN,
        )
        return int(status.split()[-1])

    async def mark_sent(self, messages: Sequence[QueuedMessage]) -> None:
        await self._end(messages, "SENT", "")

    async def abandon(self, messages: Sequence[QueuedMessage], reason: str) -> None:
        await self._end(messages, "GIVEN_UP", reason)

    async def retry_later(self, messages: Sequence[QueuedMessage], reason: str) -> None:
        await self._database.execute(
            "UPDATE notification_log SET due_at = clock_timestamp(), error = $2"
            " WHERE id = ANY($1) AND state = 'PENDING'",
            [each.id for each in messages],
            reason,
        )

    async def abandon_old(self, keep_hours: float) -> int:
        """Abandon messages older than `keep_hours` and return how many."""
        abandoned = await self._database.execute(
            "UPDATE notification_log SET state = 'GIVEN_UP', ended_at = clock_timestamp(),"
            " error = 'too old: ' || error WHERE state = 'PENDING'"
            " AND created_at < clock_timestamp() - make_interval(secs => $1)",
            keep_hours * 3600,
        )
        return int(abandoned.split()[-1])

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
        """Return the latest messages, newest first, each once."""
        rows = await self._database.fetch(
            "SELECT message FROM (SELECT DISTINCT ON (event_id) id, message FROM notification_log"
            " WHERE created_at > clock_timestamp() - interval '7 days' ORDER BY event_id, id) found"
            " ORDER BY id DESC LIMIT $1",
            limit,
        )
        return [msgspec.json.decode(row[0], type=Message) for row in rows]

    async def _end(self, messages: Sequence[QueuedMessage], state: str, error: str) -> None:
        await self._database.execute(
            "UPDATE notification_log SET state = $2, error = $3, ended_at = clock_timestamp()"
            " WHERE id = ANY($1)",
            [each.id for each in messages],
            state,
            error,
        )
