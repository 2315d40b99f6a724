"""A process that has QTS loaded and forks: `python -m qts` without the second of imports.

What it forks is a child of the process that asks, has the arguments, environment, folder, files and
user that were asked for, and starts further processes of QTS (simulators) in the same way. So are
the processes that multiprocessing spawns.
Commands with other options of the interpreter start a new one as usual.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import marshal
import multiprocessing.util
import os
import pickle
import pkgutil
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
INTERPRETER = sys.executable
# What whole runs load. numba is left out: it reads the environment when it is imported.
PACKAGES = ("qts.app", "qts.cli", "qts.dashboard", "qts.orders", "qts.outbox", "qts.simulators")
# What commands and simulators import only when they run.
LATE = (
    "encodings.cp437",
    "encodings.cp949",
    "encodings.idna",
    "holidays.countries",
    "holidays.financial",
    "numpy.random",
    "qts.telemetry.traces",
    "rich._emoji_codes",
    "typer._adapters",
)
REQUEST_BYTES = 200_000
COMMAND_BYTES = 4000  # place for the command line of what is forked
FILES = 60  # at most, standard streams and passed ones
HIGH = 500  # above every descriptor that a process passes by its number
ISOLATED = "qts.pipeline.process_main"
SPAWNED = "--multiprocessing-fork"
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}

new_interpreter: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
new_spawned: Any = multiprocessing.util.spawnv_passfds
Request = dict[str, Any]


class Starter:
    """Client of the process that forks."""

    def __init__(self, requests: socket.socket) -> None:
        self._lock = threading.Lock()
        self._requests = requests

    def install(self) -> None:
        """Let Popen ask this starter from now on."""

        def execute_child(process: Any, *given: Any) -> None:
            self._execute_child(process, *given)

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
        multiprocessing.util.spawnv_passfds = self._spawn  # type: ignore[assignment]

    def _spawn(self, path: Any, args: list[Any], fds: Any) -> int:
        """Do the work of multiprocessing.util.spawnv_passfds."""
        *_, option, code, last = args
        of_an_interpreter = args[1:-3] not in ([], ["-B"]) or os.fsdecode(path) != INTERPRETER
        if of_an_interpreter or (option, last) != ("-c", SPAWNED) or len(fds) > FILES - 3:
            return int(new_spawned(path, args, fds))
        request = {
            "code": code,
            "arguments": [last],
            "cwd": str(Path.cwd()),
            "environ": dict(os.environ),
            "umask": -1,
            "new_session": False,
            "user": (None, None, None),
            "before": None,
            "passed": (passed := [int(fd) for fd in fds]),
        }
        return self._start(request, [0, 1, 2, *passed])

    def _execute_child(self, process: Any, args: Any, executable: Any, *options: Any) -> None:
        """Do the work of Popen._execute_child."""
        preexec_fn, _, pass_fds, cwd, env, _, _, shell, *files_and_more = options
        files, more = files_and_more[:6], files_and_more[6:]
        _, gid, gids, uid, umask, new_session, process_group = more
        environ = dict(os.environ if env is None else env)
        special = shell or executable or process_group != -1 or len(pass_fds) > FILES - 3
        if special or not _is_ours(args) or not _has_the_same_paths(args[2], environ):
            new_interpreter(process, args, executable, *options)
            return
        request = {
            "module": args[2],
            "arguments": [os.fspath(word) for word in args[3:]],
            "cwd": os.fspath(cwd or Path.cwd()),
            "environ": environ,
            "umask": umask,
            "new_session": new_session,
            "user": (gid, gids, uid),
            "before": _dump(preexec_fn) if preexec_fn else None,
            "passed": list(pass_fds),
        }
        given = files[0], files[3], files[5]
        streams = [own if file == -1 else file for own, file in enumerate(given)]
        process.pid = self._start(request, [*streams, *pass_fds])
        process._child_created = True
        process._close_pipe_fds(*files)

    def _start(self, request: Request, streams: list[int]) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        with self._lock:
            self._requests.sendmsg([pickle.dumps(request)], rights)
            return int(self._requests.recv(20))


@contextmanager
def started() -> Iterator[None]:
    """Let Popen ask a starter, on processors whose system calls it knows."""
    if platform.machine() not in CLONE:
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = f"from tests.starter import main; main({theirs.fileno()})"
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a fork keeps one thread only
    with subprocess.Popen(
        [sys.executable, "-c", program, " " * COMMAND_BYTES],
        cwd=ROOT,
        env=environ,
        pass_fds=[theirs.fileno()],
    ):
        theirs.close()
        with ours:  # the starter ends when it is closed
            Starter(ours).install()
            yield
    subprocess.Popen._execute_child = new_interpreter  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = new_spawned


def _is_ours(args: Any) -> bool:
    interpreter, option, module = (*args, "", "", "")[:3]
    return (interpreter, option) == (INTERPRETER, "-m") and (
        module in ("qts", ISOLATED) or module.startswith("tests.")
    )


def _has_the_same_paths(module: str, environ: Mapping[str, str]) -> bool:
    """Return whether a new interpreter would find the modules that the starter has loaded."""
    # An isolated strategy is given the whole path of the run that starts it.
    names = ["PYTHONHOME"] if module == ISOLATED else ["PYTHONHOME", "PYTHONPATH"]
    return all(environ.get(name) == os.environ.get(name) for name in names)


def _dump(function: Any) -> tuple[bytes, str, list[Any]]:
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    return marshal.dumps(function.__code__), function.__module__, values


def _call(code: bytes, module: str, values: list[Any]) -> None:
    cells = tuple(CellType(value) for value in values)
    function = FunctionType(marshal.loads(code), vars(sys.modules[module]), closure=cells)  # noqa: S302
    function()


def main(requests: int) -> None:
    """Fork what is asked for; in a forked process, run it."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in LATE:
        with suppress(ModuleNotFoundError):  # the private modules of another version
            importlib.import_module(name)
    schema = sys.modules["qts.config.schema"]
    schema.schema_of(schema.Config)  # kept for the life of a process; depends on the code alone
    assert "numba" not in sys.modules
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for what it starts
    request = _serve(socket.socket(fileno=requests))
    if request is None:
        os._exit(0)  # an interpreter that takes down its modules copies every page that it shares
    try:
        _run(request)
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise
        _end(ended.code or 0)
    _end(0)


