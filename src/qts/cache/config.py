"""Settings of the cache."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from qts.domain import Secret

_SCHEMES = ("redis://", "rediss://", "unix://")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}:([0-9a-f]{16}:)?")

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=60_000)]


class Ttls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TTL of each kind: how long a value may be used, and how long Redis keeps it."""

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
    """When the circuit opens, and for how long."""

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
    """Address of the Redis-protocol server, and timeouts."""

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
        int, msgspec.Meta(ge=1, le=60_000, description="longest wait for a reply")
    ] = 100
    connect_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="longest wait for a connection")
    ] = 500
    precheck_ms: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="timeout of the Redis read of a PreCheck")
    ] = 4
    spin_us: Annotated[
        int,
        msgspec.Meta(ge=0, le=1000, description="longest time a read spins for its reply"),
    ] = 200
    read_ms: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="timeout of any other Redis read")
    ] = 50
    write_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="timeout of a Redis write")
    ] = 500
    load_timeout_ms: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="timeout of a load from the database")
    ] = 250
    retries: Annotated[
        int, msgspec.Meta(ge=0, le=10, description="retries of a failed call, within its timeout")
    ] = 3
    retry_wait_ms: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="backoff before each retry")
    ] = 10
    flush_ms: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="time between batches of writes to Redis")
    ] = 5
    queue_max: Annotated[
        int, msgspec.Meta(ge=100, le=1_000_000, description="keys pending for a batch, at most")
    ] = 10_000
    venue_age_ms: Annotated[
        int,
        msgspec.Meta(
            ge=100, le=3_600_000, description="a price whose venue time is further off is refused"
        ),
    ] = 3_000
    ttl: Annotated[Ttls, msgspec.Meta(description="TTL of each kind of value")] = Ttls()
    breaker: Annotated[BreakerConfig, msgspec.Meta(description="The circuit breaker")] = (
        BreakerConfig()
    )

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.reveal().startswith(_SCHEMES):
            raise ValueError("url must begin with " + " or ".join(_SCHEMES))
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError("prefix must be letters, digits, _ or -, and end with a colon")

    def of_account(self, account: str) -> CacheConfig:
        """Return the settings of a run: the keys of an account begin with its digest."""
        return msgspec.structs.replace(self, prefix=f"{self.prefix}{account}:")
