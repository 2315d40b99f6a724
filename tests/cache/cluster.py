"""A Redis cluster of three masters and three replicas, formed from the server binary alone."""

from __future__ import annotations

import asyncio
import functools
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from qts.domain import Secret
from qts.embedded import find_binaries
from qts.embedded.process import Launch, spawn

NODE_TIMEOUT_MS = 1000
_SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))
_FORMED_LIMIT_S = 30.0


class Cluster:
    """Nodes 0 to 2 are the masters at first, 3 to 5 their replicas in the same order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._binary = next(each for each in find_binaries() if each.name == "valkey")
        self.ports = _free_ports(6)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.nodes: list[Any] = []

    @classmethod
    @asynccontextmanager
    async def formed(cls, directory: Path) -> AsyncIterator[Cluster]:
        cluster = cls(directory)
        try:
            await cluster._form()
            yield cluster
        finally:
            for node in cluster.nodes:
                await node.aclose()
            for process in cluster.processes:
                process.kill()
                process.wait()

    @property
    def url(self) -> Secret:
        return Secret(f"redis://127.0.0.1:{self.ports[0]}/0")

    async def master_of(self, key: str) -> int:
        """Which node answers for this key now."""
        for at, node in enumerate(self.nodes):
            if self.processes[at].poll() is None:
                slot = await node.execute_command("CLUSTER", "KEYSLOT", key)
                for line in await node.execute_command("CLUSTER", "SLOTS"):
                    if line[0] <= slot <= line[1]:
                        return self.ports.index(line[2][1])
        raise AssertionError(f"no node serves {key}")

    async def kill_master_of(self, key: str) -> None:
        at = await self.master_of(key)
        self.processes[at].kill()
        await asyncio.to_thread(self.processes[at].wait)

    async def _form(self) -> None:
        for at, port in enumerate(self.ports):
            self.processes.append(self._start(at, port))
            self.nodes.append(Redis(port=port, decode_responses=True, protocol=2))
        for node in self.nodes:
            await _until(node.ping)
        for at, (first, last) in enumerate(_SLOTS):
            await self.nodes[at].execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for at, node in enumerate(self.nodes):
            await node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for port in self.ports[1:]:
            await self.nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        await _until(self._all_met)
        for at in range(3):
            master = await self.nodes[at].execute_command("CLUSTER", "MYID")
            node = self.nodes[3 + at]
            await _until(functools.partial(node.execute_command, "CLUSTER", "REPLICATE", master))
        # A master killed before its replica's first copy would be gone for good.
        await _until(self._all_copied)
        await _until(self._all_agree)

    def _start(self, at: int, port: int) -> subprocess.Popen[bytes]:
        place = self._directory / str(at)
        place.mkdir()
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": place,
            "save": "",
            "cluster-enabled": "yes",
            "cluster-announce-ip": "127.0.0.1",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return spawn(Launch(argv=[str(self._binary.path), *words], log=place / "log", cwd=place))

    async def _all_met(self) -> bool:
        known = [await node.execute_command("CLUSTER", "INFO") for node in self.nodes]
        return all("cluster_known_nodes:6" in replies for replies in known)

    async def _all_copied(self) -> bool:
        replies = [await node.info("replication") for node in self.nodes[3:]]
        return all(each.get("master_link_status") == "up" for each in replies)

    async def _all_agree(self) -> bool:
        replies = [await node.execute_command("CLUSTER", "INFO") for node in self.nodes]
        maps = [await node.execute_command("CLUSTER", "SLOTS") for node in self.nodes]
        complete = all(len(line) == 4 for each in maps for line in each)  # a master and a replica
        return complete and all("cluster_state:ok" in each for each in replies)


async def _until(ask: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(_FORMED_LIMIT_S):
        while True:
            try:
                if await ask():
                    return
            except RedisError:
                pass  # not yet
            await asyncio.sleep(0.02)


def _free_ports(count: int) -> list[int]:
    """Ports whose bus port, 10000 above, is free as well."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port > 55_000 or port in found:
                continue
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            found.append(port)
    return found
