"""Settings of the cache."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qts.domain import Secret

_SCHEMES = ("redis://", "rediss://", "unix://")


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the Redis-protocol server is and how it is used."""

    url: Annotated[
        Secret | None,
        msgspec.Meta(description="redis://user:password@host:port/0; unset: embedded Valkey"),
    ] = None
    pool_max: Annotated[int, msgspec.Meta(ge=10, le=500, description="connections at most")] = 50
    socket_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="longest wait for an answer")
    ] = 100
    connect_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="longest wait for a connection")
    ] = 500

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.reveal().startswith(_SCHEMES):
            raise ValueError("url must begin with " + " or ".join(_SCHEMES))
