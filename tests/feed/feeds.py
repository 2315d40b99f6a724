"""Feeds on KIS with exclusive use of the key, and plans of its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from qts.app.kis_venue import KisVenue
from qts.brokers import CalendarOptions, ConnectOptions
from qts.domain import Clock, Instruments
from qts.feed import Feed, FeedCallbacks, FeedConfig, ScanPlan, plan_scan_offline
from qts.feed.ingest import Sink
from qts.venues import KisConfig

VENUE = KisVenue()
_NO_CALLBACKS = FeedCallbacks()


@asynccontextmanager
async def open_feed(
    kis: KisConfig,
    config: FeedConfig,
    home: Path,
    clock: Clock,
    sinks: Sequence[Sink] = (),
    callbacks: FeedCallbacks = _NO_CALLBACKS,
) -> AsyncIterator[Feed]:
    calendar = VENUE.calendar(kis, CalendarOptions(config.calendar_overrides))
    options = ConnectOptions(home, clock, calendar, multi_quotes=config.multi_quotes)
    async with VENUE.connect(kis, options) as connection:
        listed = Instruments(await VENUE.instruments(kis, clock).fetch())
        with Feed.attach(connection.data, config, home, clock, listed, sinks, callbacks) as feed:
            yield feed


def plan_of(
    kis: KisConfig, config: FeedConfig, symbols: int, now: datetime, held: int = 0
) -> ScanPlan:
    limits = VENUE.limits(kis, multi_quotes=config.multi_quotes)
    calendar = VENUE.calendar(kis, CalendarOptions())
    return plan_scan_offline(limits, calendar, config, symbols, now, held)
