"""Connection pool and transactions.

A caller never gets a connection that died in the pool (server restart, terminated backend): the
pool first sends BEGIN or a statement without effect. If that fails, every pooled connection is
replaced and it is sent once more on a new one. A connection lost after that raises an error:

    lost in the block of transaction()   UnreachableError: nothing was committed
    lost during COMMIT                   OutcomeUnknownError: it may have been committed
    lost during a single statement       OutcomeUnknownError
    silent for longer than a statement   as lost
    lock timeout                         OperationError: nothing was committed
    read-only server, or disk full       OperationError: nothing was committed

`terminate_stuck_sessions` says who frees the locks of a stuck session.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import asyncpg
import msgspec
from msgspec.structs import replace

from qts import telemetry
from qts.database.config import DatabaseConfig, address_of, connect_options
from qts.database.connection import (
    DRIVER_ERRORS,
    Connection,
    Isolation,
    Listener,
    PooledConnection,
    Row,
    begin,
    cancelled,
    cannot_write,
    commit,
    configure_connection,
    is_gone,
    is_lost,
    is_read_only,
    lock_timeout,
    outcome_unknown,
    reason,
    rollback,
    terminate_stuck_sessions,
    unreachable,
)
from qts.domain import Clock, Secret, SystemClock, UnreachableError

log = telemetry.logger("database")


def _shorten_traceback(record: logging.LogRecord) -> bool:
    """Replace the traceback that asyncpg logs for every failed reconnect by one line."""
    if record.exc_info and record.exc_info[1]:
        record.msg, record.args = f"{record.getMessage()}: {reason(record.exc_info[1])}", ()
        record.exc_info = None
    return True


logging.getLogger("asyncpg.pool").addFilter(_shorten_traceback)


class Ping(msgspec.Struct, frozen=True):
    """Round-trip time and version of the server."""

    latency_ms: float
    server_version: str


class Database:
    """Pool of connections to PostgreSQL, for one event loop."""

    def __init__(
        self, pool: Any, url: Secret, config: DatabaseConfig, clock: Clock, application: str
    ) -> None:
        self._pool = pool
        self.application = application  # the name of its sessions, and of no other's
        self._url = url
        self._config = config
        self._clock = clock
        self._releases: set[asyncio.Task[None]] = set()
        self.where = address_of(url)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: Secret, config: DatabaseConfig, *, clock: Clock | None = None
    ) -> AsyncIterator[Self]:
        """Connect, and close the pool at the end of the block."""
        where, application = address_of(url), f"qts {secrets.token_hex(4)}"
        try:
            pool = await asyncpg.create_pool(
                **connect_options(url, config, application),
                min_size=config.pool_min,
                max_size=config.pool_max,
                init=functools.partial(configure_connection, where=where),
                connection_class=PooledConnection,
            )
        except (asyncpg.InternalClientError, *DRIVER_ERRORS) as error:
            raise unreachable(where, error) from error
        database = cls(pool, url, config, clock or SystemClock(), application)
        try:
            yield database
        finally:
            await database.close()

    @property
    def settings(self) -> tuple[Secret, DatabaseConfig]:
        """Return the arguments of `open` that open another pool to the same server."""
        return self._url, self._config

    @asynccontextmanager
    async def reserved(self, size: int = 4) -> AsyncIterator[Database]:
        """Open `size` connections beside the pool, for what must not wait for its other users.

        They stay open, their statements stay prepared with generic plans, and every commit waits
        for the disk.
        """
        options = connect_options(self._url, self._config, self.application)
        options["server_settings"] |= {
            "synchronous_commit": "on",
            "plan_cache_mode": "force_generic_plan",
        }
        try:
            pool = await asyncpg.create_pool(
                **options,
                min_size=size,
                max_size=size,
                max_inactive_connection_lifetime=0,
                max_cached_statement_lifetime=0,
                init=functools.partial(configure_connection, where=self.where),
                connection_class=PooledConnection,
            )
        except (asyncpg.InternalClientError, *DRIVER_ERRORS) as error:
            raise unreachable(self.where, error) from error
        config = replace(self._config, pool_min=size, pool_max=size)
        reserved = Database(pool, self._url, config, self._clock, self.application)
        try:
            yield reserved
        finally:
            await reserved.close()

    async def close(self) -> None:
        """Wait for connections in use up to connect_timeout_s, then close them."""
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._pool.close()
        except TimeoutError:
            log.warning("closed connections still in use", server=self.where)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        isolation: Isolation = "read committed",
        read_only: bool = False,
        durable: bool = False,
    ) -> AsyncIterator[Connection]:
        """Commit at the end of the block, or roll back if it raises.

        `durable`: the commit waits for the disk, whatever the server's settings are. The block may
        change settings only with SET LOCAL.
        """
        connection = await self._checked_connection(begin(isolation, read_only, durable))
        try:
            try:
                yield connection
            except BaseException as error:
                await rollback(connection)
                await self._free_locks(error, connection)
                self._raise_translated(error, connection, unreachable)
                if isinstance(error, TimeoutError) and is_gone(connection):
                    raise unreachable(self.where, error) from error  # no answer to ROLLBACK either
                raise
            try:
                await commit(connection)
            except DRIVER_ERRORS as error:
                await rollback(connection)
                self._raise_translated(error, connection, outcome_unknown)
                if isinstance(error, TimeoutError):
                    raise outcome_unknown(self.where, error) from error
                raise
        finally:
            await self._release(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Yield a connection without a transaction: every statement commits separately.

        Settings, session locks and LISTEN end with the block.
        """
        async with self._session() as connection:
            connection._con.needs_reset = True
            yield connection

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        connection = await self._checked_connection("SELECT 1")
        try:
            yield connection
        except DRIVER_ERRORS as error:
            await self._free_locks(error, connection)
            self._raise_translated(error, connection, outcome_unknown)
            raise
        finally:
            await self._release(connection)

    @asynccontextmanager
    async def _statement(self) -> AsyncIterator[Any]:
        """Yield a connection for one statement; a TimeoutError means that the server is silent."""
        async with self._session() as connection:
            try:
                yield connection
            except TimeoutError as error:
                if not is_gone(connection):
                    connection.terminate()
                raise outcome_unknown(self.where, error) from error

    async def execute(self, query: str, *args: Any) -> str:
        async with self._statement() as connection:
            connection._con.needs_reset = True
            return await connection.execute(query, *args)  # type: ignore[no-any-return]

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        async with self._statement() as connection:
            return await connection.fetch(query, *args)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        async with self._statement() as connection:
            return await connection.fetchrow(query, *args)  # type: ignore[no-any-return]

    async def fetchval(self, query: str, *args: Any) -> Any:
        async with self._statement() as connection:
            return await connection.fetchval(query, *args)

    async def fetch_idempotent(self, query: str, *args: Any) -> list[Row]:
        """Fetch with a statement that may run twice, in one round trip instead of two.

        The statement itself tests the connection; it is sent again if the connection was dead.
        """
        for is_last in (False, True):
            connection, is_free = await self._acquire(), False
            try:
                limit_s = self._config.connect_timeout_s
                rows: list[Row] = await connection.fetch(query, *args, timeout=limit_s)
                is_free = True
                return rows
            except DRIVER_ERRORS as error:
                silent = isinstance(error, TimeoutError)
                if silent and not is_gone(connection):
                    connection.terminate()
                if is_last and silent:
                    raise outcome_unknown(self.where, error) from error
                if is_last or not (silent or is_lost(error, connection)):
                    await self._free_locks(error, connection)
                    self._raise_translated(error, connection, outcome_unknown)
                    raise
                await self._pool.expire_connections()
            finally:
                if is_free:
                    self._release_soon(connection)
                else:
                    await self._release(connection)
        raise AssertionError("the second attempt returns or raises")

    async def ping(self) -> Ping:
        async with self.connection() as connection:
            before_ns = self._clock.monotonic_ns()
            version = await connection.fetchval("SELECT current_setting('server_version')")
            latency_ns = self._clock.monotonic_ns() - before_ns
        return Ping(latency_ms=latency_ns / 1e6, server_version=version)

    async def connect(
        self, prepare: Callable[[Any], Awaitable[None]], **server_settings: str
    ) -> Any:
        """Open a connection outside the pool, for a session lock; the caller closes it.

        `prepare` runs first; when it raises, the connection is closed.
        """
        options = connect_options(self._url, self._config, self.application)
        options["server_settings"] |= server_settings
        try:
            connection = await asyncpg.connect(**options)
        except (asyncpg.InternalClientError, *DRIVER_ERRORS) as error:
            raise unreachable(self.where, error) from error
        is_prepared = False
        try:
            await prepare(connection)
            is_prepared = True
        except DRIVER_ERRORS as error:
            self._raise_translated(error, connection, unreachable)
            if isinstance(error, OSError):  # a TimeoutError too
                raise unreachable(self.where, error) from error
            raise
        finally:
            if not is_prepared:
                connection.terminate()
        return connection

    def listen(self, *channels: str) -> AbstractAsyncContextManager[Listener]:
        """Return a listener for these channels, on a dedicated connection that reconnects."""
        options = connect_options(self._url, self._config, self.application)
        connect = functools.partial(asyncpg.connect, **options)
        return Listener(connect, channels, self.where, self._clock)

    async def _checked_connection(self, first_statement: str) -> Any:
        limit_s = self._config.connect_timeout_s
        for is_last in (False, True):
            connection = await self._acquire()
            try:
                await connection.execute(first_statement, timeout=limit_s)
            except BaseException as error:
                stale = isinstance(error, TimeoutError) or is_lost(error, connection)
                if not is_gone(connection):
                    connection.terminate()
                await self._release(connection)
                if not stale or is_last:
                    self._raise_translated(error, connection, unreachable)
                    raise
                await self._pool.expire_connections()
            else:
                return connection
        raise AssertionError("the second attempt returns or raises")

    async def _acquire(self) -> Any:
        limit_s = self._config.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):  # a time limit of the pool's would cost a task
                return await self._pool.acquire()
        except TimeoutError as error:
            if self._pool.get_size() >= self._config.pool_max and not self._pool.get_idle_size():
                raise UnreachableError(
                    f"all {self._config.pool_max} connections to PostgreSQL at {self.where} were "
                    f"in use for {limit_s:g} s; release them sooner or raise database.pool_max"
                ) from None
            raise unreachable(self.where, error) from error
        except DRIVER_ERRORS as error:
            raise unreachable(self.where, error) from error

    def _release_soon(self, connection: Any) -> None:
        """Release a connection after what the caller starts with its result, such as a request."""
        asyncio.get_running_loop().call_soon(self._start_release, connection)

    def _start_release(self, connection: Any) -> None:
        task = asyncio.create_task(self._release(connection))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, connection: Any) -> None:
        try:
            await self._pool.release(connection, timeout=self._config.connect_timeout_s)
        except DRIVER_ERRORS as error:
            # The result of the block stands; asyncpg has dropped the connection.
            log.debug("connection lost on release", server=self.where, error=error)

    async def _free_locks(self, error: BaseException, connection: Any) -> None:
        """After a lock timeout, terminate the sessions that are stuck."""
        if isinstance(error, asyncpg.LockNotAvailableError):
            try:
                await terminate_stuck_sessions(connection, self._config.idle_transaction_timeout_s)
            except DRIVER_ERRORS as failure:
                log.warning("stuck sessions not terminated", error=reason(failure))

    def _raise_translated(self, error: BaseException, connection: Any, lost: Any) -> None:
        if isinstance(error, asyncpg.QueryCanceledError):
            raise cancelled(self.where, error, self._config.statement_timeout_s) from error
        if isinstance(error, asyncpg.LockNotAvailableError):
            raise lock_timeout(self.where, self._config.idle_transaction_timeout_s) from error
        if is_read_only(error):
            raise cannot_write(self.where, error) from error
        if is_lost(error, connection):
            raise lost(self.where, error) from error
