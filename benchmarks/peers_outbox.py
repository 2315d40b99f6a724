"""Our outbox and its peers behind one interface, `Queue`, so that one loop measures them all.

Each has the fastest settings that its documentation and a sweep of its settings gave, with full
durability. Peers are optional packages and are imported on use.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

import asyncpg
import msgspec

from qts.database import Connection, Database, DatabaseConfig, migrate
from qts.domain import Secret
from qts.outbox import BACKTEST_EVENT, Delivery, Dispatcher, OutboxEvent, PostgresBus, StreamConfig
from qts.outbox.bus import SQL
from qts.outbox.claims import BEGINNING, NO_ACCOUNT, Claims

STREAM = BACKTEST_EVENT
BATCH = 1000  # events in one transaction of publish_many
CLAIM = 300
CONFIG = StreamConfig(batch=CLAIM)
ATTEMPTS = CONFIG.max_attempts
AGGREGATES = 1000
_POOL = DatabaseConfig(pool_min=2, pool_max=8)
_LOCK = timedelta(seconds=30)
_PGQUEUER_CONSUMERS, _PGQUEUER_BATCH = 3, 100
_PROCRASTINATE_CONCURRENCY = 10

Handled = Callable[[int, int], None]  # count, time of the last publish (0: unknown)


class Noop(msgspec.Struct):
    number: int
    at_ns: int = 0
    note: str = "a payload of about the size that an order command has"


class Queue(Protocol):
    """One contender, open on a separate database."""

    async def publish(self, at_ns: int) -> None:
        """Publish one event in one transaction."""
        ...

    def batch(self, events: int) -> Any:
        """Build the argument of publish_many; building it is not timed."""
        ...

    async def publish_many(self, batch: Any) -> None:
        """Publish a batch in one transaction."""
        ...

    async def work(self, handled: Handled, stop: asyncio.Event) -> None:
        """Consume until `stop` is set."""
        ...

    async def left(self) -> int: ...


class Ours:
    def __init__(self, database: Database, bus: PostgresBus) -> None:
        self._database = database
        self._bus = bus
        self._numbers = count()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: Secret) -> AsyncIterator[Ours]:
        async with Database.open(url, _POOL) as database:
            await migrate(database)
            async with PostgresBus.open(database, {STREAM: CONFIG}) as bus:
                yield cls(database, bus)

    async def publish(self, at_ns: int) -> None:
        async with self._database.transaction() as tx:
            await self._bus.publish(tx, noop_event(next(self._numbers), at_ns))

    def batch(self, events: int) -> list[OutboxEvent]:
        return [noop_event(next(self._numbers)) for _ in range(events)]

    async def publish_many(self, batch: list[OutboxEvent]) -> None:
        async with self._database.transaction() as tx:
            await self._bus.publish_many(tx, batch)

    async def work(self, handled: Handled, stop: asyncio.Event) -> None:
        dispatcher = Dispatcher()

        @dispatcher.on(STREAM, Noop)
        async def handle(payload: Noop, _delivery: Delivery) -> None:
            handled(1, payload.at_ns)

        worker = self._bus.consumer(STREAM, dispatcher)
        running = asyncio.create_task(worker.run())
        await stop.wait()
        worker.stop()
        await running

    async def left(self) -> int:
        return int(await self._database.fetchval("SELECT count(*) FROM outbox_event"))


class Raw:
    """Our tables and statements in a loop: no handler, no object per event, no retry."""

    remove = SQL.complete

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers = count()
        self._claims = Claims(STREAM, CONFIG)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: Secret) -> AsyncIterator[Raw]:
        async with Database.open(url, _POOL) as database:
            await migrate(database)
            yield cls(database)

    async def publish(self, at_ns: int) -> None:
        event = noop_event(next(self._numbers), at_ns)
        async with self._database.transaction() as tx:
            await tx.execute(SQL.publish, *row_of(event)[:6], body_of(event), ATTEMPTS, 0.0, False)

    def batch(self, events: int) -> list[tuple[Any, ...]]:
        return [row_of(noop_event(next(self._numbers))) for _ in range(events)]

    async def publish_many(self, batch: list[tuple[Any, ...]]) -> None:
        async with self._database.transaction() as tx:
            await copy_rows(tx, batch)

    async def work(self, handled: Handled, stop: asyncio.Event) -> None:
        names = (f"{self._claims.name}#{number}" for number in count())
        async with self._database.connection() as connection:
            await self._claims.prepare(connection)
            for token in names:
                rows = await connection.fetch(
                    SQL.claim_events, STREAM, CLAIM, token, _LOCK, NO_ACCOUNT, BEGINNING
                )
                if rows:
                    await connection.execute(self.remove, [row[0] for row in rows], token)
                    handled(len(rows), 0)
                elif stop.is_set():
                    return
                else:
                    await asyncio.sleep(0.001)

    async def left(self) -> int:
        return int(await self._database.fetchval("SELECT count(*) FROM outbox_event"))


class RawDelete(Raw):
    """Raw SQL without the archive, to show its cost."""

    remove = "DELETE FROM outbox_event WHERE id = ANY ($1::bigint[]) AND locked_by = $2"


class PgQueuer:
    """Three consumers in one process with batches of 100, on asyncpg, its autovacuum settings."""

    def __init__(self, connections: list[Any]) -> None:
        self._connections = connections
        self._manager = importlib.import_module("pgqueuer.core.qm").QueueManager
        connect = importlib.import_module("pgqueuer.queries").Queries.from_asyncpg_connection
        self._queries = [connect(connection) for connection in connections]

    @classmethod
    @asynccontextmanager
    async def open(cls, url: Secret) -> AsyncIterator[PgQueuer]:
        async with _connections(url, _PGQUEUER_CONSUMERS + 1) as connections:
            queue = cls(connections)
            queries = queue._queries[0]
            async with queries.schema_lock():
                if not await queries.schema_is_installed():
                    await queries.install()
                    await queries.optimize_autovacuum()
            yield queue

    async def publish(self, at_ns: int) -> None:
        await self._queries[0].enqueue("noop", payload(at_ns))

    def batch(self, events: int) -> tuple[list[str], list[bytes], list[int]]:
        return ["noop"] * events, [payload(0)] * events, [0] * events

    async def publish_many(self, batch: tuple[list[str], list[bytes], list[int]]) -> None:
        await self._queries[0].enqueue(*batch)

    async def work(self, handled: Handled, stop: asyncio.Event) -> None:
        managers = [self._manager(queries) for queries in self._queries[1:]]

        async def handle(job: Any) -> None:
            handled(1, publish_time(job.payload))

        for manager in managers:
            manager.entrypoint("noop")(handle)
        running = [
            asyncio.create_task(manager.run(batch_size=_PGQUEUER_BATCH)) for manager in managers
        ]
        await stop.wait()
        for manager in managers:
            manager.shutdown.set()
        await asyncio.gather(*running)

    async def left(self) -> int:
        return int(await self._connections[0].fetchval("SELECT count(*) FROM pgqueuer"))


class Procrastinate:
    """Ten jobs at a time, finished ones deleted; on psycopg, the only driver it has."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._handled: Handled = lambda _count, _at_ns: None
        self._task = app.task(name="noop", pass_context=False)(self._handle)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: Secret) -> AsyncIterator[Procrastinate]:
        module = importlib.import_module("procrastinate")
        connector = module.PsycopgConnector(conninfo=url.reveal(), min_size=2, max_size=12)
        queue = cls(module.App(connector=connector))
        async with queue._app.open_async():
            if not await queue._app.check_connection_async():
                await queue._app.schema_manager.apply_schema_async()
            yield queue

    async def _handle(self, at_ns: int, **_rest: Any) -> None:
        self._handled(1, at_ns)

    async def publish(self, at_ns: int) -> None:
        await self._task.defer_async(at_ns=at_ns, **_REST)

    def batch(self, events: int) -> list[dict[str, Any]]:
        return [{"at_ns": 0, **_REST}] * events

    async def publish_many(self, batch: list[dict[str, Any]]) -> None:
        await self._task.batch_defer_async(*batch)

    async def work(self, handled: Handled, stop: asyncio.Event) -> None:
        self._handled = handled
        running = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=_PROCRASTINATE_CONCURRENCY,
                delete_jobs="always",
                install_signal_handlers=False,
                shutdown_graceful_timeout=5,
            )
        )
        await stop.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def left(self) -> int:
        row = await self._app.connector.execute_query_one_async(
            "SELECT count(*) AS left FROM procrastinate_jobs"
        )
        return int(row["left"])


