"""Settings of the embedded servers."""

from __future__ import annotations

from typing import Annotated

import msgspec


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Embedded servers listen on Unix sockets in the home directory, and on TCP if enabled."""

    tcp: Annotated[
        bool,
        msgspec.Meta(description="listen on 127.0.0.1 as well, with a generated password"),
    ] = False
    postgres_port: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=65535, description="TCP port of PostgreSQL, with tcp; 0: any free one"
        ),
    ] = 0
    valkey_port: Annotated[
        int,
        msgspec.Meta(ge=0, le=65535, description="TCP port of Valkey, with tcp; 0: any free one"),
    ] = 0
    valkey_memory_mb: Annotated[
        int,
        msgspec.Meta(
            ge=16,
            description="memory limit of Valkey; above it, keys that expire soonest are evicted",
        ),
    ] = 256
