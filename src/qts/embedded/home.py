"""Home directory of one QTS instance, its lock, and the settings of the servers in it."""

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
from typing import Annotated

import msgspec

from qts.domain import HomeInUseError, RefusedError, Secret

POSTGRES_PORT = 5432
VALKEY_SOCKET = "valkey.sock"

# sun_path has 104 bytes on macOS and 108 on Linux, including the terminating NUL.
_SOCKET_PATH_LIMIT = 100
_LONGEST_SOCKET_NAME = ".s.PGSQL.65535"
# A comma separates hosts in a connection string; other characters break some URL parsers.
_PLAIN = re.compile(r"[A-Za-z0-9._/-]+")
# Not TMPDIR: every process must use the same path. Owner and mode are checked.
_SHORT_ROOT = Path("/tmp")  # noqa: S108
_LOCK_TIMEOUT_S = 0.2


def default_home(environ: Mapping[str, str]) -> Path:
    """Return QTS_HOME, else ~/.local/state/qts."""
    if chosen := environ.get("QTS_HOME"):
        return Path(chosen)
    user_home = environ.get("HOME")
    return (Path(user_home) if user_home else Path.home()) / ".local" / "state" / "qts"


class Home:
    """Paths of one instance: `postgres/` (data), `run/` (sockets), `log/`, `lock`, passwords.

    The directory is private (0700). If its path is too long or unsuitable for a Unix socket,
    `run/` is in a private directory below /tmp whose name is derived from the path, so that every
    process finds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "postgres"
        self.log = path / "log"

    @classmethod
    def at(cls, path: Path) -> Home:
        """Return the home at this path, created if missing; refuse it if it cannot be private."""
        path = path.expanduser()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise RefusedError(
                f"home {path} is not a directory; choose another with QTS_HOME"
            ) from None
        except OSError as error:
            raise RefusedError(
                f"home {path} cannot be created: {error.strerror}; choose another with QTS_HOME"
            ) from None
        home = cls(path.resolve())
        home._make_private()
        return home

    @property
    def run(self) -> Path:
        """Return the directory of the sockets; refuse it if another user owns it."""
        default = self.path / "run"
        longest = os.fsencode(default / _LONGEST_SOCKET_NAME)
        if len(longest) < _SOCKET_PATH_LIMIT and _PLAIN.fullmatch(str(default)):
            return default
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]
        parent = _SHORT_ROOT / f"qts-{os.geteuid()}-{digest}"
        _check_private(parent)
        return parent / "run"

    def create_directories(self) -> None:
        """Create the directories of the logs and sockets."""
        self.log.mkdir(mode=0o700, exist_ok=True)
        run = self.run
        for directory in (run.parent, run):
            directory.mkdir(mode=0o700, exist_ok=True)
        _ = self.run  # checked again: another user may have created it before the mkdir

    def postgres_url(self) -> Secret:
        """Return the URL of the Unix socket; the server need not run."""
        return Secret(f"postgresql://qts@/qts?host={self.run}&port={POSTGRES_PORT}")

    def valkey_url(self) -> Secret:
        """Return the URL of the Unix socket, with the password if the server also uses TCP."""
        password = self.password("valkey")
        login = f":{password.reveal()}@" if password else ""
        return Secret(f"unix://{login}{self.run / VALKEY_SOCKET}?db=0")

    def lock(self) -> HomeLock:
        """Lock the home for this process until released."""
        return HomeLock(self.path)

    def holder(self) -> int | None:
        """Return the process that runs QTS on this home, or None."""
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

    def store_password(self, server: str, password: Secret | None) -> None:
        """Write the password to a private file; None deletes it."""
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
            raise RefusedError(f"home {path} belongs to another user; choose another with QTS_HOME")
        if stat.S_IMODE(info.st_mode) != 0o700:
            # Never change the mode of a directory such as / or /srv that contains other files.
            if not (path / "lock").exists() and any(path.iterdir()):
                raise RefusedError(
                    f"home {path} is accessible to other users and contains other files; choose an "
                    f"empty directory with QTS_HOME, or chmod 700 it"
                )
            path.chmod(0o700)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise RefusedError(f"home {path} is not writable; choose another with QTS_HOME")


class HomeLock:
    """Lock from creation to release or the end of the process; children do not inherit it."""

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
        # Retry: `holder` takes the lock for an instant.
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
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


def _check_private(directory: Path) -> None:
    """Refuse a directory below /tmp that is not private to this user."""
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


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Embedded servers listen on Unix sockets in the home directory, and on TCP if enabled."""

    tcp: Annotated[
        bool,
        msgspec.Meta(description="listen on 127.0.0.1 as well, with a generated password"),
    ] = False
    postgres_port: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=65535, description="TCP port of PostgreSQL, with tcp; 0: any free one"
        ),
    ] = 0
    valkey_port: Annotated[
        int,
        msgspec.Meta(ge=0, le=65535, description="TCP port of Valkey, with tcp; 0: any free one"),
    ] = 0
    valkey_memory_mb: Annotated[
        int,
        msgspec.Meta(
            ge=16,
            description="memory limit of Valkey; above it, keys that expire soonest are evicted",
        ),
    ] = 256
