"""Server process as a child: unprivileged, with a clean environment, ended with its parent.

On Linux the kernel signals the child when its parent ends for any reason (PR_SET_PDEATHSIG).
"Parent" means the thread that forked, so one thread that lives as long as the process forks all
children. The signal is set after the change of user, which would clear it; the child then checks
that its parent has not ended in between.

Elsewhere (macOS) the child outlives a killed parent; the next start on the same home stops it
(`stop_orphan`).

A child of root runs as `nobody`. The directories stay private: the child accesses them through
descriptors that the parent opened (`InheritedPaths`).
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
import time
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
    """Unprivileged user that servers run as when QTS runs as root."""

    uid: int
    gid: int


def service_user() -> ServiceUser | None:
    """Return the user for servers, or None if QTS does not run as root."""
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
    """Paths by which a child accesses directories that its user cannot reach by name."""

    def __init__(self, user: ServiceUser | None) -> None:
        self._by_descriptor = LINUX and user is not None
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
    """Command line and environment of a server process."""

    argv: Sequence[str]
    log: Path
    cwd: Path = Path("/")
    stdin: bytes = b""
    fds: Sequence[int] = ()
    death_signal: int = signal.SIGTERM
    user: ServiceUser | None = None


def spawn(launch: Launch) -> Process:
    """Start the child; may be called from any thread."""
    try:
        process = _fork_thread().call(lambda: _popen(launch))
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerFailedError(f"{launch.argv[0]} could not be run: {error}") from error
    if process.stdin is not None:
        try:
            process.stdin.write(launch.stdin)
            process.stdin.close()
        except BrokenPipeError:
            # It died at once; the caller detects that and reports its log.
            process.stdin = None
    return process


def stop(process: Process, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send each signal and wait for its timeout, then kill; reap the child."""
    for number, timeout_s in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout_s)
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
            # Not inherited: the environment may contain API keys.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            pass_fds=launch.fds,
            # Ctrl-C in a terminal signals the whole group; servers are stopped in order instead.
            start_new_session=True,
            umask=0o077,
            user=launch.user.uid if launch.user else None,
            group=launch.user.gid if launch.user else None,
            extra_groups=[] if launch.user else None,
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


class _ForkThread:
    """Thread that forks all children."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Process], Future[Process]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="qts-children", daemon=True).start()

    def call(self, job: Callable[[], Process]) -> Process:
        future: Future[Process] = Future()
        self._jobs.put((job, future))
        return future.result()

    def _run(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                future.set_exception(error)


_fork_lock = threading.Lock()
_shared_fork_thread: _ForkThread | None = None


def _fork_thread() -> _ForkThread:
    global _shared_fork_thread
    with _fork_lock:
        # A forked process inherits this object but not its thread.
        if _shared_fork_thread is None or _shared_fork_thread.pid != os.getpid():
            _shared_fork_thread = _ForkThread()
        return _shared_fork_thread


def read_pid(pid_file: Path) -> int | None:
    """Return the number in the first line, or None."""
    try:
        first, *_ = pid_file.read_bytes().splitlines() or [b""]
    except FileNotFoundError:
        return None
    return int(first) if first.strip().isdigit() else None


def stop_orphan(
    pid_file: Path, program: str, directory: Path, signals: Sequence[tuple[signal.Signals, float]]
) -> None:
    """Stop the process in the pid file if it is this program, running in this directory.

    The caller holds the lock of the home, so that such a process is an orphan.
    """
    pid = read_pid(pid_file)
    if pid is None:
        return
    for number, timeout_s in (*signals, (signal.SIGKILL, 5.0)):
        if not _runs_in(pid, program, directory):
            return
        os.kill(pid, number)
        if _wait_gone(timeout_s, pid, program, directory):
            return
    raise ServerFailedError(
        f"{program} (process {pid}) of {directory} does not stop; kill it manually"
    )


def _wait_gone(seconds: float, pid: int, program: str, directory: Path) -> bool:
    deadline = time.monotonic() + seconds
    while _runs_in(pid, program, directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _runs_in(pid: int, program: str, directory: Path) -> bool:
    """Return whether the process is alive and has this name and directory; zombies are not."""
    return _by_proc(pid, program, directory) if LINUX else _by_ps(pid, program, directory)


def _by_proc(pid: int, program: str, directory: Path) -> bool:
    process = Path("/proc", str(pid))
    try:
        # The kernel truncates names to 15 characters. A zombie has no working directory.
        named = (process / "comm").read_text().rstrip("\n") == program[:15]
        return named and (process / "cwd").samefile(directory)
    except OSError:
        return False


def _by_ps(pid: int, program: str, directory: Path) -> bool:
    """Search the command line for the directory (after `-D`, or in Valkey's title)."""
    shown = subprocess.run(
        ["/bin/ps", "-ww", "-p", str(pid), "-o", "stat=,command="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    state, _, command = shown.partition(" ")
    return not state.startswith("Z") and program in command and str(directory) in command
