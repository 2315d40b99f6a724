"""Parsed cache URL: where to connect, and the handshake."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

from qts.domain import Secret, UnreachableError

Command = Sequence[str | bytes | int]


def pack(command: Command) -> bytes:
    """Encode a command in the Redis protocol."""
    # hiredis declares its parameter as a tuple of one element.
    return cast("bytes", hiredis.pack_command(cast("Any", tuple(command))))


class Address:
    """redis://, rediss:// or unix:// URL, parsed by redis-py."""

    def __init__(self, url: Secret) -> None:
        try:
            options: dict[str, Any] = dict(parse_url(url.reveal()))
        except ValueError as error:
            raise UnreachableError(f"invalid cache URL: {error}") from None
        self.path: str | None = options.get("path")
        self.host: str = options.get("host", "localhost")
        self.port: int = options.get("port", 6379)
        secure = options.get("connection_class") is SSLConnection
        self.tls = ssl.create_default_context() if secure else None
        self.where = self.path or f"{self.host}:{self.port}"
        self._database = int(options.get("db") or 0)
        self._login = [options[part] for part in ("username", "password") if options.get(part)]

    def handshake(self) -> tuple[bytes, int]:
        """Return the first commands of a connection and their number of replies."""
        commands: list[Command] = [("CLIENT", "SETNAME", "qts")]
        if self._login:
            commands.insert(0, ("AUTH", *self._login))
        if self._database:
            commands.append(("SELECT", self._database))
        return b"".join(map(pack, commands)), len(commands)


def reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
