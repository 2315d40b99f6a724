"""Lock of the strategies role: one process at a time decides for an account."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from time import monotonic
from typing import Any, Self

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError

CHECK_INTERVAL_S = 0.5
LOST_AFTER_S = 3.0  # of silence: then the server ends the session of the holder
RETRY_INTERVAL_S = 0.5

_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('strategies of qts account ' || $1, 0))"

log = telemetry.logger("app")


class StrategiesLock:
    """Lock on the strategies of some accounts; an async context manager on one event loop."""

    def __init__(self, database: Database, keys: Sequence[AccountKey]) -> None:
        self._database = database
        self._keys = keys
        self._connection: Any = None

    def is_held(self) -> bool:
        """Return whether no other process can have it, as far as is known."""
        return self._connection is not None

    async def __aenter__(self) -> Self:
        await self._take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    async def run(self) -> None:
        """Keep the lock until cancelled; raise OperationError when another process has it."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                async with asyncio.timeout(LOST_AFTER_S / 2):
                    await self._connection.fetchval("SELECT 1")
            except Exception as error:  # noqa: BLE001 - whatever it is, the lock may be gone
                log.warning("strategies lock lost; taking it again", error=repr(error))
                await self._take_again()

    async def _take_again(self) -> None:
        self._drop()
        since_s = monotonic()
        while not self.is_held():
            await asyncio.sleep(RETRY_INTERVAL_S)
            try:
                await self._take()
            except RefusedError as error:
                # The server may not have noticed yet that our connection is gone.
                if monotonic() > since_s + 2 * LOST_AFTER_S:
                    raise OperationError(str(error)) from None
            except OperationError as error:
                log.warning("strategies lock not taken; retrying", error=str(error))

    async def _take(self) -> None:
        self._connection = await self._database.connect(
            self._lock,
            application_name=f"strategies of {socket.gethostname()[:40]}, process {os.getpid()}",
            idle_session_timeout=str(round(LOST_AFTER_S * 1000)),
        )

    async def _lock(self, connection: Any) -> None:
        for key in self._keys:
            if not await connection.fetchval(_TRY_LOCK, str(key)):
                raise RefusedError(
                    f"strategies of account {key} run in another process; stop that one first:"
                    " two would decide everything twice"
                )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()
