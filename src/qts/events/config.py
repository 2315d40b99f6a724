"""Settings of the four event lanes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class LaneConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacity, overflow policy and isolation of one lane."""

    queue_size: Annotated[
        int, msgspec.Meta(ge=1, le=1_000_000, description="events that can wait in this lane")
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
    batch_size: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="maximum events per call of a batch handler")
    ] = 100
    batch_window_ms: Annotated[
        float, msgspec.Meta(ge=0, le=60_000, description="how long a batch waits to fill")
    ] = 0.0
    batch_by: Annotated[
        Literal["event_type", "symbol"],
        msgspec.Meta(description="field shared by the events of one batch"),
    ] = "event_type"
    warning: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="fill ratio at which pressure is WARNING")
    ] = 0.7
    critical: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="fill ratio at which pressure is CRITICAL")
    ] = 0.9

    isolation: Annotated[
        Literal["thread", "process"],
        msgspec.Meta(description="run its handlers in threads or in an isolated process"),
    ] = "thread"
    process_threads: Annotated[
        int,
        msgspec.Meta(ge=1, le=16, description="threads of that process; 1 keeps events in order"),
    ] = 1

    def __post_init__(self) -> None:
        if self.warning > self.critical:
            raise ValueError(
                f"warning ({self.warning:g}) must not be above critical ({self.critical:g})"
            )


class EventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The four lanes, their threads and the load checks."""

    p0: Annotated[
        LaneConfig,
        msgspec.Meta(description="P0: orders, fills, emergencies; blocks when full, loses nothing"),
    ] = LaneConfig(queue_size=100, overflow="block", warning=0.5, critical=0.8)
    p1: Annotated[LaneConfig, msgspec.Meta(description="P1: prices and order books")] = LaneConfig(
        queue_size=10_000, overflow="drop_oldest", batch_window_ms=10
    )
    p2: Annotated[LaneConfig, msgspec.Meta(description="P2: strategies and signals")] = LaneConfig(
        queue_size=1_000,
        overflow="collapse",
        batch_size=50,
        batch_window_ms=100,
        batch_by="symbol",
        warning=0.8,
        critical=0.95,
    )
    p3: Annotated[LaneConfig, msgspec.Meta(description="P3: dashboard, reports, metrics")] = (
        LaneConfig(
            queue_size=50_000,
            overflow="sample",
            sample_rate=0.1,
            batch_window_ms=1000,
            process_threads=2,
        )
    )
    p1_workers: Annotated[int, msgspec.Meta(ge=1, le=64, description="threads for P1 handlers")] = 2
    pool_workers: Annotated[
        int, msgspec.Meta(ge=2, le=64, description="threads for P2 and P3 handlers")
    ] = 4
    switch_interval_ms: Annotated[
        float,
        msgspec.Meta(gt=0, le=100, description="interpreter switch interval while the engine runs"),
    ] = 0.2
    gil_slice_ms: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=1000,
            description="how long a lane holds the GIL across events before it yields",
        ),
    ] = 1.0
    gil_stall_ms: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=10_000, description="GIL wait of P0 after which its cause is reported"
        ),
    ] = 5.0
    p0_cpu: Annotated[
        int, msgspec.Meta(ge=-1, le=4095, description="CPU for P0's thread; -1: any")
    ] = -1
    p0_realtime: Annotated[
        bool,
        msgspec.Meta(description="real-time priority for P0's thread, where the system allows it"),
    ] = True
    check_interval_ms: Annotated[
        float, msgspec.Meta(ge=10, le=10_000, description="interval of the load check")
    ] = 100.0
    recovery_checks: Annotated[
        int,
        msgspec.Meta(ge=1, le=10_000, description="checks at lower load before a level is left"),
    ] = 10
    audit_records: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=10_000_000, description="audit records buffered until fetched; 0: none"
        ),
    ] = 0
    dead_letters: Annotated[
        int, msgspec.Meta(ge=1, le=1_000_000, description="dead letters kept in memory")
    ] = 1000
    stop_timeout_s: Annotated[
        float, msgspec.Meta(gt=0, le=3600, description="how long a stop waits for P0 and P1")
    ] = 10.0

    def __post_init__(self) -> None:
        if self.p0.overflow != "block":
            raise ValueError(
                f'p0.overflow must stay "block", not "{self.p0.overflow}": a P0 event is never lost'
            )

        if self.p0.isolation != "thread":
            raise ValueError(
                'p0.isolation must stay "thread": a fill does not wait for another process'
            )

    @property
    def lanes(self) -> tuple[LaneConfig, LaneConfig, LaneConfig, LaneConfig]:
        return (self.p0, self.p1, self.p2, self.p3)
