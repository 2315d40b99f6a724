"""How PostgreSQL is named in messages and reached: an address without the password."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from qts.database.config import DatabaseConfig
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