KINDS: dict[str, Any] = {
    "ours": Ours,
    "raw SQL": Raw,
    "raw SQL, no archive": RawDelete,
    "PgQueuer": PgQueuer,
    "Procrastinate": Procrastinate,
}


def installed() -> dict[str, Any]:
    """Return the contenders whose packages are installed."""
    return {
        name: kind
        for name, kind in KINDS.items()
        if name[0].islower() or importlib.util.find_spec(name.lower())
    }


def noop_event(number: int, at_ns: int = 0, stream: str = STREAM) -> OutboxEvent:
    key = ("Bench", str(number % AGGREGATES))
    return OutboxEvent.of(stream, Noop(number, at_ns), key, trace_id="0" * 31 + "1")


def body_of(event: OutboxEvent) -> str:
    return msgspec.json.encode(event.envelope).decode()


def row_of(event: OutboxEvent) -> tuple[Any, ...]:
    return (
        event.envelope.event_id,
        event.stream,
        event.envelope.type,
        event.aggregate_type,
        event.aggregate_id,
        event.account,
        msgspec.Raw(msgspec.json.encode(event.envelope)),
        ATTEMPTS,
    )


async def copy_rows(tx: Connection, rows: list[tuple[Any, ...]]) -> None:
    """COPY the same columns into the same two tables."""
    columns = ("event_id", "stream", "event_type", "aggregate_type", "aggregate_id", "account")
    await tx.copy_records_to_table(
        "outbox_event_id", records=[row[:1] for row in rows], columns=columns[:1]
    )
    await tx.copy_records_to_table(
        "outbox_event", records=rows, columns=(*columns, "payload_json", "max_attempts")
    )


def payload(at_ns: int) -> bytes:
    return msgspec.json.encode({"at_ns": at_ns, **_REST})


def publish_time(body: bytes | None) -> int:
    return msgspec.json.decode(body, type=_PublishTime).at_ns if body else 0


class _PublishTime(msgspec.Struct):
    at_ns: int


# As many bytes as our envelope.
_REST = {"envelope": body_of(noop_event(0))[:200]}


@asynccontextmanager
async def _connections(url: Secret, number: int) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(number):
            connection = await asyncpg.connect(url.reveal())
            stack.push_async_callback(connection.close)
            opened.append(connection)
        yield opened
