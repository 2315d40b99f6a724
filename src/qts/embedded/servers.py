"""Valkey and NATS servers of a home; all its embedded servers, started and stopped together."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, ClassVar

import msgspec

from qts.domain import RefusedError, Secret, ServerFailedError
from qts.embedded.home import VALKEY_SOCKET, EmbeddedConfig, Home, HomeLock
from qts.embedded.postgres import PostgresServer
from qts.embedded.process import LINUX, InheritedPaths, Launch
from qts.embedded.server import EmbeddedServer


class ValkeyServer(EmbeddedServer):
    """Valkey server below the home directory, without persistence."""

    name = "valkey"
    signals: ClassVar[Sequence[tuple[signal.Signals, float]]] = ((signal.SIGTERM, 10.0),)

    @property
    def configured_port(self) -> int:
        return self.config.valkey_port if self.config.tcp else 0

    @property
    def url(self) -> Secret:
        return self.home.valkey_url()

    @property
    def tcp_url(self) -> Secret | None:
        password = self.home.password(self.name)
        if not self.config.tcp or password is None:
            return None
        return Secret(f"redis://:{password.reveal()}@127.0.0.1:{self.port}/0")

    @property
    def socket(self) -> Path:
        return self.home.run / VALKEY_SOCKET

    @property
    def directory(self) -> Path:
        return self.home.run

    @property
    def pid_file(self) -> Path:
        return self.home.run / "valkey.pid"

    def prepare(self) -> None:
        # The password would apply to the Unix socket too, so it is set only for TCP.
        if not self.config.tcp:
            self.home.store_password(self.name, None)
        elif self.home.password(self.name) is None:
            self.home.store_password(self.name, Secret(secrets.token_urlsafe(24)))

    def launch(self, paths: InheritedPaths) -> Launch:
        # By stdin: every user of the machine can read a password on the command line.
        return Launch(
            argv=[str(self.binary.path), "-"],
            log=self.log.path,
            cwd=self.home.run,
            stdin=self._settings(paths.path(self.home.run)).encode(),
        )

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1.0)
            try:
                link.connect(str(self.socket))
                link.sendall(b"PING\r\n")
                # A request for the password is an answer too.
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False

    def clean_up(self) -> None:
        for leftover in (self.socket, self.pid_file):
            leftover.unlink(missing_ok=True)

    def _settings(self, run: str) -> str:
        lines = [
            f"port {self.port if self.config.tcp else 0}",
            "bind 127.0.0.1",
            "protected-mode yes",
            f"unixsocket {run}/{VALKEY_SOCKET}",
            "unixsocketperm 700",
            f"pidfile {run}/{self.pid_file.name}",
            "daemonize no",
            'save ""',
            "appendonly no",
            f"maxmemory {self.config.valkey_memory_mb}mb",
            # When full, prices are evicted first and the daily trade count last.
            "maxmemory-policy volatile-ttl",
            "maxmemory-samples 10",
        ]
        if not LINUX:
            lines.append('proc-title-template "{title} {unixsocket}"')
        if password := self.home.password(self.name):
            lines.append(f"requirepass {password.reveal()}")
        return "\n".join(lines) + "\n"


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


_USER = "qts"
_PORT_TAKEN = "address already in use"  # Go's spelling


class NatsServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NATS has no Unix sockets: it listens on 127.0.0.1 with a generated password."""

    port: Annotated[
        int, msgspec.Meta(ge=0, le=65535, description="TCP port of NATS; 0: any free one")
    ] = 0
    sync_interval: Annotated[
        str,
        msgspec.Meta(
            pattern="^(always|[1-9][0-9]*(ms|s|m|h))$",
            description="how often streams are synced to disk; always: before each reply",
        ),
    ] = "2m"
    store_mb: Annotated[int, msgspec.Meta(ge=16, description="size limit of all streams")] = 1024


