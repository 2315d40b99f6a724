"""Settings of the database."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qts.domain import Secret


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
