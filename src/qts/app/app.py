"""A whole run on one home: servers, schema, trading, dashboard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvloop
from msgspec.structs import replace

import qts
from qts import telemetry
from qts.app.account_configs import (
    AccountSettings,
    SimulatedVenue,
    account_configs,
    account_of,
    check_venues,
    create_strategies,
    refuse_stale_positions,
    uses_simulated_venue,
)
from qts.app.dashboard_process import DashboardProcess
from qts.app.pair import StandbyLeases, may_be_prepared
from qts.app.rehearsal import REHEARSALS
from qts.app.retention import Retention
from qts.app.roles import RoleParts, check_role, open_feed_role
from qts.app.servers import (
    ServerInfo,
    cache_url,
    database_url,
    describe_servers,
    resolve_home,
    start_servers,
)
from qts.app.strategies_role import StrategiesRole
from qts.app.summary import RunSummary, TradingSummary
from qts.app.supervision import SystemdListener, ping_watchdog, set_on_signals
from qts.app.trading import TradingSystem
from qts.app.venue import ChosenVenue
from qts.brokers import AccountLease, require_live_consent, require_rehearsal
from qts.config import Config
from qts.database import Database, migrate, migration_status
from qts.domain import AccountKey, Clock, RefusedError, SystemClock, TimeLimit
from qts.embedded import EmbeddedServers, Home
from qts.roles import Role, RoleConnection

SERVER_CHECK_INTERVAL_S = 0.2

log = telemetry.logger("app")


class StartupInfo(msgspec.Struct, frozen=True):
    """What runs where, once every server answers."""

    home: str
    services: list[ServerInfo]
    schema_version: int
    migrations_applied: int
    seconds: float
    trading: str = ""  # what is traded; empty: nothing
    dashboard: str = ""  # its address; empty: none
    login: str = ""  # login link, at the first start only
    lockdown: str = ""  # reason of a LOCKDOWN that outlived the previous run; empty: none
    standby: str = ""  # for which accounts, and who holds them; empty: the run is active


class RunListener(Protocol):
    """Observer of the stages of a run."""

    def starting(self) -> None: ...
    def standing_by(self, ready: StartupInfo) -> None: ...
    def ready(self, ready: StartupInfo) -> None: ...
    def stopping(self) -> None: ...


def build_app(config: Config, clock: Clock | None = None) -> App:
    return App(config, resolve_home(config), clock or SystemClock())


def check_settings(config: Config) -> None:
    """Refuse bad settings before the servers start."""
    check_venues(config)
    for account in account_configs(config):
        _check_account(account)
    config.strategy_instances()


def check_standby(config: Config) -> None:
    """Refuse a standby that could not take over from the active run."""
    if config.database.url is None:
        raise RefusedError(
            "--standby needs database.url: the PostgreSQL of the active run, on no machine that"
            " fails with it"
        )
    for account in account_configs(config):
        if uses_simulated_venue(account) and account.brokers.names != ("paper",):
            raise RefusedError(
                f"--standby: venues.{account.feed.venue_name} has no key, and a simulator of the"
                " active run ends with it; set the key and address of the venue"
            )


def _check_account(config: Config) -> None:
    """Refuse an account that takes orders and lacks its key, its number or the consent."""
    brokers, name = config.brokers, config.feed.venue_name
    is_simulated = uses_simulated_venue(config)
    if brokers.mode == "live" and is_simulated:
        raise RefusedError(
            f'brokers.mode is "live", and venues.{name} has no key; set it with qts setup {name}, '
            'or brokers.mode = "paper" for the simulator'
        )
    if brokers.names == (name,) and not is_simulated:
        chosen = ChosenVenue.of(config)
        require_live_consent(brokers, name, chosen.environment, chosen.settings)
        account_of(config)


def check_rehearsals(config: Config, home: Home, clock: Clock) -> None:
    """Refuse live trading with a key that was not rehearsed lately."""
    for account in account_configs(config):
        venue, settings, _ = ChosenVenue.of(account)
        folder = home.path / REHEARSALS
        require_rehearsal(account.brokers, venue, settings, folder, clock.now(), qts.__version__)


class App:
    """A run on one home."""

    def __init__(self, config: Config, home: Home, clock: Clock) -> None:
        self.config = config
        self.home = home
        self._clock = clock
        self._stop = asyncio.Event()
        self._is_standby = False
        self._role: Role = "all"
        self._connection: RoleConnection | None = None  # to the other roles
        self._seconds: float | None = None
        self._end: TimeLimit | None = None  # `_seconds` from when it trades or stands by
        self._restarts: list[str] = []

    def run(
        self,
        seconds: float | None,
        listener: RunListener,
        *,
        trade: bool = True,
        standby: bool = False,
        role: Role = "all",
    ) -> RunSummary:
        """Run for `seconds`, or until SIGINT or SIGTERM, then stop cleanly.

        A standby trades once the active run has ended, or lost its accounts. A role is one part of
        a system, in this process.
        """
        self._is_standby, self._seconds, self._role = standby, seconds, role
        if trade:
            check_settings(self.config)
            check_role(self.config, role, standby=standby)
            if standby:
                check_standby(self.config)
            if role in ("all", "execution"):
                check_rehearsals(self.config, self.home, self._clock)
        try:
            telemetry.configure(self.config.telemetry)
        except OSError as error:
            file = self.config.telemetry.log_file
            raise RefusedError(f"telemetry.log_file = {file}: {error.strerror}") from None
        try:
            return uvloop.run(self._run(SystemdListener(listener), trade))
        finally:
            telemetry.shutdown()

    async def _run(self, listener: RunListener, trade: bool) -> RunSummary:
        began_ns = self._clock.monotonic_ns()
        listener.starting()
        traded: TradingSummary | None = None
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(set_on_signals(self._stop))
            self._expose(stack)
            stack.push_async_callback(_end, asyncio.create_task(ping_watchdog()))
            servers = await stack.enter_async_context(start_servers(self.home, self.config))
            server_watch = asyncio.create_task(self._watch_servers(servers))
            stack.push_async_callback(_end, server_watch)
            database = await stack.enter_async_context(
                Database.open(database_url(self.config, self.home), self.config.database)
            )
            services = await describe_servers(
                servers, database, cache_url(self.config, self.home), self.config.cache
            )
            applied = await migrate(database)
            schema = (await migration_status(database)).current
            retention = Retention(database, self.config, self.home, self._clock)
            stack.push_async_callback(_end, asyncio.create_task(retention.run()))
            ready = StartupInfo(
                str(self.home.path), services, schema, len(applied), self._since(began_ns)
            )
            if self._role != "all":
                opening = RoleConnection.open(self.config.outbox.nats, self._role)
                self._connection = await stack.enter_async_context(opening)
            if self._connection is not None and self._role != "execution":
                parts = RoleParts(
                    self.config, database, self._clock, self._connection, self.home.path
                )
                is_feed = self._role == "feed"
                running = open_feed_role(parts) if is_feed else StrategiesRole(parts).open()
                role = await stack.enter_async_context(running)
                listener.ready(replace(ready, trading=role.description))
                await self._until_stopped(server_watch, role.tasks.failed)
                listener.stopping()
            elif trade:
                traded = await self._trade(database, ready, server_watch, listener)
            else:
                listener.ready(ready)
                await self._until_stopped(server_watch)
                listener.stopping()
        return RunSummary(
            verdict="FAILED" if traded is not None and traded.failed else "OK",
            seconds=self._since(began_ns),
            services=services,
            schema_version=schema,
            restarts=self._restarts,
            trading=traded,
            role=self._role,
            link=self._connection.status if self._connection is not None else None,
        )

    def _expose(self, stack: contextlib.AsyncExitStack) -> None:
        telemetry.export_host_metrics(self.home.path)
        if port := self.config.telemetry.metrics_port:
            try:
                stack.enter_context(telemetry.serve_metrics(port))
            except OSError as error:
                raise RefusedError(f"telemetry.metrics_port = {port}: {error.strerror}") from None

    async def _trade(
        self,
        database: Database,
        ready: StartupInfo,
        server_watch: asyncio.Task[None],
        listener: RunListener,
    ) -> TradingSummary | None:
        """Trade until stopped; on the simulated market where no key is set.

        Return None for a standby that did not have to.
        """
        config = replace(self.config, home=self.home.path)
        configs = account_configs(config)
        if all(uses_simulated_venue(each) for each in configs):
            config = replace(config, pipeline=SimulatedVenue.pipeline(config))
        strategies = create_strategies(config)
        leases = [self._account_lease(database, each) for each in configs]
        may_prepare = self._is_standby and may_be_prepared(configs)
        async with contextlib.AsyncExitStack() as stack:
            for lease in leases:
                stack.push_async_callback(lease.release)
            pair = StandbyLeases(database, leases)
            waiting = ready, server_watch, listener
            if not self._is_standby:
                for lease in leases:
                    await lease.acquire()
            elif not may_prepare and not await self._take_over(pair, *waiting):
                return None
            began_ns = self._clock.monotonic_ns()
            accounts = await self._accounts(stack, database, configs, leases)
            trading = TradingSystem(
                config, database, self._clock, accounts, strategies, self._connection
            )
            await stack.enter_async_context(trading.prepare(cache_url(config, self.home)))
            if may_prepare:
                await pair.prepare(trading)
                if not await self._take_over(pair, *waiting, trading.failed):
                    return None
                began_ns = self._clock.monotonic_ns()
            await trading.start()
            view = await stack.enter_async_context(DashboardProcess(config, self.home, self._clock))
            listener.ready(
                replace(
                    ready,
                    seconds=round(ready.seconds + self._since(began_ns), 3),
                    trading=trading.description,
                    dashboard=view.address,
                    login=view.link,
                    lockdown=trading.lockdown,
                )
            )
            handovers = [asyncio.create_task(lease.handover.wait()) for lease in leases]
            for each in handovers:
                stack.push_async_callback(_end, each)
            await self._until_stopped(server_watch, trading.failed, *handovers)
            listener.stopping()
            is_handover = any(lease.handover.is_set() for lease in leases)
            await (trading.hand_over() if is_handover else trading.stop())
            return await trading.summary(reconcile=not is_handover)

    async def _take_over(
        self,
        pair: StandbyLeases,
        ready: StartupInfo,
        server_watch: asyncio.Task[None],
        listener: RunListener,
        *others: asyncio.Future[Any],
    ) -> bool:
        """Stand by until all leases are taken; return False when the run is stopped before."""
        listener.standing_by(replace(ready, standby=await pair.describe()))
        taking = asyncio.create_task(pair.take())
        try:
            await self._until_stopped(server_watch, taking, *others)
        finally:
            await _end(taking)
        if taking.cancelled():
            listener.stopping()
        return not taking.cancelled()

    async def _accounts(
        self,
        stack: contextlib.AsyncExitStack,
        database: Database,
        configs: Sequence[Config],
        leases: list[AccountLease],
    ) -> list[AccountSettings]:
        """Return the settings of each account; start simulators if need be."""
        accounts: list[AccountSettings] = []
        for each, lease in zip(configs, leases, strict=True):
            folder = "simulator" if len(configs) == 1 else f"simulator-{each.feed.venue_name}"
            if accounts:  # the port of the settings is the first simulator's
                each = replace(each, simulator=replace(each.simulator, port=0))
            settings, keys = await self._venue_settings(stack, database, each, lease.key, folder)
            accounts.append(AccountSettings(settings, lease, keys))
        return accounts

    def _account_lease(self, database: Database, config: Config) -> AccountLease:
        return AccountLease(
            database,
            account_of(config),
            str(self.home.path),
            self._clock,
            is_live=config.brokers.mode == "live",
            send_within_s=config.orders.send_within_s,
        )

    async def _venue_settings(
        self,
        stack: contextlib.AsyncExitStack,
        database: Database,
        config: Config,
        key: AccountKey,
        folder: str,
    ) -> tuple[Config, Path]:
        """Return the settings of the venue, simulated if need be, and the folder of its token."""
        if not uses_simulated_venue(config):
            return config, self.home.path
        takes_orders = config.brokers.names != ("paper",)
        if takes_orders:
            await refuse_stale_positions(database, key)
        venue, given = config.feed.venue_name, config.simulator
        simulated = SimulatedVenue(
            self.home, given, venue, takes_orders=takes_orders, folder=folder
        )
        await asyncio.to_thread(simulated.__enter__)
        stack.push_async_callback(asyncio.to_thread, simulated.__exit__)
        return await asyncio.to_thread(simulated.settings, config), simulated.keys

    async def _until_stopped(self, *others: asyncio.Future[Any]) -> None:
        """Wait for a signal, the end of the run's time, or one of the others; raise its error."""
        if self._end is None and self._seconds is not None:
            self._end = TimeLimit(self._clock, self._seconds)
        left_s = None if self._end is None else max(0.0, self._end.left_s(self._clock))
        stopped = asyncio.create_task(self._stop.wait())
        waited: set[asyncio.Future[Any]] = {stopped, *others}
        done, _ = await asyncio.wait(waited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for ended in done - {stopped}:
            ended.result()  # raises: a server did not restart, or a task failed

    async def _watch_servers(self, servers: EmbeddedServers) -> None:
        """Restart embedded servers that die; raise when one does not start again."""
        while True:
            await self._clock.sleep(SERVER_CHECK_INTERVAL_S)
            for name in await asyncio.to_thread(servers.restart_dead):
                self._restarts.append(name)
                log.error("server died; restarted", server=name)

    def _since(self, began_ns: int) -> float:
        return round((self._clock.monotonic_ns() - began_ns) / 1e9, 3)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
