"""Settings of the four event lanes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class LaneConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lane: how much may wait in it, and what happens when it is full."""

    queue_size: Annotated[
        int, msgspec.Meta(ge=1, le=1_000_000, description="events that may wait in this lane")
    ]
    overflow: Annotated[
        Literal["block", "drop_oldest", "collapse", "sample"],
        msgspec.Meta(
            description="when full: wait, drop the oldest, keep the newest per key, or keep a share"
        ),
    ]
    sample_rate: Annotated[
        float,
        msgspec.Meta(gt=0, le=1, description='share of events kept by overflow = "sample"'),
    ] = 0.1


class EventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lanes by priority: P0 overtakes all others."""

    p0: Annotated[
        LaneConfig,
        msgspec.Meta(description="P0: orders, fills, emergencies; never lost, so it blocks"),
    ] = LaneConfig(queue_size=100, overflow="block")
    p1: Annotated[LaneConfig, msgspec.Meta(description="P1: prices and order books")] = LaneConfig(
        queue_size=10_000, overflow="drop_oldest"
    )
    p2: Annotated[LaneConfig, msgspec.Meta(description="P2: strategies and signals")] = LaneConfig(
        queue_size=1_000, overflow="collapse"
    )
    p3: Annotated[LaneConfig, msgspec.Meta(description="P3: dashboard, reports, metrics")] = (
        LaneConfig(queue_size=50_000, overflow="sample", sample_rate=0.1)
    )

    def __post_init__(self) -> None:
        if self.p0.overflow != "block":
            raise ValueError(
                f'p0.overflow must stay "block", not "{self.p0.overflow}": a P0 event is never lost'
            )
