"""Program that starts the servers of a home, prints where they are, and waits for EOF on stdin.

Arguments: the home, and the number of a user to become before starting. Everything is
imported first: that user may not be able to read this interpreter's files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from qts.embedded import EmbeddedConfig, EmbeddedServers, Home, binaries, find_binaries


def become(user: int) -> None:
    # Copies in a public place, in case this user cannot reach the packages of this interpreter.
    roots = {str(binaries.reachable_by_others(binary).root) for binary in find_binaries()}
    sys.path[:0] = sorted(roots)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def main(home: str, *user: str) -> None:
    if user:
        become(int(user[0]))
    with EmbeddedServers(Home.at(Path(home)), EmbeddedConfig()) as servers:
        assert servers.postgres is not None
        assert servers.valkey is not None
        info = {
            "postgres": servers.postgres.pid,
            "valkey": servers.valkey.pid,
            "postgres_url": servers.postgres.url.reveal(),
            "valkey_url": servers.valkey.url.reveal(),
        }
        print(msgspec.json.encode(info).decode(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
