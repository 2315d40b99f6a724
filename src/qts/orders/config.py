"""Settings of order execution."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class OrdersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts of sending and of resolving an outcome."""

    place_timeout_s: Annotated[
        float, Meta(ge=0.05, le=60, description="longest a venue may take to answer an order")
    ] = 5.0
    send_within_s: Annotated[
        float,
        Meta(ge=0.05, le=60, description="an order delayed longer than this is not sent"),
    ] = 1.0
    max_throttles: Annotated[
        int, Meta(ge=0, le=100, description="new attempts after a rate limit")
    ] = 5
    throttle_base_s: Annotated[
        float,
        Meta(ge=0.01, le=60, description="pause before the second attempt; doubles each time"),
    ] = 0.5
    throttle_max_s: Annotated[
        float, Meta(ge=0.01, le=600, description="longest pause between attempts")
    ] = 30.0
    reconcile_every_s: Annotated[
        float, Meta(ge=0.1, le=300, description="interval of reconciliations")
    ] = 60.0
    resolve_every_s: Annotated[
        float, Meta(ge=0.05, le=60, description="interval of searches for an unknown outcome")
    ] = 1.0
    absent_after_s: Annotated[
        float,
        Meta(
            ge=0.1, le=3600, description="age after which an order unknown to the venue is absent"
        ),
    ] = 15.0
    lookback_s: Annotated[
        float, Meta(ge=60, le=7 * 86_400, description="how far back the first reconciliation reads")
    ] = 86_400.0
    allow_short: Annotated[
        bool, Meta(description="whether positions may be below zero at this broker")
    ] = False

    def __post_init__(self) -> None:
        # An attempt that could still leave must not be declared absent.
        least = self.send_within_s + self.place_timeout_s
        if self.absent_after_s <= least:
            raise ValueError(
                f"absent_after_s ({self.absent_after_s:g}) must be above send_within_s + "
                f"place_timeout_s ({least:g})"
            )
        if self.throttle_base_s > self.throttle_max_s:
            raise ValueError(
                f"throttle_base_s ({self.throttle_base_s:g}) must not be above throttle_max_s "
                f"({self.throttle_max_s:g})"
            )
