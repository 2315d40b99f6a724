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
    """PostgreSQL and Valkey as child processes that end with this process.

    Calls block and are thread-safe; a program with an event loop uses `asyncio.to_thread`.
    """

    def __init__(
        self, home: Home, config: EmbeddedConfig, *, postgres: bool = True, valkey: bool = True
    ) -> None:
        self.home = home
        self.postgres = PostgresServer(home, config) if postgres else None
        self.valkey = ValkeyServer(home, config) if valkey else None
        self._lock: HomeLock | None = None
        self._mutex = threading.RLock()

    def start(self) -> None:
        """Start all servers and wait until they are ready; on an error none keeps running."""
        with self._mutex:
            if self._lock is not None:
                return
            try:
                self._lock = self.home.lock()
                self.home.create_directories()  # logs are there though no server is embedded
                self._start(self._all())
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        with self._mutex:
            for server in self._all():
                server.stop()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def restart_dead(self) -> list[str]:
        """Restart the servers that died and return their names."""
        with self._mutex:
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
                server.prepare_start()
            # All are launched before any wait.
            for server in servers:
                server.start_process()
            for server in servers:
                server.wait_ready()
        except OSError as error:
            raise ServerFailedError(
                f"the servers of home {self.home.path} failed: {error}"
            ) from error
