"""Base class of the embedded servers, and their log files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NoReturn

import msgspec

from qts.domain import Secret, ServerFailedError
from qts.embedded.binaries import Binary, find_binary, reachable_by_others
from qts.embedded.home import EmbeddedConfig, Home
from qts.embedded.process import (
    InheritedPaths,
    Launch,
    Process,
    service_user,
    spawn,
    stop,
    stop_orphan,
)

_QUOTED_BYTES = 4096


class LogFile:
    """Log of a child process: rotated by size, quoted when a start fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark = 0

    def rotate(self, limit_bytes: int) -> bool:
        """Copy a large log to `.log.1`, empty it, and return whether it was large.

        The child keeps its file, which it opened to append. Lines that it writes between the two
        steps are lost.
        """
        if self._size() <= limit_bytes:
            return False
        shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
        os.truncate(self.path, 0)
        return True

    def mark(self) -> None:
        """Mark the start of an attempt."""
        self._mark = self._size()

    def since_mark(self) -> str:
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(max(self._mark, self._size() - _QUOTED_BYTES))
            return file.read().decode(errors="replace")

    def last_lines(self, count: int = 5) -> str:
        """Return the end of the attempt's log in one line."""
        lines = [line.strip() for line in self.since_mark().splitlines() if line.strip()]
        return " | ".join(lines[-count:]) or "nothing"

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


READY_TIMEOUT_S = 60.0  # crash recovery replays the log since the last checkpoint
_RETRY_S = 0.1
_PORT_TAKEN = "Address already in use"


class EmbeddedServer(ABC):
    """Server below a home; the caller holds the lock of the home.

    A subclass defines its directory, its launch and when it is ready.
    """

    name: ClassVar[str]
    signals: ClassVar[Sequence[tuple[signal.Signals, float]]]
    """Signals that stop it, each with a timeout; the first is also sent when the parent dies."""

    def __init__(self, home: Home, config: EmbeddedConfig) -> None:
        self.home = home
        self.config = config
        self.user = service_user()
        self.log = LogFile(home.log / f"{self.name}.log")
        self.port = self.configured_port
        self.started_ms = 0.0
        self._process: Process | None = None
        self._binary: Binary | None = None
        self._started_at = 0.0
        self._should_run = False

    # Defined by subclasses

    @property
    @abstractmethod
    def configured_port(self) -> int:
        """TCP port in the settings; 0: any free one."""

    @property
    @abstractmethod
    def url(self) -> Secret:
        """URL of the Unix socket."""

    @property
    @abstractmethod
    def tcp_url(self) -> Secret | None:
        """URL over TCP, if enabled."""

    @property
    @abstractmethod
    def socket(self) -> Path: ...

    @property
    @abstractmethod
    def directory(self) -> Path:
        """Working directory of the running server."""

    @property
    @abstractmethod
    def pid_file(self) -> Path: ...

    @abstractmethod
    def prepare(self) -> None:
        """Create what the launch needs, such as a data directory."""

    @abstractmethod
    def launch(self, paths: InheritedPaths) -> Launch: ...

    @abstractmethod
    def is_ready(self) -> bool: ...

    @abstractmethod
    def clean_up(self) -> None:
        """Remove the sockets of a stopped server."""

    def is_transient(self, log: str) -> bool:
        """Return whether a start that failed with this log should be retried."""
        return _PORT_TAKEN in log and not self.configured_port

    # Shared

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self.prepare_start()
        self.start_process()
        self.wait_ready()

    def prepare_start(self) -> None:
        """Do everything that precedes the launch."""
        binary = find_binary(self.name)
        self._binary = reachable_by_others(binary) if self.user else binary
        self.home.create_directories()
        if self.user:
            os.chown(self.home.run, self.user.uid, self.user.gid)
        stop_orphan(self.pid_file, self.binary.path.name, self.directory, self.signals)
        self.clean_up()
        self.prepare()

    def start_process(self) -> None:
        """Launch the process without waiting until it is ready."""
        self._started_at = time.monotonic()
        self._should_run = True
        self._spawn()

    def wait_ready(self) -> None:
        """Wait until the server is ready; restart it after transient failures."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.is_ready():
            expired = time.monotonic() > deadline
            if not self.running:
                self._retry_start(expired)
            elif expired:
                self._fail(f"was not ready after {READY_TIMEOUT_S:.0f} s")
            time.sleep(0.01)
        self.started_ms = round((time.monotonic() - self._started_at) * 1000, 1)

    def stop(self) -> None:
        self._should_run = False
        self._end()

    @property
    def binary(self) -> Binary:
        if self._binary is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._binary

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def died(self) -> bool:
        """Return whether it was started, not stopped, and does not run."""
        return self._should_run and not self.running

    def describe(self) -> dict[str, object]:
        return {
            "name": self.name,
            "version": self._binary.version if self._binary else None,
            "binary": str(self._binary.path) if self._binary else None,
            "running": self.running,
            "pid": self.pid,
            "where": str(self.socket),
            "tcp": f"127.0.0.1:{self.port}" if self.config.tcp and self.running else None,
            "log": str(self.log.path),
            "started_ms": self.started_ms,
        }

    def _spawn(self) -> None:
        if self.config.tcp and not self.port:
            self.port = _free_port()
        self.log.mark()
        with InheritedPaths(self.user) as paths:
            launch = self.launch(paths)
            self._process = spawn(
                msgspec.structs.replace(
                    launch,
                    fds=paths.fds,
                    log=self.log.path,
                    user=self.user,
                    death_signal=self.signals[0][0],
                )
            )

    def _retry_start(self, expired: bool) -> None:
        log = self.log.since_mark()
        if expired or not self.is_transient(log):
            self._fail("ended")
        if _PORT_TAKEN in log:
            self.port = self.configured_port
        self.clean_up()
        time.sleep(_RETRY_S)
        self._spawn()

    def _end(self) -> None:
        if self._process is not None:
            stop(self._process, self.signals)
            self._process = None
            self.clean_up()

    def _fail(self, reason: str) -> NoReturn:
        self._end()
        raise ServerFailedError(
            f"{self.name} {reason}; {self.log.path} says: {self.log.last_lines()}"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
