"""PostgreSQL server below the home directory, and its data directory."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qts.domain import Secret, ServerFailedError
from qts.embedded.binaries import Binary
from qts.embedded.home import POSTGRES_PORT, Home
from qts.embedded.process import InheritedPaths, Launch, ServiceUser, read_pid, spawn, stop
from qts.embedded.server import EmbeddedServer, LogFile

_TIMEOUT_S = 120.0
_DRAFT = "postgres.draft-"
_BUILTIN_LOCALE_SINCE = 17
# A new segment of the log is written and synced inside a commit. A checkpoint keeps old ones to be
# used again: four, and the current one, are as many as it always keeps.
_SPARE_SEGMENTS = (
    *4 * ("SELECT pg_logical_emit_message(false, 'qts', ''), pg_switch_wal()",),
    "CHECKPOINT",
)
_HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


class PostgresDataDirectory:
    """Data directory; used under the lock of the home, while no server runs.

        no data ──initdb into a draft──▶ database, password ──▶ rename to postgres

    A kill at any point leaves either no data directory or a complete one.
    """

    def __init__(self, home: Home, binary: Binary, user: ServiceUser | None, log: LogFile) -> None:
        self._home = home
        self._data = home.data
        self._binary = binary
        self._user = user
        self._log = log

    def ensure(self) -> None:
        """Create the data directory, or check that this PostgreSQL can open it."""
        for leftover in self._home.path.glob(f"{_DRAFT}*"):
            # A dying initdb may still write there; the next start removes the rest.
            shutil.rmtree(leftover, ignore_errors=True)
        version = self._data / "PG_VERSION"
        if not version.exists():
            self._initialise()
        elif (created_by := version.read_text().strip()) != self._binary.major:
            raise ServerFailedError(
                f"{self._data} was created by PostgreSQL {created_by} and {self._binary.path} is "
                f"{self._binary.version}; use PostgreSQL {created_by}, or dump and restore, or "
                f"choose another QTS_HOME"
            )

    def ensure_password(self) -> None:
        """Set a new password if its file is missing."""
        if self._home.password("postgres") is None:
            self._with_password(self._data)

    def neutralise_pid_file(self) -> None:
        """Replace the pid in the pid file of a dead server by that of this process.

        Another process may have that pid by now, and PostgreSQL would refuse to start. It ignores
        the pid of its parent. The rest of the file stays: it identifies the shared memory that
        surviving backends may still use.
        """
        pid_file = self._data / "postmaster.pid"
        if read_pid(pid_file) is None:
            # Missing, or truncated by a power cut: PostgreSQL would refuse to start.
            pid_file.unlink(missing_ok=True)
            return
        _, _, rest = pid_file.read_bytes().partition(b"\n")
        file = os.open(pid_file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        os.write(file, f"{os.getpid()}\n".encode() + rest)
        os.close(file)

    def _initialise(self) -> None:
        data = self._data
        if data.exists() and any(data.iterdir()):
            raise ServerFailedError(
                f"{data} has files but no PG_VERSION, so is not a data directory; move it away"
            )
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._home.path))
        if self._user:
            os.chown(draft, self._user.uid, self._user.gid)
        self._initdb(draft)
        (draft / "pg_hba.conf").write_text(_HBA)
        self._with_password(draft, "CREATE DATABASE qts", *_SPARE_SEGMENTS)
        draft.rename(data)
        home = os.open(self._home.path, os.O_RDONLY)
        os.fsync(home)
        os.close(home)

    def _initdb(self, draft: Path) -> None:
        common = ["-U", "qts", "-A", "trust", "-E", "UTF8", "--data-checksums", "--no-instructions"]
        if int(self._binary.major) >= _BUILTIN_LOCALE_SINCE:
            locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            self._run("initdb", [], draft, [*common, *locale])
            return
        try:
            self._run("initdb", [], draft, [*common, "--locale=C.UTF-8"])
        except ServerFailedError:
            if "invalid locale" not in self._log.since_mark():
                raise
            self._run("initdb", [], draft, [*common, "--locale=C"])

    def _with_password(self, data: Path, *statements: str) -> None:
        """Run statements in single-user mode and set a new password.

        They are passed by stdin, invisible to other users, and are not logged.
        """
        password = Secret(secrets.token_urlsafe(24))
        lines = [*statements, f"ALTER ROLE qts PASSWORD '{password.reveal()}'"]
        settings = ("exit_on_error=on", "log_min_error_statement=panic", "log_checkpoints=off")
        options = [part for setting in settings for part in ("-c", setting)]
        stdin = "".join(f"{line}\n" for line in lines)
        self._run("postgres", ["--single"], data, [*options, "postgres"], stdin)
        self._home.store_password("postgres", password)

    def _run(
        self, program: str, head: list[str], data: Path, tail: list[str], stdin: str = ""
    ) -> None:
        self._log.mark()
        path = self._binary.path.with_name(program)
        with InheritedPaths(self._user) as paths:
            process = spawn(
                Launch(
                    argv=[str(path), *head, "-D", paths.path(data), *tail],
                    log=self._log.path,
                    stdin=stdin.encode(),
                    fds=paths.fds,
                    user=self._user,
                )
            )
        try:
            code: int | str = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = f"timeout after {_TIMEOUT_S:.0f} s"
        finally:
            stop(process, [(signal.SIGTERM, 5.0)])
        if code != 0:
            log = self._log
            raise ServerFailedError(
                f"{program} failed ({code}); {log.path} says: {log.last_lines()}"
            )


def recovery_sync(system: str, release: str) -> dict[str, str]:
    """Return how a start after a crash syncs the data directory: all of it in one call.

    File by file it takes seconds. Linux before 5.8 does not report errors of the one call.
    """
    version = tuple(map(int, re.findall(r"\d+", release)[:2]))
    is_safe = system == "linux" and version >= (5, 8)
    return {"recovery_init_sync_method": "syncfs"} if is_safe else {}


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
} | recovery_sync(sys.platform, platform.release())


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
