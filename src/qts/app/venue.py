"""The venue of a run: one client, the feed that watches it, and the broker that takes orders."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
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
from qts.feed import Feed, read_symbols
from qts.pipeline.tick_publisher import TickPublisher
from qts.venues import KisClient, UpbitClient, UpbitConfig, connect_kis


class RunContext(NamedTuple):
    """What every part of a run stands on."""

    config: Config
    database: Database
    clock: Clock


class VenueConnection(NamedTuple):
    feed: Feed
    broker: Broker


@contextlib.asynccontextmanager
async def connect_venue(
    ground: RunContext, home: Path, ticks: TickPublisher
) -> AsyncIterator[VenueConnection]:
    """`home` is the folder of the key; every tick goes to `ticks`."""
    config, _, clock = ground
    check_venue(config)
    read_symbols(config.feed.symbols)  # the commonest mistake, told before the key is taken
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(config, home, clock))
        feed = stack.enter_context(Feed.attach(client, config.feed, home, clock, [ticks]))
        broker = await stack.enter_async_context(_broker(ground, client, feed))
        if isinstance(broker, PaperBroker):
            ticks.paper = broker.on_tick
        yield VenueConnection(feed, broker)


def check_venue(config: Config) -> None:
    """Refuse what does not belong together, before anything is opened."""
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
    """On paper without its key: whoever cannot sign cannot order, whatever else is wrong."""
    upbit = config.venues.upbit
    if config.brokers.broker == "upbit":
        return upbit
    return msgspec.structs.replace(upbit, access_key=None, secret_key=None)


@contextlib.asynccontextmanager
async def _broker(
    ground: RunContext, client: KisClient | UpbitClient, feed: Feed
) -> AsyncIterator[Broker]:
    config, database, clock = ground
    brokers = config.brokers
    if brokers.broker == "paper":
        async with PaperBroker.open(database, brokers.paper, brokers.costs, clock) as paper:
            yield paper
    elif isinstance(client, UpbitClient):
        yield UpbitBroker(client, brokers, clock)
    else:
        yield KisBroker(client, database, brokers, clock, feed.stream)
