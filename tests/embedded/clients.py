"""Clients of the servers, and facts about their processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import redis

from qts.domain import Secret
from qts.embedded import EmbeddedServers


async def ask(url: Secret, *statements: str) -> Any:
    """Run the statements in one session; return the value of the last."""
    connection = await asyncpg.connect(url.reveal(), timeout=10)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return await connection.fetchval(statements[-1])
    finally:
        await connection.close()


def cache(url: Secret) -> closing[Any]:
    return closing(redis.Redis.from_url(url.reveal(), decode_responses=True))


def ping(url: Secret) -> bool:
    with cache(url) as client:
        return bool(client.ping())


def pids(servers: EmbeddedServers) -> list[int]:
    found = [server.pid for server in (servers.postgres, servers.valkey) if server]
    return [pid for pid in found if pid is not None]


def state_of(pid: int) -> str:
    """Return the kernel's state letter: R running, S sleeping, T stopped, Z zombie; empty: gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Return whether the process is alive; a zombie is not."""
    return state_of(pid) not in ("", "Z")


def processes_in(directory: Path) -> list[int]:
    """Return the processes with this working directory: the servers of a home, with backends."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                at_work = (entry / "cwd").samefile(directory)
            except OSError:
                continue
            if at_work:
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Poll with growing intervals; return whether the condition became true in time."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        if waited > seconds:
            return False
        time.sleep(min(0.005 + waited / 10, 0.1))
    return True


def listens_on(pid: int) -> set[tuple[str, int]]:
    """Return the TCP addresses that the process listens on."""
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def owner(path: Path) -> int:
    return path.stat().st_uid


def status_of(pid: int) -> dict[str, tuple[str, ...]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        name: tuple(value.split()) for name, _, value in (line.partition(":") for line in lines)
    }


def program_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/exe").readlink()
