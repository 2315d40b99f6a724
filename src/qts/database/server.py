"""Address and connect options of PostgreSQL, and termination of stuck sessions.

A process that stops inside a transaction keeps its locks. How they are freed depends on where it
stopped:

    between two statements      by the server (idle_in_transaction_session_timeout)
    waiting for a lock          by the server (lock_timeout); the transaction fails
    within a statement, between its messages or while the client does not read the result
                                by terminate_stuck_sessions()

The server considers the last kind active and waits forever. A session that runs into lock_timeout
terminates such sessions if they have been inactive for as long.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from qts import telemetry
from qts.database.config import DatabaseConfig
from qts.database.connection import Connection
from qts.domain import ConfigError, Secret

_FORM = "write postgresql://user:password@host:port/name, special characters percent-encoded"


def address_of(url: Secret) -> str:
    """Return `host:port/name` of a database URL; raise ConfigError if it is invalid.

    The error shows no part of the URL: a password with an unescaped `/` or `@` would be parsed as
    another part.
    """
    try:
        parts = urlsplit(url.reveal())
        _ = parts.port if "," not in parts.netloc else None
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise ConfigError(f"database.url is not a PostgreSQL URL; {_FORM}") from None
    beyond_host = parts.path + parts.query + parts.fragment
    if (
        parts.scheme not in {"postgresql", "postgres"}
        or parts.netloc.count("@") > 1
        or "@" in beyond_host
        or parts.fragment
    ):
        raise ConfigError(f"database.url is not a PostgreSQL URL; {_FORM}")
    host = unquote(parts.netloc.rpartition("@")[2]) or options.get("host", ["the default host"])[-1]
    return f"{host}/{unquote(parts.path.lstrip('/'))}".removesuffix("/")


def connect_options(url: Secret, config: DatabaseConfig) -> dict[str, Any]:
    """Return the arguments of asyncpg.connect, including the server's timeouts."""
    idle_timeout = _milliseconds(config.idle_transaction_timeout_s)
    return {
        "dsn": url.reveal(),
        "timeout": config.connect_timeout_s,
        # The server cancels a long statement; this timeout is for a silent server.
        "command_timeout": config.statement_timeout_s + config.connect_timeout_s,
        "server_settings": {
            "application_name": "qts",
            "statement_timeout": _milliseconds(config.statement_timeout_s),
            "idle_in_transaction_session_timeout": idle_timeout,
            "lock_timeout": idle_timeout,
            "timezone": "UTC",
        },
    }


def _milliseconds(seconds: float) -> str:
    """Return a timeout in PostgreSQL's unit; never 0, which means none."""
    return str(max(1, round(seconds * 1000)))


# COPY is excluded: it waits for its client in normal operation.
_TERMINATE_STUCK = """
SELECT pid, pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name = 'qts'
   AND pid <> pg_backend_pid()
   AND state = 'active' AND wait_event IN ('ClientRead', 'ClientWrite')
   AND state_change < clock_timestamp() - $1::interval
   AND query !~* '^\\s*COPY'
"""

log = telemetry.logger("database")


async def terminate_stuck_sessions(connection: Connection, idle_s: float) -> int:
    """Terminate sessions stuck within a statement for `idle_s`; return how many."""
    terminated = await connection.fetch(_TERMINATE_STUCK, timedelta(seconds=idle_s))
    for pid, _ in terminated:
        log.warning("terminated stuck database session", pid=pid)
    return len(terminated)
