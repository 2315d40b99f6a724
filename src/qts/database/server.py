"""How PostgreSQL is named in messages and reached: an address without the password.

Sessions of processes that stopped in the middle of a transaction, and how their locks are freed.

    between two statements              the server ends it (idle_in_transaction_session_timeout)
    waiting for a lock                  the wait ends (lock_timeout), and with it the transaction
    between the messages of a statement, or with an answer the client does not take

The last the server calls active and waits for ever. Whoever has waited for a lock for as long as
a transaction may stand still ends such sessions, if they have stood still for as long.
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
    """`host:port/name` of a database URL, refused when it is not one.

    No part of a URL that is not understood is shown: a password with a bare `/` or `@` in it
    moves into the other parts.
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
    """What asyncpg needs for one connection; the server's time limits are set as it starts."""
    still = _milliseconds(config.idle_transaction_timeout_s)
    return {
        "dsn": url.reveal(),
        "timeout": config.connect_timeout_s,
        # The server ends a long statement itself; this bound is for a server that fell silent.
        "command_timeout": config.statement_timeout_s + config.connect_timeout_s,
        "server_settings": {
            "application_name": "qts",
            "statement_timeout": _milliseconds(config.statement_timeout_s),
            "idle_in_transaction_session_timeout": still,
            "lock_timeout": still,
            "timezone": "UTC",
        },
    }


def _milliseconds(seconds: float) -> str:
    """A time limit in PostgreSQL's unit; never 0, which is none."""
    return str(max(1, round(seconds * 1000)))


# A COPY waits for its client in the middle of its work, as it should.
_END_FROZEN = """
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
    """End the sessions that stand still in the middle of a statement; how many there were."""
    ended = await connection.fetch(_END_FROZEN, timedelta(seconds=idle_s))
    for pid, _ in ended:
        log.warning("a session that stood still held others up and was ended", backend=pid)
    return len(ended)