class NatsServer(EmbeddedServer):
    """NATS server with JetStream, started only on request.

    As a context manager, `with NatsServer(home) as nats:` also holds the lock of the home.
    """

    name = "nats"
    signals: ClassVar[Sequence[tuple[signal.Signals, float]]] = ((signal.SIGTERM, 10.0),)

    def __init__(self, home: Home, config: NatsServerConfig | None = None) -> None:
        try:  # validates the values, which the constructor does not
            self.settings = msgspec.convert(
                msgspec.to_builtins(config or NatsServerConfig()), NatsServerConfig
            )
        except msgspec.ValidationError as error:
            raise RefusedError(f"settings of NATS: {error}") from None
        super().__init__(home, EmbeddedConfig(tcp=True))
        self._lock: HomeLock | None = None
        self._server_name = ""

    @property
    def configured_port(self) -> int:
        return self.settings.port

    @property
    def url(self) -> Secret:
        password = self.home.password(self.name)
        login = f"{_USER}:{password.reveal()}@" if password else ""
        return Secret(f"nats://{login}127.0.0.1:{self.port}")

    @property
    def tcp_url(self) -> Secret | None:
        return self.url

    @property
    def socket(self) -> Path:
        return self.home.run  # it has no socket; describe() reports its port

    @property
    def directory(self) -> Path:
        return self.home.run

    @property
    def store(self) -> Path:
        """Directory of the streams."""
        return self.home.path / "nats"

    @property
    def pid_file(self) -> Path:
        return self.home.run / "nats.pid"

    def prepare(self) -> None:
        if self.home.password(self.name) is None:
            self.home.store_password(self.name, Secret(secrets.token_urlsafe(24)))
        self.store.mkdir(mode=0o700, exist_ok=True)
        if self.user:
            os.chown(self.store, self.user.uid, self.user.gid)

    def launch(self, paths: InheritedPaths) -> Launch:
        # In a file: every user of the machine can read a password on the command line.
        run = paths.path(self.home.run)
        self._write_settings(self._settings(run, paths.path(self.store)))
        return Launch(
            argv=[str(self.binary.path), "-c", f"{run}/{self._settings_file.name}"],
            log=self.log.path,
            cwd=self.home.run,
        )

    def is_ready(self) -> bool:
        """Return whether this server answers; another one may have taken the port."""
        with socket.socket() as link:
            link.settimeout(1.0)
            try:
                link.connect(("127.0.0.1", self.port))
                with link.makefile("rb") as lines:
                    info = json.loads(lines.readline(64 * 1024).removeprefix(b"INFO "))
            except (OSError, ValueError):
                return False
        return bool(info.get("jetstream")) and info.get("server_name") == self._server_name

    def clean_up(self) -> None:
        for leftover in (self.pid_file, self._settings_file):
            leftover.unlink(missing_ok=True)

    def is_transient(self, log: str) -> bool:
        if _PORT_TAKEN not in log or self.configured_port:
            return False
        self.port = 0  # the next attempt chooses another port
        return True

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "where": f"127.0.0.1:{self.port}"}

    def __enter__(self) -> NatsServer:
        try:
            self._lock = self.home.lock()
            self.start()
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, OSError):
                raise ServerFailedError(f"nats of home {self.home.path} failed: {error}") from error
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def _settings_file(self) -> Path:
        return self.home.run / "nats.conf"

    def _write_settings(self, text: str) -> None:
        self._settings_file.unlink(missing_ok=True)
        file = os.open(self._settings_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, text.encode())
            if self.user:
                os.fchown(file, self.user.uid, self.user.gid)
        finally:
            os.close(file)

    def _settings(self, run: str, store: str) -> str:
        password = self.home.password(self.name)
        assert password is not None  # noqa: S101 - prepare() sets it
        self._server_name = f"qts-{secrets.token_hex(8)}"
        lines = {
            "host": "127.0.0.1",
            "port": self.port,
            "server_name": self._server_name,
            "pid_file": f"{run}/{self.pid_file.name}",
            "authorization": {"user": _USER, "password": password.reveal()},
            # Quoted durations: NATS drops the unit of unquoted ones with only a warning.
            "jetstream": {
                "store_dir": store,
                "max_file_store": self.settings.store_mb * 1024 * 1024,
                "max_memory_store": 16 * 1024 * 1024,
                "sync_interval": self.settings.sync_interval,
            },
        }
        return json.dumps(lines, indent=2)
