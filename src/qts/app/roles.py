"""Roles of a system, each in a separate process: the feed role, and that of execution."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from qts.app.account_configs import account_configs, uses_simulated_venue
from qts.app.supervision import TaskSupervisor
from qts.app.venue import ChosenVenue, instrument_sync, watched_symbols
from qts.config import Config
from qts.database import Database
from qts.domain import Clock, Instruments, RefusedError
from qts.feed import Feed
from qts.outbox import EventDispatcher
from qts.pipeline import RunnerHooks, StrategyUpdate
from qts.roles import (
    FeedPublisher,
    RemoteRunner,
    ReportedEvents,
    ReportSender,
    Role,
    RoleConnection,
    SignalReceiver,
    check_nats,
)

if TYPE_CHECKING:
    from qts.app.account import TradingAccount
    from qts.app.trading import TradingSystem


ROLES: tuple[Role, ...] = ("all", "feed", "strategies", "execution")


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


def check_role(config: Config, role: Role, *, standby: bool) -> None:
    """Refuse settings that the processes of a system cannot share."""
    if role == "all":
        return
    if standby and role != "execution":
        raise RefusedError(
            f"--standby with --role {role}: expected --role execution; a second feed is a spare"
            " without it, and strategies are restarted"
        )
    if config.database.url is None:
        raise RefusedError(f"--role {role} needs database.url: the PostgreSQL of all roles")
    if config.pipeline.journal is not None:
        raise RefusedError(
            f"pipeline.journal is {config.pipeline.journal}: a journal has the ticks, decisions"
            f" and orders of one process; expected it unset with --role {role}"
        )
    for account in account_configs(config):
        if uses_simulated_venue(account):
            name = account.feed.venue_name
            raise RefusedError(
                f"--role {role}: venues.{name} has no key, and a simulator of one role serves no"
                f" other; set key and address of the venue, or of: qts dev simulate {name}"
            )
    check_nats(config.outbox.nats)


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


class ExecutionRole:
    """What joins a TradingSystem to strategies elsewhere: `build_runners`, `start`, `close`."""

    def __init__(self, connection: RoleConnection, trading: TradingSystem) -> None:
        self._connection = connection
        self._trading = trading
        self._senders: list[ReportSender] = []  # one for each account
        self._runners: dict[str, RemoteRunner] = {}

    def build_runners(self, hooks: RunnerHooks) -> Iterator[RemoteRunner]:
        """Yield a stand-in for each strategy."""
        self._senders = [self._sender(each) for each in self._trading.accounts]
        for each in self._trading.instances:
            strategy = self._trading.strategies[each.name]
            runner = RemoteRunner(strategy, hooks, self._report)
            self._runners[runner.key] = runner
            yield runner

    def _sender(self, account: TradingAccount) -> ReportSender:
        store, number = self._trading.store, account.portfolio.account
        return ReportSender(
            self._connection,
            account.key,
            lambda: store.state.accounts[number],
            lambda: account.pipeline.may_start,
        )

    def _report(self, strategy_key: str, update: StrategyUpdate) -> None:
        """Report to the strategy by the account of the symbol."""
        about = update.fill or update.order
        accounts = self._trading.accounts
        for account, sender in zip(accounts, self._senders, strict=True):
            if about is not None and (account is accounts[-1] or account.trades(about.symbol)):
                sender.add(strategy_key, update)
                return

    def around(self, account: TradingAccount) -> Callable[[EventDispatcher], EventDispatcher]:
        """Return what makes a trade event of the account wait for its report."""
        trading, sender = self._trading, self._senders[account.portfolio.account]

        def wrap(inner: EventDispatcher) -> EventDispatcher:
            return ReportedEvents(inner, trading.database, sender, self._runners, trading.began)

        return wrap

    def start(self, tasks: TaskSupervisor) -> list[asyncio.Task[None]]:
        """Start reports and signals; return the tasks that end before decisions do."""
        receiving: list[asyncio.Task[None]] = []
        for account, sender in zip(self._trading.accounts, self._senders, strict=True):
            tasks.start("reports", sender.run())
            receiver = SignalReceiver(
                self._connection,
                account.pipeline,
                self._runners,
                sender,
                self._trading.clock,
                account.config.pipeline.signal_ttl_s,
            )
            receiving.append(tasks.start("signals", self._receive(account, receiver)))
        return receiving

    async def _receive(self, account: TradingAccount, receiver: SignalReceiver) -> None:
        """Take signals once positions are known: sizes depend on cash and positions."""
        await account.positions.loaded.wait()
        await receiver.run(account.key)

    async def close(self, timeout_s: float) -> None:
        """Send the last reports, at most so long; those that are left follow from the ledger."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(each.flush() for each in self._senders))
        for each in self._senders:
            each.close()
