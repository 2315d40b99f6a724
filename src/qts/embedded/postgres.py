"""PostgreSQL server below the home directory."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qts.domain import Secret
from qts.embedded.home import POSTGRES_PORT
from qts.embedded.postgres_data import PostgresDataDirectory
from qts.embedded.process import InheritedPaths, Launch
from qts.embedded.server import EmbeddedServer

_SETTINGS = {
    "cluster_name": "qts",
    "fsync": "on",
    "full_page_writes": "on",
    "jit": "off",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "unix_socket_permissions": "0700",
}


class PostgresServer(EmbeddedServer):
    name = "postgres"
    # SIGINT ends sessions and writes a checkpoint; SIGQUIT leaves recovery to the next start.
    signals: ClassVar[Sequence[tuple[signal.Signals, float]]] = (
        (signal.SIGINT, 30.0),
        (signal.SIGQUIT, 10.0),
    )

    @property
    def configured_port(self) -> int:
        return self.config.postgres_port if self.config.tcp else 0

    @property
    def url(self) -> Secret:
        return self.home.postgres_url()

    @property
    def tcp_url(self) -> Secret | None:
        password = self.home.password(self.name)
        if not self.config.tcp or password is None:
            return None
        return Secret(f"postgresql://qts:{password.reveal()}@127.0.0.1:{self.port}/qts")

    @property
    def socket(self) -> Path:
        return self.home.run / f".s.PGSQL.{POSTGRES_PORT}"

    @property
    def directory(self) -> Path:
        return self.home.data

    @property
    def pid_file(self) -> Path:
        return self.home.data / "postmaster.pid"

    def prepare(self) -> None:
        data = PostgresDataDirectory(self.home, self.binary, self.user, self.log)
        data.ensure()
        data.neutralise_pid_file()
        if self.config.tcp:
            data.ensure_password()

    def launch(self, paths: InheritedPaths) -> Launch:
        settings = _SETTINGS | {
            "listen_addresses": "127.0.0.1" if self.config.tcp else "",
            "port": str(self._socket_number),
            "unix_socket_directories": paths.path(self.home.run),
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        argv = [str(self.binary.path), "-D", paths.path(self.home.data), *options]
        return Launch(argv=argv, log=self.log.path)

    def is_ready(self) -> bool:
        try:
            lines = self.pid_file.read_text().splitlines()
        except FileNotFoundError:
            return False
        if len(lines) < 8 or lines[0] != str(self.pid) or lines[7].strip() != "ready":
            return False
        if self._socket_number != POSTGRES_PORT:
            # The Unix socket is named after the TCP port; clients expect the default name.
            self.socket.unlink(missing_ok=True)
            self.socket.symlink_to(f".s.PGSQL.{self._socket_number}")
        return True

    def clean_up(self) -> None:
        for leftover in self.home.run.glob(".s.PGSQL.*"):
            leftover.unlink(missing_ok=True)

    def is_transient(self, log: str) -> bool:
        # Backends of a killed server exit on their own.
        return "pre-existing shared memory block" in log or super().is_transient(log)

    @property
    def _socket_number(self) -> int:
        return self.port if self.config.tcp else POSTGRES_PORT
