"""Settings of the cache."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from qts.domain import Secret

_SCHEMES = ("redis://", "rediss://", "unix://")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}:")

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=60_000)]


class Ttls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a value may be used; the same span is its TTL in Redis."""

    price_ms: Annotated[Milliseconds, msgspec.Meta(description="best bid, ask and last")] = 100
    position_ms: Annotated[Milliseconds, msgspec.Meta(description="a position")] = 1_000
    book_ms: Annotated[Milliseconds, msgspec.Meta(description="an order book")] = 50
    risk_ms: Annotated[Milliseconds, msgspec.Meta(description="limits of an account")] = 5_000
    order_ms: Annotated[Milliseconds, msgspec.Meta(description="the status of an order")] = 60_000
    strategy_ms: Annotated[
        Milliseconds, msgspec.Meta(description="the parameters of a strategy")
    ] = 60_000

    def of(self, kind: str) -> int:
        ttl_ms: int = getattr(self, f"{kind}_ms")
        return ttl_ms


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When Redis is left alone, and for how long."""

    failures: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="failures in a row that open the circuit")
    ] = 5
    open_s: Annotated[
        int, msgspec.Meta(ge=1, le=3600, description="longest time without a call to Redis")
    ] = 60
    probe_s: Annotated[
        float, msgspec.Meta(ge=0.05, le=60, description="time between probes of an open circuit")
    ] = 1.0


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the Redis-protocol server is and how it is used."""

    url: Annotated[
        Secret | None,
        msgspec.Meta(description="redis://user:password@host:port/0; unset: embedded Valkey"),
    ] = None
    cluster: Annotated[
        bool, msgspec.Meta(description="the URL names one node of a Redis cluster")
    ] = False
    prefix: Annotated[
        str, msgspec.Meta(description="every key begins with it; letters, digits, _ - and a colon")
    ] = "qts:"
    pool_max: Annotated[int, msgspec.Meta(ge=10, le=500, description="connections at most")] = 50
    socket_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="longest wait for an answer")
    ] = 100
    connect_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="longest wait for a connection")
    ] = 500
    precheck_ms: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="time a PreCheck gives Redis, once")
    ] = 4
    spin_us: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=1000, description="time a read waits on the spot before others have a turn"
        ),
    ] = 200
    read_ms: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="time any other read gives Redis")
    ] = 50
    write_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="time a write gives Redis")
    ] = 500
    load_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="time a read gives the database")
    ] = 250
    retries: Annotated[
        int, msgspec.Meta(ge=0, le=10, description="repeats of a failed call, in its time")
    ] = 3
    retry_wait_ms: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="wait before each repeat")
    ] = 10
    flush_ms: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="time between batches of writes to Redis")
    ] = 5
    queue_max: Annotated[
        int, msgspec.Meta(ge=100, le=1_000_000, description="keys that may wait for a batch")
    ] = 10_000
    venue_age_ms: Annotated[
        int,
        msgspec.Meta(
            ge=100, le=3_600_000, description="a price whose venue time is further off is refused"
        ),
    ] = 3_000
    ttl: Annotated[Ttls, msgspec.Meta(description="How long each kind of value lives")] = Ttls()
    breaker: Annotated[BreakerConfig, msgspec.Meta(description="The circuit breaker")] = (
        BreakerConfig()
    )

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.reveal().startswith(_SCHEMES):
            raise ValueError("url must begin with " + " or ".join(_SCHEMES))
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError("prefix must be letters, digits, _ or -, and end with a colon")
