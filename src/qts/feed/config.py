"""Settings of the feed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from qts.domain import split_names
from qts.venues import VenueLimits, check_venue_names

SCAN_S = 30.0


class FeedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to poll, how often, and where to record it."""

    venue: Annotated[
        str | tuple[str, ...],
        msgspec.Meta(
            description='venue of the quotes: "kis", "upbit", that of an installed package, or'
            ' several: "kis,upbit"'
        ),
    ] = "kis"
    symbols: Annotated[
        Path | None,
        msgspec.Meta(description="symbols: a file, one per line, or a folder of KIS lists"),
    ] = None
    interval_s: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=86_400)] | None,
        msgspec.Meta(
            description="scan of all symbols, if limits allow; unset: 30 s at KIS, 1 s at Upbit"
        ),
    ] = None
    multi_quotes: Annotated[
        bool, msgspec.Meta(description="thirty symbols per request, if the key allows it")
    ] = True
    max_bursts: Annotated[
        int, msgspec.Meta(ge=0, le=30, description="symbols polled once a second, at most")
    ] = 10
    burst_s: Annotated[
        float, msgspec.Meta(gt=0, le=86_400, description="longest duration of a burst")
    ] = 300.0
    price_change: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="price change that starts a burst")
    ] = 0.03
    volume_ratio: Annotated[
        float,
        msgspec.Meta(
            gt=1, description="volume rate, relative to the symbol's own, that starts a burst"
        ),
    ] = 2.0
    cache_ttl_s: Annotated[
        float, msgspec.Meta(gt=0, description="older prices are not compared")
    ] = 600.0
    stream: Annotated[
        bool, msgspec.Meta(description="real ticks instead of polls for symbols in a burst")
    ] = True
    index_interval_s: Annotated[
        float,
        msgspec.Meta(ge=1, le=3600, description="time between two values of each KIS index"),
    ] = 10.0
    volatility_index: Annotated[
        str | None,
        msgspec.Meta(description="KIS code of a volatility index: 0503 is VKOSPI; unset: none"),
    ] = None
    index_symbol: Annotated[
        str | None,
        msgspec.Meta(description="Upbit: symbol that stands for the index: KRW-BTC; unset: none"),
    ] = None
    after_market: Annotated[bool, msgspec.Meta(description="also poll in the after-market")] = False
    always_open: Annotated[
        bool, msgspec.Meta(description="ignore the calendar, for simulators")
    ] = False
    calendar_overrides: Annotated[
        Path | None, msgspec.Meta(description="file of days with special hours (TOML)")
    ] = None
    record: Annotated[bool, msgspec.Meta(description="record every quote")] = True
    record_dir: Annotated[
        Path | None, msgspec.Meta(description="folder of records; unset: record/ in the home")
    ] = None
    rotate_mb: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="size at which a new file is started")
    ] = 256
    keep_days: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=36_500, description="days of records to keep, from the newest; 0: all"
        ),
    ] = 30
    min_free_mb: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(
            description="free disk space below which recording stops; unset: 5 % of the disk, at"
            " least 1,000 and at most half of it"
        ),
    ] = None

    def __post_init__(self) -> None:
        check_venue_names("venue", self.venues)

    @property
    def venues(self) -> tuple[str, ...]:
        """The venues of a run."""
        return split_names(self.venue)

    @property
    def venue_name(self) -> str:
        """The venue of one account."""
        (name,) = self.venues
        return name

    @property
    def scan_s(self) -> float:
        """Scan interval; a feed on a venue has that of the venue where none is set."""
        return SCAN_S if self.interval_s is None else self.interval_s

    def at_venue(self, limits: VenueLimits, *, always_open: bool) -> FeedConfig:
        """Return the settings with what depends on the venue filled in."""
        interval_s = limits.scan_s if self.interval_s is None else self.interval_s
        return msgspec.structs.replace(
            self, interval_s=interval_s, always_open=self.always_open or always_open
        )
