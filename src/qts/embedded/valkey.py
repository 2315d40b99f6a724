"""Valkey server below the home directory, without persistence."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qts.domain import Secret
from qts.embedded.home import VALKEY_SOCKET
from qts.embedded.process import LINUX, InheritedPaths, Launch
from qts.embedded.server import EmbeddedServer


class ValkeyServer(EmbeddedServer):
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
