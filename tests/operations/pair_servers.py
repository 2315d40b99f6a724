"""PostgreSQL servers and NATS nodes of a pair, started from the shipped files of deploy/."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qts.domain import Secret
from qts.embedded.binaries import find_binary
from qts.embedded.process import service_user
from tests.embedded.clients import until

DEPLOY = Path(__file__).parents[2] / "deploy"
HOST = "localhost"
START_S = 60.0


def make_secrets(folder: Path, *hosts: str) -> Path:
    secrets = folder / "secrets"
    done = subprocess.run(
        ["sh", str(DEPLOY / "make-secrets.sh"), str(secrets), *hosts],  # noqa: S607
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return secrets


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class PostgresPair:
    """Two servers, `a` and `b`, in a directory of the user that they run as."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = service_user()
        self.secrets = make_secrets(folder, HOST)
        for name in (*("postgres-pair.conf", "pg_hba.conf"), *("roles", "replica")):
            file = name if "." in name else f"postgres-{name}.sh"
            shutil.copy(DEPLOY / file, folder / file)
        # The embedded PostgreSQL has no TLS, and the superuser the name of no user of this machine.
        self._replace("postgres-pair.conf", "ssl = on", "ssl = off")
        self._replace("pg_hba.conf", "hostssl", "host   ")
        self._replace("postgres-replica.sh", "sslmode=verify-full sslrootcert=$ca", "")
        rules = (folder / "pg_hba.conf").read_text()
        (folder / "pg_hba.conf").write_text(f"local all postgres trust\n{rules}")
        self.ports = dict(zip("ab", free_ports(2), strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._bin = find_binary("postgres").path.parent
        self._own(folder)

    def _replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text, name
        (self.folder / name).write_text(text.replace(old, new))

    def _own(self, folder: Path) -> None:
        if self.user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, *self.user)

    @property
    def url(self) -> Secret:
        password = (self.secrets / "postgres.password").read_text().strip()
        hosts = ",".join(f"{HOST}:{self.ports[name]}" for name in "ab")
        options = "target_session_attrs=read-write"
        return Secret(f"postgresql://qts:{password}@{hosts}/qts?{options}")

    def data(self, name: str) -> Path:
        return self.folder / name

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, **self._as_user(), capture_output=True, text=True, cwd=self.folder, check=False
        )

    def _as_user(self) -> dict[str, Any]:
        environ = {"PATH": f"{self._bin}:{os.environ['PATH']}", "HOME": str(self.folder)}
        if self.user is None:
            return {"env": environ}
        return {"env": environ, "user": self.user.uid, "group": self.user.gid, "extra_groups": []}

    def make_primary(self, name: str) -> None:
        """As postgres-entry.sh does."""
        data, sockets = str(self.data(name)), str(self.folder)
        self._check("initdb", f"--pgdata={data}", "--auth=trust", "--username=postgres")
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}'"
        log = f"--log={self.folder}/init.log"
        self._check("pg_ctl", f"--pgdata={data}", "--wait", log, f"--options={options}", "start")
        files = (f"{self.secrets}/{each}.password" for each in ("postgres", "replica"))
        self._check("sh", "postgres-roles.sh", *files, "-h", sockets, "-U", "postgres")
        self._check("pg_ctl", f"--pgdata={data}", "--wait", "--mode=fast", "stop")

    def make_replica(self, name: str, primary: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            "sh", "postgres-replica.sh", str(self.data(name)), f"qts_{name}", HOST,
            f"{self.secrets}/replica.pgpass", f"{self.secrets}/ca.pem", str(self.ports[primary]),
        )  # fmt: skip

    def start(self, name: str) -> None:
        settings = {
            "config_file": self.folder / "postgres-pair.conf",
            "hba_file": self.folder / "pg_hba.conf",
            "cluster_name": f"qts_{name}",
            "port": self.ports[name],
            "unix_socket_directories": self.folder,
            "fsync": "off",  # of this test's disk
        }
        words = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.data(name)), *words],
                **self._as_user(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        ready = (str(self._bin / "pg_isready"), "-q", "-h", str(self.folder))
        port = str(self.ports[name])
        assert until(lambda: self.run(*ready, "-p", port).returncode == 0, seconds=START_S), (
            self.folder / f"{name}.log"
        ).read_text()

    def sql(self, name: str, *statements: str) -> str:
        """Run statements as the superuser; return what they print."""
        words = [part for each in statements for part in ("-c", each)]
        where = ("-h", str(self.folder), "-p", str(self.ports[name]), "-U", "postgres")
        return self._check("psql", "-XqAt", *where, *words).strip()

    def promote(self, name: str) -> None:
        self._check("pg_ctl", f"--pgdata={self.data(name)}", "--wait", "promote")

    def kill(self, name: str) -> None:
        """End a server as a power cut does."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _check(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@contextmanager
def postgres_pair() -> Iterator[PostgresPair]:
    folder = Path(tempfile.mkdtemp(prefix="qts-pair-"))
    pair: PostgresPair | None = None
    try:
        pair = PostgresPair(folder)
        yield pair
    finally:
        for name in list(pair.processes) if pair else ():
            assert pair is not None
            pair.kill(name)
        shutil.rmtree(folder, ignore_errors=True)


class NatsNodes:
    """Three nodes on nats.conf, each with the environment of nats.env.example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = make_secrets(folder, HOST)
        for source in (DEPLOY / "nats.conf", self.secrets / "nats-auth.conf"):
            shutil.copy(source, folder / source.name)
        ports = free_ports(9)
        self.clients, self.routes, self.monitors = ports[:3], ports[3:6], ports[6:]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def environment(self, number: int) -> dict[str, str]:
        routes = ", ".join(f'"tls://{HOST}:{port}"' for port in self.routes)
        values = {
            "NATS_NAME": f'"nats-{number + 1}"',
            "NATS_LISTEN": f'"127.0.0.1:{self.clients[number]}"',
            "NATS_ROUTE_LISTEN": f'"127.0.0.1:{self.routes[number]}"',
            "NATS_ROUTES": f"[{routes}]",
            "NATS_MONITOR": f'"127.0.0.1:{self.monitors[number]}"',
            "NATS_STORE": f'"{self.folder}/store-{number}"',
            "NATS_CERTIFICATE": f'"{self.secrets}/{HOST}.pem"',
            "NATS_KEY": f'"{self.secrets}/{HOST}.key"',
            "NATS_CA": f'"{self.secrets}/ca.pem"',
        }
        lines = (DEPLOY / "nats.env.example").read_text().splitlines()
        assert [line.partition("=")[0] for line in lines[1:]] == list(values)
        return {**os.environ, **values}

    def check(self, number: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(find_binary("nats").path), "-t", "-c", str(self.folder / "nats.conf")],
            env=self.environment(number), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def start(self, number: int) -> None:
        with (self.folder / f"{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [str(find_binary("nats").path), "-c", str(self.folder / "nats.conf")],
                env=self.environment(number), stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def url(self, password: str | None = None) -> Secret:
        password = password or (self.secrets / "nats.password").read_text().strip()
        return Secret(",".join(f"tls://qts:{password}@{HOST}:{port}" for port in self.clients))


@contextmanager
def nats_nodes(folder: Path) -> Iterator[NatsNodes]:
    nodes = NatsNodes(folder)
    try:
        for number in range(3):
            nodes.start(number)
        yield nodes
    finally:
        for number in list(nodes.processes):
            nodes.kill(number)
