"""Contenders for the lease of one account, with random pauses at every statement, and their judge.

Each contender has connections of its own and behaves as a run does: it takes the lease when it is
free, renews it, moves attempts to SENT and sends their requests to a venue that keeps a log. Before
and after each statement it may stand still, as a process that is frozen does; the pauses come from
a seed. A sequence of the database, drawn under the locks of both statements, orders the takeovers
and the attempts; the venue orders the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import pytest
from msgspec.structs import replace

from qts.brokers import AccountLease, AccountTakenError
from qts.brokers.error_boundary import send_before_deadline
from qts.database import Database, DatabaseConfig
from qts.database import pool as pool_module
from qts.database.connection import PooledConnection
from qts.domain import AccountKey, OperationError, Secret, SystemClock, TimeLimit
from qts.orders.attempts import mark_sent
from qts.venues import BeforeSend, RateLimitedError

KEY = AccountKey.of("venue", "contended")
SEND_WITHIN_S = 0.3
CLOCK = SystemClock()

WATCH = """
CREATE SEQUENCE test_order;
CREATE TABLE test_log (no bigint, kind text, epoch bigint, attempt uuid, holder uuid);
CREATE FUNCTION test_taken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO test_log VALUES (nextval('test_order'), 'taken', NEW.epoch, NULL, NEW.holder);
    RETURN NULL;
END $$;
CREATE FUNCTION test_sent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO test_log VALUES (nextval('test_order'), 'sent', NEW.epoch, NEW.id, NULL);
    RETURN NULL;
END $$;
CREATE TRIGGER test_taken AFTER UPDATE OF epoch ON account
    FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION test_taken();
CREATE TRIGGER test_sent AFTER UPDATE OF status ON order_attempt
    FOR EACH ROW WHEN (NEW.status = 'SENT') EXECUTE FUNCTION test_sent();
"""
PREPARE = """
WITH s AS (INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)
           VALUES ($1, 'test', 'KRW-BTC', 'BUY', '', now())),
     i AS (INSERT INTO order_intent (id, signal_id, intent_type, broker, account, strategy_key,
               symbol, side, order_type, quantity, price, approved_at, expires_at)
           VALUES ($1, $1, 'ENTRY', $2, $3, 'test', 'KRW-BTC', 'BUY', 'LIMIT', 1, 100, now(),
                   now() + interval '1 hour'))
INSERT INTO order_attempt (id, order_intent_id, attempt_no, broker, account, symbol, identifier,
                           request_json)
VALUES ($1, $1, 1, $2, $3, 'KRW-BTC', $4, $5)
"""


class Request(NamedTuple):
    epoch: int
    attempt: UUID


class Pauses:
    """How long a contender stands still, and where, from a seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._frozen_until = 0.0
        self.count = 0

    async def __call__(self) -> None:
        """Stand still at times; whatever else this contender does then stands still, too."""
        loop = asyncio.get_running_loop()
        if self._chance.random() < 0.02:
            self.count += 1
            self._frozen_until = loop.time() + self._chance.choice((0.2, 0.5, 2.5, 3.5))
        await asyncio.sleep(max(0.0, self._frozen_until - loop.time()))
        await asyncio.sleep(self._chance.uniform(0, 0.003))


_pauses: ContextVar[Pauses] = ContextVar("pauses")