def _run(request: Request) -> None:
    if "code" in request:
        sys.argv = ["-c", *request["arguments"]]
        exec(request["code"], vars(sys.modules["__main__"]))  # noqa: S102 - of multiprocessing
    else:
        sys.argv = ["qts", *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _end(code: int) -> None:
    """End as an interpreter does, but leave its modules: taking them down copies shared memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter says what it could not write
    os._exit(code & 0xFF)


def _serve(requests: socket.socket) -> Request | None:
    """Fork for each request; return it in the forked process, None when nobody can ask."""
    while message := (received := socket.recv_fds(requests, REQUEST_BYTES, FILES))[0]:
        streams = received[1]
        if (pid := _fork()) == 0:
            requests.close()
            ours, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() != 0:
                requests.close()
                Starter(socket.socket(fileno=_move(ours.detach()))).install()
                return _prepare(pickle.loads(message), streams)  # noqa: S301
            ours.close()  # the starter of the forked process
        else:
            requests.send(str(pid).encode())
        for stream in streams:
            os.close(stream)
    return None


def _fork() -> int:
    """Fork as os.fork does, but a child of this process's parent."""
    python = ctypes.pythonapi
    call = ctypes.PyDLL(None).syscall
    call.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid = int(call(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    assert pid >= 0
    return pid


def _prepare(request: Request, streams: list[int]) -> Request:
    """Set what a new interpreter would have got at its start, in the order of Popen."""
    files = [_move(stream) for stream in streams]
    for number, file in zip((0, 1, 2, *request["passed"]), files, strict=True):
        os.dup2(file, number)
        os.close(file)
    how = ["-c", request["code"]] if "code" in request else ["-m", request["module"]]
    _show([sys.executable, *how, *request["arguments"]])
    os.chdir(request["cwd"])
    if request["umask"] >= 0:
        os.umask(request["umask"])
    if request["new_session"]:
        os.setsid()
    group, groups, user = request["user"]
    if groups is not None:
        os.setgroups(groups)
    if group is not None:
        os.setregid(group, group)
    if user is not None:
        os.setreuid(user, user)
    if request["before"] is not None:
        _call(*request["before"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["cwd"], *(path for path in paths if path not in ("", *sys.path))]
    for name in ("stdin", "stdout", "stderr"):
        _open(name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What QTS knows of its process since its import.
    sys.modules["qts.venues.upbit.client"]._STARTED_NS = time.monotonic_ns()  # type: ignore[attr-defined]
    if os.environ.get("QTS_DIE_AT"):
        _set_failpoint()
    return request


def _move(file: int) -> int:
    """Give a file a number that no passed file has."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(file)
    return moved


def _set_failpoint() -> None:
    """Read QTS_DIE_AT again, for all modules that have imported the failpoint."""
    source: Any = sys.modules["qts.orders.failpoints"]
    unset = source.failpoint
    importlib.reload(source)
    for module in list(sys.modules.values()):
        if vars(module).get("failpoint") is unset:
            module.failpoint = source.failpoint  # type: ignore[attr-defined]


def _show(command: list[str]) -> None:
    """Set the command line that /proc and ps show."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(word.encode() + b"\0" for word in command)
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def _open(name: str) -> None:
    old = getattr(sys, name)
    mode = "rb" if name == "stdin" else "wb"
    at_once = mode == "wb" and "PYTHONUNBUFFERED" in os.environ
    binary: Any = open(old.fileno(), mode, 0 if at_once else -1, closefd=False)  # noqa: SIM115
    text = io.TextIOWrapper(
        binary,
        old.encoding,
        old.errors,
        line_buffering=name == "stderr" or binary.isatty(),
        write_through=at_once,
    )
    setattr(sys, name, text)
    setattr(sys, f"__{name}__", text)
