"""The home directory: one private place for data, sockets, logs and the lock of one QTS."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from qts.domain import HomeInUseError, RefusedError, Secret

POSTGRES_PORT = 5432
VALKEY_SOCKET = "valkey.sock"

# sun_path holds 104 bytes on macOS and 108 on Linux, the closing NUL included.
_SOCKET_PATH_LIMIT = 100
_LONGEST_SOCKET = ".s.PGSQL.65535"
# A comma parts hosts in a connection string; other odd characters confuse some URL parser.
_PLAIN = re.compile(r"[A-Za-z0-9._/-]+")
# Not TMPDIR: every process must come to the same path. Owner and mode are checked.
_SHORT_ROOT = Path("/tmp")  # noqa: S108
_LOCK_PATIENCE_S = 0.2


def default_home(environ: Mapping[str, str]) -> Path:
    """QTS_HOME, else ~/.local/state/qts."""
    if chosen := environ.get("QTS_HOME"):
        return Path(chosen)
    user_home = environ.get("HOME")
    return (Path(user_home) if user_home else Path.home()) / ".local" / "state" / "qts"


class Home:
    """Where everything lies: `postgres/` (data), `run/` (sockets), `log/`, `lock`, passwords.

    The directory is ours alone (0700). Where its path is too long or too odd for a Unix
    socket, `run/` lies in a private directory below /tmp whose name follows from the path, so
    that every process finds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "postgres"
        self.log = path / "log"

    @classmethod
    def at(cls, path: Path) -> Home:
        """The home at this path, created when absent; refused when it cannot be made private."""
        path = path.expanduser()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise RefusedError(
                f"home {path} is not a directory; choose another with QTS_HOME"
            ) from None
        except OSError as error:
            raise RefusedError(
                f"home {path} cannot be made: {error.strerror}; choose another with QTS_HOME"
            ) from None
        home = cls(path.resolve())
        home._make_private()
        return home

    @property
    def run(self) -> Path:
        """The directory of the sockets; refused when someone else sits where it must be."""
        near = self.path / "run"
        longest = os.fsencode(near / _LONGEST_SOCKET)
        if len(longest) < _SOCKET_PATH_LIMIT and _PLAIN.fullmatch(str(near)):
            return near
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]
        parent = _SHORT_ROOT / f"qts-{os.geteuid()}-{digest}"
        _refuse_foreign(parent)
        return parent / "run"

    def make_room(self) -> None:
        """Create what the servers need beside their data."""
        self.log.mkdir(mode=0o700, exist_ok=True)
        run = self.run
        for directory in (run.parent, run):
            directory.mkdir(mode=0o700, exist_ok=True)
        # Once more: it may have been taken between the look and the mkdir.
        _ = self.run

    def postgres_url(self) -> Secret:
        """By Unix socket; the same whether the server runs or not."""
        return Secret(f"postgresql://qts@/qts?host={self.run}&port={POSTGRES_PORT}")

    def valkey_url(self) -> Secret:
        """By Unix socket; with the password when the server also listens on TCP."""
        password = self.password("valkey")
        login = f":{password.reveal()}@" if password else ""
        return Secret(f"unix://{login}{self.run / VALKEY_SOCKET}?db=0")

    def lock(self) -> HomeLock:
        """Take the home for this process until released."""
        return HomeLock(self.path)

    def holder(self) -> int | None:
        """The process that runs QTS on this home."""
        try:
            file = os.open(self.path / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _written_pid(file)
        finally:
            os.close(file)
        return None

    def password(self, server: str) -> Secret | None:
        try:
            return Secret(self._password_file(server).read_text().strip())
        except FileNotFoundError:
            return None

    def keep_password(self, server: str, password: Secret | None) -> None:
        """Write it for us alone; None forgets it."""
        file = self._password_file(server)
        if password is None:
            file.unlink(missing_ok=True)
            return
        draft = file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, f"{password.reveal()}\n".encode())
        os.fsync(descriptor)
        os.close(descriptor)
        draft.rename(file)

    def _password_file(self, server: str) -> Path:
        return self.path / f"{server}.password"

    def _make_private(self) -> None:
        path, info = self.path, self.path.stat()
        if info.st_uid != os.geteuid():
            raise RefusedError(
                f"home {path} belongs to another user; choose your own with QTS_HOME"
            )
        if stat.S_IMODE(info.st_mode) != 0o700:
            # Never close a directory such as / or /srv that holds other things.
            if not (path / "lock").exists() and any(path.iterdir()):
                raise RefusedError(
                    f"home {path} is open to other users and holds other files; choose an empty "
                    f"directory with QTS_HOME, or chmod 700 it"
                )
            path.chmod(0o700)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise RefusedError(f"home {path} is not writable; choose another with QTS_HOME")


class HomeLock:
    """Held from creation to release, or to the end of the process; children do not inherit it."""

    def __init__(self, home: Path) -> None:
        self._file: int | None = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(self._file, home)
        except BaseException:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._file is None:
            return
        os.ftruncate(self._file, 0)
        os.close(self._file)
        self._file = None

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @staticmethod
    def _take(file: int, home: Path) -> None:
        # Patience, because a look by `holder` takes the lock for an instant.
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                pid = _written_pid(file)
                raise HomeInUseError(
                    f"home {home} is in use by process {pid or 'unknown'}; stop it, or "
                    f"choose another home with QTS_HOME"
                ) from None
            return


def _written_pid(file: int) -> int | None:
    text = os.pread(file, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _refuse_foreign(directory: Path) -> None:
    """A name below /tmp can be taken by anyone: use it only when it is ours and closed."""
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return
    private = stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o700
    if info.st_uid != os.geteuid() or not private:
        raise RefusedError(
            f"{directory} is not a directory of this user with mode 0700, so sockets there are not "
            f"safe; remove it, or choose a shorter QTS_HOME"
        )
