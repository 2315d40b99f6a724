"""The feed role: the feeds of the venues, published over NATS."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from qts.app.account_configs import account_configs
from qts.app.supervision import TaskSupervisor
from qts.app.venue import ChosenVenue, instrument_sync, watched_symbols
from qts.config import Config
from qts.database import Database
from qts.domain import Clock, Instruments
from qts.feed import Feed
from qts.roles import FeedPublisher, RoleConnection


class RoleParts(NamedTuple):
    """What a role is opened with; `home` is the folder of the venue's token."""

    config: Config
    database: Database
    clock: Clock
    connection: RoleConnection
    home: Path


class OpenRole(NamedTuple):
    """A running role: what it does, for the operator, and its tasks."""

    description: str
    tasks: TaskSupervisor


class _Venue(NamedTuple):
    venue: str
    alone: bool
    instruments: Instruments
    config: Config


@contextlib.asynccontextmanager
async def open_feed_role(parts: RoleParts) -> AsyncIterator[OpenRole]:
    """Connect to each venue, without its account, and publish its ticks."""
    config, database, clock, connection, home = parts
    tasks = TaskSupervisor()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(tasks.end)
        configs = [_without_orders(each) for each in account_configs(config)]
        venues: list[_Venue] = []
        for each in configs:
            name, alone, known = each.feed.venue_name, len(configs) == 1, Instruments()
            folder = home if alone else home / name
            sync = instrument_sync(each, database, clock, folder, known)
            await sync.start()
            tasks.start("instruments", sync.run())
            venues.append(_Venue(name, alone, known, each))
        watched = watched_symbols(venues)
        plans: list[str] = []
        for venue in venues:
            chosen = ChosenVenue.of(venue.config)
            connected = await stack.enter_async_context(chosen.connect(home, clock))
            publisher = FeedPublisher(connection, venue.venue)
            attached = connected.data, venue.config.feed, home, clock, venue.instruments
            symbols = None if venue.alone else watched[venue.venue]
            feed = stack.enter_context(
                Feed.attach(*attached, callbacks=publisher.callbacks, symbols=symbols)
            )
            tasks.start("feed", feed.run())
            tasks.start("feed publisher", publisher.run(feed))
            plans.append(f"{venue.venue}: {feed.plan.description}")
        yield OpenRole(f"feed to {connection.address}; {'; '.join(plans)}", tasks)


def _without_orders(config: Config) -> Config:
    """Return the settings of a feed alone: nothing is signed with the key of the account."""
    return replace(config, brokers=replace(config.brokers, broker="paper", mode="paper"))
