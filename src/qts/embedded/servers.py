"""The embedded servers of one home, started and stopped together under its lock."""

from __future__ import annotations

import threading
from types import TracebackType

from qts.domain import ServerFailedError
from qts.embedded.config import EmbeddedConfig
from qts.embedded.home import Home, HomeLock
from qts.embedded.postgres import PostgresServer
from qts.embedded.server import EmbeddedServer
from qts.embedded.valkey import ValkeyServer


class EmbeddedServers:
    """PostgreSQL and Valkey as children of this process; gone when it is gone.

    Calls block and may come from any thread: a program with an event loop uses
    `asyncio.to_thread`.
    """

    def __init__(
        self, home: Home, config: EmbeddedConfig, *, postgres: bool = True, valkey: bool = True
    ) -> None:
        self.home = home
        self.postgres = PostgresServer(home, config) if postgres else None
        self.valkey = ValkeyServer(home, config) if valkey else None
        self._lock: HomeLock | None = None
        self._turn = threading.RLock()

    def start(self) -> None:
        """Ready when it returns; HomeInUse or ServerFailed leave nothing running."""
        with self._turn:
            if self._lock is not None:
                return
            try:
                self._lock = self.home.lock()
                self._start(self._all())
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        with self._turn:
            for server in self._all():
                server.stop()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def restart_dead(self) -> list[str]:
        """Start again what died since; the names of those."""
        with self._turn:
            dead = [server for server in self._all() if server.died]
            self._start(dead)
            return [server.name for server in dead]

    def describe(self) -> list[dict[str, object]]:
        return [server.describe() for server in self._all()]

    def __enter__(self) -> EmbeddedServers:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _all(self) -> list[EmbeddedServer]:
        return [server for server in (self.valkey, self.postgres) if server is not None]

    def _start(self, servers: list[EmbeddedServer]) -> None:
        try:
            for server in servers:
                server.clear_the_way()
            # All are launched before any is waited for.
            for server in servers:
                server.begin()
            for server in servers:
                server.finish()
        except OSError as error:
            raise ServerFailedError(
                f"the servers of home {self.home.path} failed: {error}"
            ) from error
