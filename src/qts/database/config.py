"""Settings of the database, and the address and options of a connection that follow from them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from qts.domain import ConfigError, Secret


class DatabaseConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address of PostgreSQL, pool size and timeouts."""

    url: Annotated[
        Secret | None,
        msgspec.Meta(description="postgresql://user:password@host:port/name; unset: embedded"),
    ] = None
    pool_min: Annotated[
        int, msgspec.Meta(ge=0, le=1000, description="connections kept open when idle")
    ] = 2
    pool_max: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="maximum connections; further callers wait")
    ] = 10
    connect_timeout_s: Annotated[
        float,
        msgspec.Meta(ge=0.1, le=60.0, description="timeout for a connection, new or pooled"),
    ] = 5.0
    statement_timeout_s: Annotated[
        float,
        msgspec.Meta(ge=0.001, le=3600.0, description="timeout of a statement on the server"),
    ] = 30.0
    idle_transaction_timeout_s: Annotated[
        float,
        msgspec.Meta(
            ge=0.01,
            le=3600.0,
            description="timeout of an idle transaction, and of a wait for its locks; "
            "keeps a stuck process from blocking others",
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        if self.pool_min > self.pool_max:
            raise ValueError(
                f"pool_min ({self.pool_min}) must not be above pool_max ({self.pool_max})"
            )


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


def connect_options(url: Secret, config: DatabaseConfig, application: str) -> dict[str, Any]:
    """Return the arguments of asyncpg.connect, including the server's timeouts."""
    idle_timeout = _milliseconds(config.idle_transaction_timeout_s)
    return {
        "dsn": url.reveal(),
        "timeout": config.connect_timeout_s,
        # The server cancels a long statement; this timeout is for a silent server.
        "command_timeout": config.statement_timeout_s + config.connect_timeout_s,
        "server_settings": {
            "application_name": application,
            "statement_timeout": _milliseconds(config.statement_timeout_s),
            "idle_in_transaction_session_timeout": idle_timeout,
            "lock_timeout": idle_timeout,
            "timezone": "UTC",
        },
    }


def _milliseconds(seconds: float) -> str:
    """Return a timeout in PostgreSQL's unit; never 0, which means none."""
    return str(max(1, round(seconds * 1000)))
