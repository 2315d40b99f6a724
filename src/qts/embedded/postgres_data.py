"""The data directory of PostgreSQL: made whole or not at all.

    no data ──initdb into a draft──▶ database, password ──▶ rename to postgres

A kill at any point leaves either no data directory or a whole one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from qts.domain import Secret, ServerFailedError
from qts.embedded.binaries import Binary
from qts.embedded.home import Home
from qts.embedded.orphan import read_pid
from qts.embedded.process import InheritedPaths, Launch, ServiceUser, spawn, stop
from qts.embedded.server import LogFile

_LIMIT_S = 120.0
_DRAFT = "postgres.draft-"
_BUILTIN_LOCALE_SINCE = 17
_HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


class PostgresDataDirectory:
    """To be used under the lock of the home, while no server runs on the data."""

    def __init__(
        self, home: Home, binary: Binary, account: ServiceUser | None, log: LogFile
    ) -> None:
        self._home = home
        self._data = home.data
        self._binary = binary
        self._account = account
        self._log = log

    def ensure(self) -> None:
        """A data directory this PostgreSQL can open."""
        for leftover in self._home.path.glob(f"{_DRAFT}*"):
            # An initdb that is just dying may still write there; the next start removes the rest.
            shutil.rmtree(leftover, ignore_errors=True)
        version = self._data / "PG_VERSION"
        if not version.exists():
            self._initialise()
        elif (made_by := version.read_text().strip()) != self._binary.major:
            raise ServerFailedError(
                f"{self._data} was made by PostgreSQL {made_by} and {self._binary.path} is "
                f"{self._binary.version}; use PostgreSQL {made_by}, or dump and restore, or choose "
                f"another QTS_HOME"
            )

    def ensure_password(self) -> None:
        """The password was made with the data; this replaces one whose file was lost."""
        if self._home.password("postgres") is None:
            self._with_password(self._data)

    def disown_pid_file(self) -> None:
        """Make the pid file a dead server left behind harmless to the next one.

        The number in it may be that of another process by now, and PostgreSQL would take that for a
        rival. The rest stays: it names the shared memory that surviving backends may still
        use. So the number becomes ours, as PostgreSQL never suspects its own parent.
        """
        pid_file = self._data / "postmaster.pid"
        if read_pid(pid_file) is None:
            # Absent, or torn by a power cut: PostgreSQL would refuse to start over that.
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
                f"{data} has files but no PG_VERSION, so is not ours; move it away"
            )
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._home.path))
        if self._account:
            os.chown(draft, self._account.uid, self._account.gid)
        self._initdb(draft)
        (draft / "pg_hba.conf").write_text(_HBA)
        self._with_password(draft, "CREATE DATABASE qts")
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
        """Run statements without a server and set a new password.

        They travel by stdin, where no other user sees them, and are not logged.
        """
        password = Secret(secrets.token_urlsafe(24))
        lines = [*statements, f"ALTER ROLE qts PASSWORD '{password.reveal()}'"]
        settings = ("exit_on_error=on", "log_min_error_statement=panic", "log_checkpoints=off")
        options = [part for setting in settings for part in ("-c", setting)]
        stdin = "".join(f"{line}\n" for line in lines)
        self._run("postgres", ["--single"], data, [*options, "postgres"], stdin)
        self._home.keep_password("postgres", password)

    def _run(
        self, program: str, head: list[str], data: Path, tail: list[str], stdin: str = ""
    ) -> None:
        self._log.mark()
        path = self._binary.path.with_name(program)
        with InheritedPaths(self._account) as reach:
            process = spawn(
                Launch(
                    argv=[str(path), *head, "-D", reach.path(data), *tail],
                    log=self._log.path,
                    stdin=stdin.encode(),
                    fds=reach.fds,
                    account=self._account,
                )
            )
        try:
            code: int | str = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = f"no end after {_LIMIT_S:.0f} s"
        finally:
            stop(process, [(signal.SIGTERM, 5.0)])
        if code != 0:
            log = self._log
            raise ServerFailedError(
                f"{program} failed ({code}); {log.path} says: {log.last_lines()}"
            )
