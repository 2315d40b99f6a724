"""Settings of the feed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec


class FeedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is watched, how often, and where it is written."""

    venue: Annotated[
        Literal["kis", "upbit"],
        msgspec.Meta(description="whose market a run watches; Upbit's never closes"),
    ] = "kis"
    symbols: Annotated[
        Path | None,
        msgspec.Meta(
            description="symbols to watch: a file, one on a line, or a folder of KIS lists"
        ),
    ] = None
    interval_s: Annotated[
        float,
        msgspec.Meta(gt=0, le=86_400, description="a scan of all symbols, where limits allow it"),
    ] = 30.0
    multi_quotes: Annotated[
        bool, msgspec.Meta(description="thirty symbols in one request, where the key allows it")
    ] = True
    max_bursts: Annotated[
        int, msgspec.Meta(ge=0, le=30, description="symbols polled once a second, at most")
    ] = 10
    burst_s: Annotated[
        float, msgspec.Meta(gt=0, le=86_400, description="longest a symbol stays in its burst")
    ] = 300.0
    price_change: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="change of price that begins a burst")
    ] = 0.03
    volume_ratio: Annotated[
        float, msgspec.Meta(gt=1, description="rate of volume, over its own, that begins a burst")
    ] = 2.0
    cache_ttl_s: Annotated[
        float, msgspec.Meta(gt=0, description="a price older than this is not compared with")
    ] = 600.0
    stream: Annotated[
        bool, msgspec.Meta(description="real ticks instead of polls for symbols in a burst")
    ] = True
    after_market: Annotated[bool, msgspec.Meta(description="watch the after-market too")] = False
    always_open: Annotated[
        bool, msgspec.Meta(description="poll whatever the calendar says, as a simulator needs")
    ] = False
    calendar_overrides: Annotated[
        Path | None, msgspec.Meta(description="file of days with hours of their own (TOML)")
    ] = None
    record: Annotated[bool, msgspec.Meta(description="write all that is seen to disk")] = True
    record_dir: Annotated[
        Path | None, msgspec.Meta(description="where records go; unset: record/ in the home")
    ] = None
    rotate_mb: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="size at which a new file is begun")
    ] = 256
