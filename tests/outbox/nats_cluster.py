"""Three NATS servers that keep their streams together, any of which may be killed."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qts.domain import Secret
from qts.embedded.binaries import find_binary

SIZE = 3


class Cluster:
    def __init__(self, place: Path) -> None:
        self._place = place
        ports = _free_ports(2 * SIZE)
        self._ports, self._routes = ports[:SIZE], ports[SIZE:]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> Secret:
        return Secret(",".join(f"nats://127.0.0.1:{port}" for port in self._ports))

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(SIZE)]

    def start(self, name: str) -> None:
        number = self.names.index(name)
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        self._processes[name] = subprocess.Popen(
            [
                str(find_binary("nats").path),
                *("-a", "127.0.0.1", "-p", str(self._ports[number]), "-n", name),
                *("-js", "-sd", str(self._place / name), "-l", str(self._place / f"{name}.log")),
                *("--cluster_name", "qts", "--routes", routes),
                *("--cluster", f"nats://127.0.0.1:{self._routes[number]}"),
            ]
        )

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)


@contextmanager
def cluster(place: Path) -> Iterator[Cluster]:
    servers = Cluster(place)
    try:
        for name in servers.names:
            servers.start(name)
        yield servers
    finally:
        servers.stop()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
