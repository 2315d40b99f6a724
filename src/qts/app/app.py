"""A whole run on one home: servers, schema, trading, dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvloop
from msgspec.structs import replace

import qts
from qts import telemetry
from qts.app.account import AccountSettings
from qts.app.account_configs import account_configs, check_venues
from qts.app.dashboard_process import DashboardProcess
from qts.app.pair import describe_leases, stand_by, warm_up
from qts.app.rehearsal import REHEARSALS
from qts.app.retention import Retention
from qts.app.servers import (
    ServerInfo,
    cache_url,
    database_url,
    describe_servers,
    resolve_home,
    start_servers,
)
from qts.app.simulated_venue import (
    SimulatedVenue,
    account_of,
    refuse_stale_positions,
    uses_simulated_venue,
)
from qts.app.summary import RunSummary, TradingSummary
from qts.app.supervision import SystemdListener, ping_watchdog
from qts.app.trading import TradingSystem
from qts.app.venue import ChosenVenue
from qts.brokers import AccountLease, require_live_consent, require_rehearsal
from qts.config import Config
from qts.database import Database, migrate, migration_status
from qts.domain import AccountKey, Clock, RefusedError, SystemClock
from qts.embedded import EmbeddedServers, Home

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


class _StandbyEnded(Exception):  # noqa: N818 - not an error: it was stopped before it had to trade
    pass


class App:
    """A run on one home."""

    def __init__(self, config: Config, home: Home, clock: Clock) -> None:
        self.config = config
        self.home = home
        self._clock = clock
        self._stop = asyncio.Event()
        self._is_standby = False
        self._restarts: list[str] = []

    def run(
        self,
        seconds: float | None,
        listener: RunListener,
        *,
        trade: bool = True,
        standby: bool = False,
    ) -> RunSummary:
        """Run for `seconds`, or until SIGINT or SIGTERM, then stop cleanly.

        A standby trades once the active run has ended, or lost its accounts.
        """
        self._is_standby = standby
        if trade:
            check_settings(self.config)
            if standby:
                check_standby(self.config)
            check_rehearsals(self.config, self.home, self._clock)
        try:
            telemetry.configure(self.config.telemetry)
        except OSError as error:
            file = self.config.telemetry.log_file
            raise RefusedError(f"telemetry.log_file = {file}: {error.strerror}") from None
        try:
            return uvloop.run(self._run(seconds, SystemdListener(listener), trade))
        finally:
            telemetry.shutdown()

    async def _run(self, seconds: float | None, listener: RunListener, trade: bool) -> RunSummary:
        began_ns = self._clock.monotonic_ns()
        listener.starting()
        traded: TradingSummary | None = None
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(_signals_set(self._stop))
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
            if trade:
                traded = await self._trade(database, ready, server_watch, (seconds, listener))
            else:
                listener.ready(ready)
                await self._until_stopped(seconds, server_watch)
                listener.stopping()
        return RunSummary(
            verdict="FAILED" if traded is not None and traded.failed else "OK",
            seconds=self._since(began_ns),
            services=services,
            schema_version=schema,
            restarts=self._restarts,
            trading=traded,
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
        how: tuple[float | None, RunListener],
    ) -> TradingSummary | None:
        """Trade until stopped; on the simulated market where no key is set."""
        seconds, listener = how
        began_ns = self._clock.monotonic_ns()
        async with contextlib.AsyncExitStack() as stack:
            config = replace(self.config, home=self.home.path)
            configs = account_configs(config)
            leases = [self._account_lease(database, each) for each in configs]
            trading: TradingSystem | None = None

            async def take() -> None:
                nonlocal began_ns, seconds
                if not self._is_standby:
                    for lease in leases:
                        await stack.enter_async_context(lease)
                    return
                if trading is not None:
                    await warm_up(trading)
                held = await describe_leases(database, leases)
                listener.standing_by(replace(ready, standby=held))
                taking = asyncio.create_task(stand_by(stack, leases, trading))
                try:
                    await self._until_stopped(seconds, server_watch, taking)
                finally:
                    await _end(taking)
                if taking.cancelled():
                    raise _StandbyEnded
                seconds = seconds and max(0.0, seconds - self._since(began_ns))
                began_ns = self._clock.monotonic_ns()

            # A paper broker belongs to who opened it last: it cannot be prepared by a standby.
            is_prepared = self._is_standby and "paper" not in {
                name for each in configs for name in each.brokers.names
            }
            try:
                if not is_prepared:
                    await take()
                config, accounts = await self._accounts(stack, database, config, leases)
                trading = TradingSystem(config, database, self._clock, accounts)
                opening = trading.open(cache_url(config, self.home), take if is_prepared else None)
                await stack.enter_async_context(opening)
            except _StandbyEnded:
                listener.stopping()
                return None
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
            await self._until_stopped(seconds, server_watch, trading.failed, *handovers)
            listener.stopping()
            await trading.stop()
            is_handover = any(lease.handover.is_set() for lease in leases)
            if is_handover:
                for lease in leases:
                    await lease.release()
            return await trading.summary(reconcile=not is_handover)

    async def _accounts(
        self,
        stack: contextlib.AsyncExitStack,
        database: Database,
        config: Config,
        leases: list[AccountLease],
    ) -> tuple[Config, list[AccountSettings]]:
        """Return the settings of the run, and of each account; start simulators if need be."""
        configs = account_configs(config)
        accounts: list[AccountSettings] = []
        for each, lease in zip(configs, leases, strict=True):
            folder = "simulator" if len(configs) == 1 else f"simulator-{each.feed.venue_name}"
            if accounts:  # the port of the settings is the first simulator's
                each = replace(each, simulator=replace(each.simulator, port=0))
            settings, keys = await self._venue_settings(stack, database, each, lease.key, folder)
            accounts.append(AccountSettings(settings, lease, keys))
        if all(uses_simulated_venue(each) for each in configs):
            config = replace(config, pipeline=SimulatedVenue.pipeline(config))
        return config, accounts

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

    async def _until_stopped(
        self,
        seconds: float | None,
        server_watch: asyncio.Task[None],
        *others: asyncio.Future[Any],
    ) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        waited: set[asyncio.Future[Any]] = {stopped, server_watch, *others}
        done, _ = await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
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


@contextlib.contextmanager
def _signals_set(event: asyncio.Event) -> Iterator[None]:
    """Set the event on SIGINT or SIGTERM; a second signal ends the process."""
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        event.set()
        release()

    def release() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    for number in handled:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        release()


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
