"""The pool of connections and the transactions on it.

A connection that died while it lay in the pool (the server restarted, a backend was ended)
is never handed to a caller: its first words are ours, BEGIN or a question that changes
nothing. When they find it dead every pooled connection is replaced, and they are said once
more on a fresh one. A connection lost after that is the caller's to know:

    lost in the block of transaction()   Unreachable: nothing was kept
    lost during COMMIT                   OutcomeUnknown: it may have been kept
    lost during a single statement       OutcomeUnknown
    silent for longer than a statement   as lost
    waited too long for a lock           Failed: nothing was kept; see frozen.py
    read-only, or its disk is full       Failed: nothing was kept
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import asyncpg
import msgspec

from qts import telemetry
from qts.database.config import DatabaseConfig
from qts.database.connection import (
    Connection,
    Isolation,
    PooledConnection,
    Row,
    begin,
    commit,
    configure_connection,
    rollback,
)
from qts.database.errors import (
    DRIVER_ERRORS,
    cancelled,
    held,
    is_gone,
    is_lost,
    is_read_only,
    outcome_unknown,
    reason,
    refused_to_write,
    unreachable,
)
from qts.database.listener import Listener
from qts.database.server import address_of, connect_options, terminate_stuck_sessions
from qts.domain import Clock, Secret, SystemClock, UnreachableError

log = telemetry.logger("database")


def _in_one_line(record: logging.LogRecord) -> bool:
    """While a server is away asyncpg tells of each attempt to reconnect with a whole traceback."""
    if record.exc_info and record.exc_info[1]:
        record.msg, record.args = f"{record.getMessage()}: {reason(record.exc_info[1])}", ()
        record.exc_info = None
    return True


logging.getLogger("asyncpg.pool").addFilter(_in_one_line)


class Ping(msgspec.Struct, frozen=True):
    """One question and its answer."""

    latency_ms: float
    server_version: str


class Database:
    """PostgreSQL through a pool; for one event loop."""

    def __init__(self, pool: Any, url: Secret, config: DatabaseConfig, clock: Clock) -> None:
        self._pool = pool
        self._url = url
        self._config = config
        self._clock = clock
        self.where = address_of(url)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: Secret, config: DatabaseConfig, *, clock: Clock | None = None
    ) -> AsyncIterator[Self]:
        """Connect, and close on the way out."""
        where = address_of(url)
        try:
            pool = await asyncpg.create_pool(
                **connect_options(url, config),
                min_size=config.pool_min,
                max_size=config.pool_max,
                init=functools.partial(configure_connection, where=where),
                connection_class=PooledConnection,
            )
        except (asyncpg.InternalClientError, *DRIVER_ERRORS) as error:
            raise unreachable(where, error) from error
        database = cls(pool, url, config, clock or SystemClock())
        try:
            yield database
        finally:
            await database.close()

    async def close(self) -> None:
        """Wait for connections in use as long as for a connect, then cut them."""
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._pool.close()
        except TimeoutError:
            log.warning("connections still in use were cut", server=self.where)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        isolation: Isolation = "read committed",
        read_only: bool = False,
        durable: bool = False,
    ) -> AsyncIterator[Connection]:
        """Commit at the end of the block, or roll back and raise the block's error on.

        `durable`: on disk once it is committed, whatever the server's settings say. What is set in
        it is set by SET LOCAL.
        """
        connection = await self._take(begin(isolation, read_only, durable))
        try:
            try:
                yield connection
            except BaseException as error:
                await rollback(connection)
                await self._free(error, connection)
                self._raise_ours(error, connection, unreachable)
                if isinstance(error, TimeoutError) and is_gone(connection):
                    raise unreachable(self.where, error) from error  # no answer to ROLLBACK, too
                raise
            try:
                await commit(connection)
            except DRIVER_ERRORS as error:
                await rollback(connection)
                self._raise_ours(error, connection, outcome_unknown)
                if isinstance(error, TimeoutError):
                    raise outcome_unknown(self.where, error) from error
                raise
        finally:
            await self._give_back(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection outside a transaction: every statement commits by itself.

        What is set on it, locked or listened to ends with the block.
        """
        async with self._session() as connection:
            connection._con.lent = True
            yield connection

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        connection = await self._take("SELECT 1")
        try:
            yield connection
        except DRIVER_ERRORS as error:
            await self._free(error, connection)
            self._raise_ours(error, connection, outcome_unknown)
            raise
        finally:
            await self._give_back(connection)

    @asynccontextmanager
    async def _statement(self) -> AsyncIterator[Any]:
        """For one statement: a TimeoutError in it is the server's silence and nobody else's."""
        async with self._session() as connection:
            try:
                yield connection
            except TimeoutError as error:
                if not is_gone(connection):
                    connection.terminate()
                raise outcome_unknown(self.where, error) from error

    async def execute(self, query: str, *args: Any) -> str:
        async with self._statement() as connection:
            connection._con.lent = True
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
        """Like fetch, for a statement that may be said twice: one answer to wait for, not two.

        It is itself the first word on its connection, and said again when that one had died.
        """
        for is_last in (False, True):
            connection = await self._acquire()
            try:
                return await connection.fetch(  # type: ignore[no-any-return]
                    query, *args, timeout=self._config.connect_timeout_s
                )
            except DRIVER_ERRORS as error:
                silent = isinstance(error, TimeoutError)
                if silent and not is_gone(connection):
                    connection.terminate()
                if is_last and silent:
                    raise outcome_unknown(self.where, error) from error
                if is_last or not (silent or is_lost(error, connection)):
                    await self._free(error, connection)
                    self._raise_ours(error, connection, outcome_unknown)
                    raise
                await self._pool.expire_connections()
            finally:
                await self._give_back(connection)
        raise AssertionError("the second round returns or raises")

    async def ping(self) -> Ping:
        async with self.connection() as connection:
            before_ns = self._clock.monotonic_ns()
            version = await connection.fetchval("SELECT current_setting('server_version')")
            latency_ns = self._clock.monotonic_ns() - before_ns
        return Ping(latency_ms=latency_ns / 1e6, server_version=version)

    def listen(self, *channels: str) -> AbstractAsyncContextManager[Listener]:
        """Notifications of these channels, on a connection of their own that comes back."""
        connect = functools.partial(asyncpg.connect, **connect_options(self._url, self._config))
        return Listener(connect, channels, self.where, self._clock)

    async def _take(self, first_words: str) -> Any:
        limit_s = self._config.connect_timeout_s
        for is_last in (False, True):
            connection = await self._acquire()
            try:
                await connection.execute(first_words, timeout=limit_s)
            except BaseException as error:
                stale = isinstance(error, TimeoutError) or is_lost(error, connection)
                if not is_gone(connection):
                    connection.terminate()
                await self._give_back(connection)
                if not stale or is_last:
                    self._raise_ours(error, connection, unreachable)
                    raise
                await self._pool.expire_connections()
            else:
                return connection
        raise AssertionError("the second round returns or raises")

    async def _acquire(self) -> Any:
        limit_s = self._config.connect_timeout_s
        try:
            return await self._pool.acquire(timeout=limit_s)
        except TimeoutError as error:
            if self._pool.get_size() >= self._config.pool_max and not self._pool.get_idle_size():
                raise UnreachableError(
                    f"all {self._config.pool_max} connections to PostgreSQL at {self.where} were "
                    f"in use for {limit_s:g} s; hold them shorter or raise database.pool_max"
                ) from None
            raise unreachable(self.where, error) from error
        except DRIVER_ERRORS as error:
            raise unreachable(self.where, error) from error

    async def _give_back(self, connection: Any) -> None:
        try:
            await self._pool.release(connection)
        except DRIVER_ERRORS as error:
            # The block has ended and its outcome stands; asyncpg has dropped the connection.
            log.debug("a connection was lost on its way back", server=self.where, error=error)

    async def _free(self, error: BaseException, connection: Any) -> None:
        """Nobody may hold what others wait for so long: whoever does so has stopped."""
        if isinstance(error, asyncpg.LockNotAvailableError):
            try:
                await terminate_stuck_sessions(connection, self._config.idle_transaction_timeout_s)
            except DRIVER_ERRORS as trouble:
                log.warning("frozen sessions could not be ended", error=reason(trouble))

    def _raise_ours(self, error: BaseException, connection: Any, lost: Any) -> None:
        if isinstance(error, asyncpg.QueryCanceledError):
            raise cancelled(self.where, error, self._config.statement_timeout_s) from error
        if isinstance(error, asyncpg.LockNotAvailableError):
            raise held(self.where, self._config.idle_transaction_timeout_s) from error
        if is_read_only(error):
            raise refused_to_write(self.where, error) from error
        if is_lost(error, connection):
            raise lost(self.where, error) from error
