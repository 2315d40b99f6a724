"""Idempotent requests: the same key performs an action once and returns its first outcome.

A request claims its key, performs the action and stores the answer. Another with the same key waits
for that answer, in whichever process it arrives. The claim of a process that died is taken over:
every action may be performed again, and orders carry an id that is derived from the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec

from qts.dashboard.api.problem import ProblemError
from qts.database import Database
from qts.domain import Clock

CLAIM_TTL = timedelta(seconds=120)  # longer than any action
WAIT_S = 60.0
POLL_S = 0.05
_CLAIM = (
    "INSERT INTO api_request AS r (token_id, key, request_digest) VALUES ($1, $2, $3)"
    " ON CONFLICT (token_id, key) DO UPDATE SET started_at = clock_timestamp()"
    " WHERE r.status IS NULL AND r.request_digest = $3"
    " AND r.started_at < clock_timestamp() - $4::interval"
    " RETURNING id"
)
_READ = "SELECT request_digest, status, answer FROM api_request WHERE token_id = $1 AND key = $2"
_FINISH = "UPDATE api_request SET status = $2, answer = $3 WHERE id = $1"
_ABANDON = "DELETE FROM api_request WHERE id = $1 AND status IS NULL"


class StoredAnswer(msgspec.Struct, frozen=True):
    status: int
    body: Any
    is_repeated: bool = False


class IdempotentRequests:
    """Requests by token and key."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(
        self,
        token_id: str,
        key: str,
        digest: bytes,
        perform: Callable[[], Awaitable[StoredAnswer]],
    ) -> StoredAnswer:
        """Perform once; `perform` raises where the outcome is not known, and may run again then."""
        end_ns = self._clock.monotonic_ns() + round(WAIT_S * 1e9)
        while True:
            claim = await self._database.fetchval(_CLAIM, token_id, key, digest, CLAIM_TTL)
            if claim is not None:
                return await self._perform(claim, perform)
            found = await self._stored(token_id, key, digest)
            if found is not None:
                return found
            if self._clock.monotonic_ns() >= end_ns:
                raise ProblemError(
                    409,
                    "the first request with this Idempotency-Key has not ended; repeat it later",
                    {"Retry-After": "5"},
                )
            await self._clock.sleep(POLL_S)

    async def _perform(
        self, claim: int, perform: Callable[[], Awaitable[StoredAnswer]]
    ) -> StoredAnswer:
        try:
            answer = await perform()
        except Exception:
            await self._database.execute(_ABANDON, claim)
            raise
        await self._database.execute(_FINISH, claim, answer.status, answer.body)
        return answer

    async def _stored(self, token_id: str, key: str, digest: bytes) -> StoredAnswer | None:
        row = await self._database.fetchrow(_READ, token_id, key)
        if row is None:
            return None
        if row["request_digest"] != digest:
            raise ProblemError(
                409, "this Idempotency-Key belongs to another request; use a new one for each"
            )
        if row["status"] is None:
            return None
        return StoredAnswer(row["status"], row["answer"], is_repeated=True)
