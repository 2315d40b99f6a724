"""The venue of a run: one client, the feed on it, and the broker that takes orders."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from qts.brokers import Broker
from qts.brokers.config import is_loopback
from qts.brokers.kis import KisBroker
from qts.brokers.paper import PaperBroker
from qts.brokers.upbit import UpbitBroker
from qts.config import Config
from qts.database import Database
from qts.domain import Clock, RefusedError
from qts.feed import Feed, PatternRecord, read_symbols
from qts.venues import ClockSkew, KisClient, UpbitClient, UpbitConfig, connect_kis


class VenueConnection(NamedTuple):
    feed: Feed
    broker: Broker
    skew: ClockSkew


@contextlib.asynccontextmanager
async def connect_venue(
    config: Config,
    database: Database,
    clock: Clock,
    home: Path,
    sink: Callable[[PatternRecord], None],
    paper: PaperBroker | None,
) -> AsyncIterator[VenueConnection]:
    """Connect feed and broker; `home` holds the API token, `sink` takes every record.

    `paper` is the broker where the settings say so, else orders go to the venue.
    """
    check_venue(config)
    read_symbols(config.feed.symbols)  # a common mistake: refused before a token is requested
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(config, home, clock))
        feed = stack.enter_context(Feed.attach(client, config.feed, home, clock, [sink]))
        broker = paper or _venue_broker(config, database, clock, client, feed)
        client.skew.max_s = config.venues.max_skew_s
        yield VenueConnection(feed, broker, client.skew)


@contextlib.asynccontextmanager
async def open_paper_broker(
    config: Config, database: Database, clock: Clock
) -> AsyncIterator[PaperBroker | None]:
    """Open the paper broker; None where the settings name a venue's."""
    brokers = config.brokers
    if brokers.broker != "paper":
        yield None
        return
    async with PaperBroker.open(database, brokers.paper, brokers.costs, clock) as paper:
        yield paper


def check_venue(config: Config) -> None:
    """Refuse settings that contradict each other, before anything is opened."""
    venue, broker = config.feed.venue, config.brokers.broker
    if broker not in ("paper", venue):
        raise RefusedError(
            f'brokers.broker is "{broker}", and feed.venue is "{venue}"; '
            f'expected "paper" or "{venue}"'
        )
    upbit = config.venues.upbit
    if venue == "upbit" and is_loopback(upbit.url) != is_loopback(upbit.stream_url):
        raise RefusedError(
            f"venues.upbit.url is {upbit.url} and venues.upbit.stream_url is {upbit.stream_url}; "
            "expected both at Upbit, or both at a simulator"
        )


@contextlib.asynccontextmanager
async def _client(
    config: Config, home: Path, clock: Clock
) -> AsyncIterator[KisClient | UpbitClient]:
    if config.feed.venue == "kis":
        async with connect_kis(config.venues.kis, home, clock) as kis:
            yield kis
    else:
        async with UpbitClient.open(upbit_key(config), clock) as upbit:
            yield upbit


def upbit_key(config: Config) -> UpbitConfig:
    """Return the Upbit settings; on paper without the key, so that no request can be signed."""
    upbit = config.venues.upbit
    if config.brokers.broker == "upbit":
        return upbit
    return msgspec.structs.replace(upbit, access_key=None, secret_key=None)


def _venue_broker(
    config: Config,
    database: Database,
    clock: Clock,
    client: KisClient | UpbitClient,
    feed: Feed,
) -> Broker:
    if isinstance(client, UpbitClient):
        return UpbitBroker(client, config.brokers, clock)
    return KisBroker(client, database, config.brokers, clock, feed.stream)
