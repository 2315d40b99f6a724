"""What every embedded server shares: start until ready, stop, see a death, tell about itself.

The log a server writes: bounded at each start, quoted when a start fails.
"""

from __future__ import annotations

import os
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
from qts.embedded.config import EmbeddedConfig
from qts.embedded.home import Home
from qts.embedded.orphan import stop_orphan
from qts.embedded.process import InheritedPaths, Launch, Process, service_user, spawn, stop

_LIMIT_BYTES = 10 * 1024 * 1024
_QUOTED_BYTES = 4096


class LogFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark = 0

    def bound(self) -> None:
        """Put a large log aside, over the one put aside before."""
        if self._size() > _LIMIT_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))

    def mark(self) -> None:
        """What follows belongs to the attempt that begins now."""
        self._mark = self._size()

    def since_mark(self) -> str:
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(max(self._mark, self._size() - _QUOTED_BYTES))
            return file.read().decode(errors="replace")

    def last_lines(self, count: int = 5) -> str:
        """The end of the attempt's log in one line."""
        lines = [line.strip() for line in self.since_mark().splitlines() if line.strip()]
        return " | ".join(lines[-count:]) or "nothing"

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


READY_LIMIT_S = 60.0  # a crash recovery reads all of the log since the last checkpoint
_RETRY_S = 0.1
_PORT_TAKEN = "Address already in use"


class EmbeddedServer(ABC):
    """One server below one home; the caller holds the lock of the home.

    A kind of server says where it works, how it is launched and when it is ready.
    """

    name: ClassVar[str]
    signals: ClassVar[Sequence[tuple[signal.Signals, float]]]
    """How to stop it: each signal and how long to wait; the first is also sent when we die."""

    def __init__(self, home: Home, config: EmbeddedConfig) -> None:
        self.home = home
        self.config = config
        self.account = service_user()
        self.log = LogFile(home.log / f"{self.name}.log")
        self.port = self.wanted_port
        self.started_ms = 0.0
        self._process: Process | None = None
        self._binary: Binary | None = None
        self._began = 0.0
        self._wanted = False

    # What a kind of server says

    @property
    @abstractmethod
    def wanted_port(self) -> int:
        """The TCP port of the settings; 0 is any."""

    @property
    @abstractmethod
    def url(self) -> Secret:
        """By Unix socket."""

    @property
    @abstractmethod
    def tcp_url(self) -> Secret | None:
        """By TCP, where that was asked for."""

    @property
    @abstractmethod
    def socket(self) -> Path: ...

    @property
    @abstractmethod
    def directory(self) -> Path:
        """The working directory of the running server."""

    @property
    @abstractmethod
    def pid_file(self) -> Path: ...

    @abstractmethod
    def prepare(self) -> None:
        """What must be there before the launch, such as a data directory."""

    @abstractmethod
    def launch(self, reach: InheritedPaths) -> Launch: ...

    @abstractmethod
    def is_ready(self) -> bool: ...

    @abstractmethod
    def tidy(self) -> None:
        """Remove the sockets of a server that is gone."""

    def may_pass(self, log: str) -> bool:
        """Whether a start that ended with this log is worth another try."""
        return _PORT_TAKEN in log and not self.wanted_port

    # What all do

    def start(self) -> None:
        """Ready when it returns."""
        self.clear_the_way()
        self.begin()
        self.finish()

    def clear_the_way(self) -> None:
        """Everything up to the launch."""
        binary = find_binary(self.name)
        self._binary = reachable_by_others(binary) if self.account else binary
        self.home.make_room()
        if self.account:
            os.chown(self.home.run, self.account.uid, self.account.gid)
        self.log.bound()
        stop_orphan(self.pid_file, self.binary.path.name, self.directory, self.signals)
        self.tidy()
        self.prepare()

    def begin(self) -> None:
        """Launch it, without waiting until it is ready."""
        self._began = time.monotonic()
        self._wanted = True
        self._spawn()

    def finish(self) -> None:
        """Wait until it answers, trying again while the failure is a passing one."""
        deadline = time.monotonic() + READY_LIMIT_S
        while not self.is_ready():
            late = time.monotonic() > deadline
            if not self.running:
                self._try_again(late)
            elif late:
                self._fail(f"was not ready after {READY_LIMIT_S:.0f} s")
            time.sleep(0.01)
        self.started_ms = round((time.monotonic() - self._began) * 1000, 1)

    def stop(self) -> None:
        self._wanted = False
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
        """Started, not stopped, and yet not running."""
        return self._wanted and not self.running

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
        with InheritedPaths(self.account) as reach:
            launch = self.launch(reach)
            self._process = spawn(
                msgspec.structs.replace(
                    launch,
                    fds=reach.fds,
                    log=self.log.path,
                    account=self.account,
                    death_signal=self.signals[0][0],
                )
            )

    def _try_again(self, late: bool) -> None:
        log = self.log.since_mark()
        if late or not self.may_pass(log):
            self._fail("ended")
        if _PORT_TAKEN in log:
            self.port = self.wanted_port
        self.tidy()
        time.sleep(_RETRY_S)
        self._spawn()

    def _end(self) -> None:
        if self._process is not None:
            stop(self._process, self.signals)
            self._process = None
            self.tidy()

    def _fail(self, how: str) -> NoReturn:
        self._end()
        raise ServerFailedError(f"{self.name} {how}; {self.log.path} says: {self.log.last_lines()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