def pause_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections that a contender opens pause before and after every statement."""

    def pausing(base: Any) -> Any:
        class Pausing(base):  # type: ignore[misc]
            async def _paused(self, statement: Any, *values: Any, **more: Any) -> Any:
                pause = _pauses.get(None)
                if pause is None:
                    return await statement(*values, **more)
                await pause()
                result = await statement(*values, **more)
                await pause()
                return result

            async def execute(self, *values: Any, **more: Any) -> Any:
                return await self._paused(super().execute, *values, **more)

            async def fetch(self, *values: Any, **more: Any) -> Any:
                return await self._paused(super().fetch, *values, **more)

            async def fetchval(self, *values: Any, **more: Any) -> Any:
                return await self._paused(super().fetchval, *values, **more)

            async def fetchrow(self, *values: Any, **more: Any) -> Any:
                return await self._paused(super().fetchrow, *values, **more)

        return Pausing

    connect, kind = asyncpg.connect, pausing(asyncpg.Connection)

    def connecting(*values: Any, **more: Any) -> Any:
        return connect(*values, **more, **({"connection_class": kind} if _pauses.get(None) else {}))

    monkeypatch.setattr(asyncpg, "connect", connecting)
    monkeypatch.setattr(pool_module, "PooledConnection", pausing(PooledConnection))


class Contender:
    """One run, as far as the lease is concerned; one that lost it stands by again."""

    def __init__(self, url: Secret, venue: list[Request], chance: random.Random) -> None:
        self._url, self._venue, self._chance = url, venue, chance
        self.pauses = Pauses(chance)
        self.late = 0  # requests that the deadline held back
        self.fenced = 0  # statements that the epoch held back

    async def run(self) -> None:
        _pauses.set(self.pauses)
        config = DatabaseConfig(pool_min=1, pool_max=3)
        async with Database.open(self._url, config) as database:
            while True:
                lease = AccountLease(
                    database, KEY, "", CLOCK, is_live=False, send_within_s=SEND_WITHIN_S
                )
                await lease.acquire_when_free()
                with contextlib.suppress(OperationError):
                    await self._hold(database, lease)
                await lease.release()

    async def _hold(self, database: Database, lease: AccountLease) -> None:
        keeping = asyncio.create_task(lease.run(lambda *_code: None))
        try:
            await lease.wait_quiet()
            for _ in range(self._chance.randint(3, 60)):
                if keeping.done():
                    keeping.result()
                if lease.may_send:
                    await self._send(database, lease)
                await asyncio.sleep(self._chance.uniform(0, 0.005))
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError, AccountTakenError):
                await keeping

    async def _send(self, database: Database, lease: AccountLease) -> None:
        attempt_id = uuid4()
        body = {"identifier": str(attempt_id), "symbol": "KRW-BTC", "side": "BUY", "type": "LIMIT"}
        request_json = {**body, "quantity": "1", "price": "100"}
        await database.fetch(PREPARE, attempt_id, *KEY, str(attempt_id), request_json)
        deadline, epoch = TimeLimit(CLOCK, SEND_WITHIN_S), lease.epoch
        sent = await mark_sent(database, KEY, attempt_id, CLOCK.now(), epoch)
        if sent is None:
            self.fenced += 1
            return

        async def place(before_send: BeforeSend) -> None:
            await self.pauses()  # a queue, a signature, a connection
            before_send()
            self._venue.append(Request(epoch, attempt_id))

        request = replace(sent.request, send_by=(deadline, lease.send_by))
        try:
            await send_before_deadline(CLOCK, 3.0, request, place)
        except RateLimitedError:
            self.late += 1


async def contend(
    contenders: list[Contender], seconds: float, fault: Callable[[], Awaitable[None]]
) -> None:
    """Let them contend, with a fault now and then; raise what one of them raised."""
    tasks = [asyncio.create_task(each.run()) for each in contenders]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                for each in tasks:
                    if each.done():
                        each.result()
                await fault()
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)


async def judge(url: Secret, venue: list[Request]) -> list[str]:
    """Return what breaks the invariants of qts/brokers/lease.py."""
    connection = await asyncpg.connect(url.reveal())
    try:
        rows = await connection.fetch("SELECT * FROM test_log ORDER BY no")
    finally:
        await connection.close()
    wrong, epoch = list[str](), 0
    for row in rows:
        if row["kind"] == "taken":
            if row["epoch"] <= epoch:
                wrong.append(f"epoch {row['epoch']} was taken after {epoch}")
            epoch = row["epoch"]
        elif row["epoch"] != epoch:
            wrong.append(f"SENT with epoch {row['epoch']} after {epoch} was taken")
    latest = 0
    for request in venue:
        if request.epoch < latest:
            wrong.append(f"request of epoch {request.epoch} after the first of {latest}")
        latest = max(latest, request.epoch)
    sent = [row["attempt"] for row in rows if row["kind"] == "sent"]
    requests = [request.attempt for request in venue]
    if len(set(requests)) != len(requests) or not set(requests) <= set(sent):
        wrong.append("a request left twice, or without being SENT")
    return wrong
