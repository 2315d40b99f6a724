"""A real NATS with JetStream below the home directory, started only where it is asked for."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, ClassVar

import msgspec

from qts.domain import RefusedError, Secret, ServerFailedError
from qts.embedded.config import EmbeddedConfig
from qts.embedded.home import Home, HomeLock
from qts.embedded.process import InheritedPaths, Launch
from qts.embedded.server import EmbeddedServer

_USER = "qts"
_PORT_TAKEN = "address already in use"  # as Go writes it


class NatsServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NATS knows no Unix sockets: it listens on 127.0.0.1, behind a generated password."""

    port: Annotated[
        int, msgspec.Meta(ge=0, le=65535, description="TCP port of NATS; 0: any free one")
    ] = 0
    sync_interval: Annotated[
        str,
        msgspec.Meta(
            pattern="^(always|[1-9][0-9]*(ms|s|m|h))$",
            description="how often streams are forced onto the disk; always: before each answer",
        ),
    ] = "2m"
    store_mb: Annotated[
        int, msgspec.Meta(ge=16, description="above this streams take nothing more")
    ] = 1024


class NatsServer(EmbeddedServer):
    """Alone, `with Nats(home) as nats:` holds the lock of the home; nats.url says where it is."""

    name = "nats"
    signals: ClassVar[Sequence[tuple[signal.Signals, float]]] = ((signal.SIGTERM, 10.0),)

    def __init__(self, home: Home, config: NatsServerConfig | None = None) -> None:
        try:  # a struct made in Python is not checked until it is converted
            self.settings = msgspec.convert(
                msgspec.to_builtins(config or NatsServerConfig()), NatsServerConfig
            )
        except msgspec.ValidationError as error:
            raise RefusedError(f"settings of NATS: {error}") from None
        super().__init__(home, EmbeddedConfig(tcp=True))
        self._lock: HomeLock | None = None
        self._server_name = ""

    @property
    def wanted_port(self) -> int:
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
        return self.home.run  # it has none; describe tells its port

    @property
    def directory(self) -> Path:
        return self.home.run

    @property
    def store(self) -> Path:
        """Where its streams lie."""
        return self.home.path / "nats"

    @property
    def pid_file(self) -> Path:
        return self.home.run / "nats.pid"

    def prepare(self) -> None:
        if self.home.password(self.name) is None:
            self.home.keep_password(self.name, Secret(secrets.token_urlsafe(24)))
        self.store.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(self.store, self.account.uid, self.account.gid)

    def launch(self, reach: InheritedPaths) -> Launch:
        # A file, not the command line: a password there is seen by every user of the machine.
        run = reach.path(self.home.run)
        self._write_settings(self._settings(run, reach.path(self.store)))
        return Launch(
            argv=[str(self.binary.path), "-c", f"{run}/{self._settings_file.name}"],
            log=self.log.path,
            cwd=self.home.run,
        )

    def is_ready(self) -> bool:
        """Whether our own server answers: a port may have been taken by another one meanwhile."""
        with socket.socket() as link:
            link.settimeout(1.0)
            try:
                link.connect(("127.0.0.1", self.port))
                with link.makefile("rb") as lines:
                    told = json.loads(lines.readline(64 * 1024).removeprefix(b"INFO "))
            except (OSError, ValueError):
                return False
        return bool(told.get("jetstream")) and told.get("server_name") == self._server_name

    def tidy(self) -> None:
        for leftover in (self.pid_file, self._settings_file):
            leftover.unlink(missing_ok=True)

    def may_pass(self, log: str) -> bool:
        if _PORT_TAKEN not in log or self.wanted_port:
            return False
        self.port = 0  # the next attempt chooses another
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
            if self.account:
                os.fchown(file, self.account.uid, self.account.gid)
        finally:
            os.close(file)

    def _settings(self, run: str, store: str) -> str:
        password = self.home.password(self.name)
        assert password is not None  # noqa: S101 - prepare has made one
        self._server_name = f"qts-{secrets.token_hex(8)}"
        lines = {
            "host": "127.0.0.1",
            "port": self.port,
            "server_name": self._server_name,
            "pid_file": f"{run}/{self.pid_file.name}",
            "authorization": {"user": _USER, "password": password.reveal()},
            # Durations in quotes: without them a unit is dropped with a mere warning.
            "jetstream": {
                "store_dir": store,
                "max_file_store": self.settings.store_mb * 1024 * 1024,
                "max_memory_store": 16 * 1024 * 1024,
                "sync_interval": self.settings.sync_interval,
            },
        }
        return json.dumps(lines, indent=2)
