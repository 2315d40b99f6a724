"""One server process as our own child: few rights, a clean environment, dead when we are dead.

On Linux the kernel signals the child when its parent goes (PR_SET_PDEATHSIG), however the
parent ends. "Parent" means the thread that forked, so one thread that lives as long as the
process forks for everyone; any thread may ask. The wish is set after the change of user,
which would clear it, and the child then looks whether its parent went in between.

Elsewhere (macOS) the child outlives a killed parent; the next start on the same home finds
and stops it (see orphan.py).

A child of root runs as `nobody`, without any chmod: our directories stay private, and the
child reaches its own through descriptors we opened for it (`Reach`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from qts.domain import ServerFailedError

LINUX = platform.system() == "Linux"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if LINUX else None

Process = subprocess.Popen[bytes]


class ServiceUser(NamedTuple):
    """The unprivileged user a server runs as when we are root."""

    uid: int
    gid: int


def service_user() -> ServiceUser | None:
    """None when we are an ordinary user: servers then run as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise ServerFailedError(
            "servers do not run as root and there is no user 'nobody'; run QTS as another user"
        ) from None
    return ServiceUser(entry.pw_uid, entry.pw_gid)


class InheritedPaths:
    """Names under which a child reaches directories that lie below ones closed to it."""

    def __init__(self, account: ServiceUser | None) -> None:
        self._by_descriptor = LINUX and account is not None
        self.fds: list[int] = []

    def path(self, directory: Path) -> str:
        if not self._by_descriptor:
            return str(directory)
        self.fds.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        return f"/proc/self/fd/{self.fds[-1]}"

    def __enter__(self) -> InheritedPaths:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self.fds:
            os.close(fd)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and how."""

    argv: Sequence[str]
    log: Path
    cwd: Path = Path("/")
    stdin: bytes = b""
    fds: Sequence[int] = ()
    death_signal: int = signal.SIGTERM
    account: ServiceUser | None = None


def spawn(launch: Launch) -> Process:
    """Start the child; from any thread."""
    try:
        process = _keeper().call(lambda: _popen(launch))
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerFailedError(f"{launch.argv[0]} could not be run: {error}") from error
    if process.stdin is not None:
        try:
            process.stdin.write(launch.stdin)
            process.stdin.close()
        except BrokenPipeError:
            # It died at once; whoever waits for it will see that and show its log.
            process.stdin = None
    return process


def stop(process: Process, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send each signal and wait its seconds, then kill; the child is reaped."""
    for number, patience_s in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()
        process.wait()


def _popen(launch: Launch) -> Process:
    parent = os.getpid()
    file = os.open(launch.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        return subprocess.Popen(
            list(launch.argv),
            stdin=subprocess.PIPE if launch.stdin else subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=launch.cwd,
            # Nothing of ours: the environment may hold the keys of a trader.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            pass_fds=launch.fds,
            # Ctrl-C in a terminal goes to the whole group: we stop servers in our own order.
            start_new_session=True,
            umask=0o077,
            user=launch.account.uid if launch.account else None,
            group=launch.account.gid if launch.account else None,
            extra_groups=[] if launch.account else None,
            preexec_fn=lambda: _die_with_parent(launch.death_signal, parent),
        )
    finally:
        os.close(file)


def _die_with_parent(death_signal: int, parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if _LIBC is None:
        return
    if _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)


class _Keeper:
    """The thread all children are forked from."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Process], Future[Process]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._work, name="qts-children", daemon=True).start()

    def call(self, job: Callable[[], Process]) -> Process:
        future: Future[Process] = Future()
        self._jobs.put((job, future))
        return future.result()

    def _work(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001  it is the asker's error
                future.set_exception(error)


_keeper_lock = threading.Lock()
_the_keeper: _Keeper | None = None


def _keeper() -> _Keeper:
    global _the_keeper
    with _keeper_lock:
        # A forked process has this object but not its thread.
        if _the_keeper is None or _the_keeper.pid != os.getpid():
            _the_keeper = _Keeper()
        return _the_keeper
