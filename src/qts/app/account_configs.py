"""Accounts of a run: their settings, what they share, and the simulator of one without a key."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import msgspec
from msgspec.structs import replace

from qts.backtest import BacktestConfig
from qts.brokers import (
    SimulatorOptions,
    VenueSimulator,
    account_key,
    venue_of,
    venue_settings,
)
from qts.config import Config
from qts.config.schema import SimulatorConfig
from qts.database import Database
from qts.domain import AccountKey, Clock, RefusedError, ServerFailedError
from qts.embedded import Home
from qts.embedded.process import Launch, spawn, stop
from qts.feed import FeedConfig
from qts.pipeline import (
    JournalHeader,
    PipelineConfig,
    StrategyConfig,
    with_strategies,
)
from qts.pipeline import check_venues as check_one_venue
from qts.strategies import Strategy, load_strategy, source_digest

# Most commands name an account and open none.
if TYPE_CHECKING:
    from qts.brokers import AccountLease
    from qts.notify import RecentAlerts
    from qts.pipeline import DecisionJournal, PortfolioStore
    from qts.risk import RiskLimits
    from qts.roles import RoleConnection


class AccountSettings(NamedTuple):
    """What an account of a run is opened with; `keys` is the folder of its venue's token."""

    config: Config
    lease: AccountLease
    keys: Path


class RunParts(NamedTuple):
    """What the accounts of a run share from its start."""

    database: Database
    clock: Clock
    began: datetime
    alerts: RecentAlerts
    instances: Sequence[StrategyConfig]
    strategies: Mapping[str, Strategy[Any]]
    limits: RiskLimits
    journal: DecisionJournal | None
    store: PortfolioStore
    next_cycle: Callable[[], int]
    roles: RoleConnection | None = None  # feed and strategies are in other processes


def create_strategies(config: Config) -> dict[str, Strategy[Any]]:
    """Return the strategies of a run by name.

    One may compile its step or load a model for seconds: a run does this before it takes a lease,
    which a blocked event loop would lose.
    """
    return {each.name: each.create() for each in config.strategy_instances()}


def account_configs(config: Config) -> list[Config]:
    """Return the settings of each account of a run: one venue, and one broker.

    With several venues each paper account is named after its venue; that of a run on one venue is
    not.
    """
    venues = config.feed.venues
    if len(venues) == 1 and len(config.brokers.names) == 1:
        return [config]
    return [_account_config(config, venue) for venue in venues]


def _account_config(config: Config, venue: str) -> Config:
    feed, brokers = config.feed, config.brokers
    takes_orders = venue in brokers.names
    has_indices = venue_of(venue).has_indices
    without = [each for each in feed.venues if not venue_of(each).has_indices]
    # Each venue has a recorder, and a recorder its folder.
    return replace(
        config,
        feed=replace(
            feed,
            venue=venue,
            record_dir=(feed.record_dir or (config.home or Path()) / "record") / venue,
            index_symbol=feed.index_symbol if venue in without[:1] else None,
            volatility_index=feed.volatility_index if has_indices else None,
        ),
        brokers=replace(
            brokers,
            broker=venue if takes_orders else "paper",
            mode=brokers.mode if takes_orders else "paper",
            paper=replace(brokers.paper, account=f"{brokers.paper.account}-{venue}"),
        ),
    )


def backtest_config(config: Config) -> BacktestConfig:
    """Return what a backtest takes of the settings of a run: limits, stops, costs, paper broker.

    An order of a backtest waits at least for the next event, whatever the paper broker does.
    """
    paper, pipeline = config.brokers.paper, config.pipeline
    latency_ms = max(BacktestConfig().paper.latency_ms, paper.latency_ms)
    return BacktestConfig(
        cash=Decimal(paper.cash) or BacktestConfig().cash,
        limits=config.risk.limits,
        stops=config.risk.stops,
        paper=replace(paper, latency_ms=latency_ms),
        costs=config.brokers.costs,
        interval_s=pipeline.interval_ms / 1000,
        signal_ttl_s=pipeline.signal_ttl_s,
        fill_timeout_s=pipeline.fill_timeout_s,
    )


def journal_header(
    config: Config,
    instances: tuple[StrategyConfig, ...],
    began: datetime,
    accounts: Sequence[AccountKey],
) -> JournalHeader:
    """Return what the decision journal of a run begins with: everything that shapes it."""
    return JournalHeader(
        began,
        instances,
        with_strategies(config.risk.exact_limits, instances),
        len(accounts),
        tuple(map(str, accounts)),
        msgspec.to_builtins(backtest_config(config)),
        {each.name: source_digest(load_strategy(each.source)) for each in instances},
    )


def check_venues(config: Config) -> None:
    """Refuse settings that contradict each other, before anything is opened."""
    venues = config.feed.venues
    for name in config.brokers.names:
        if name not in ("paper", *venues) or (name == "paper" and len(config.brokers.names) > 1):
            known = '", "'.join(venues)
            raise RefusedError(
                f'brokers.broker is "{",".join(config.brokers.names)}", and feed.venue is'
                f' "{",".join(venues)}"; expected "paper" or "{known}"'
            )
    for name in venues:
        venue = venue_of(name)
        venue.environment(venue_settings(config.venues, venue))


class TradingVenue(Protocol):
    """Account of a run, as far as it decides which strategies trade there."""

    @property
    def venue(self) -> str: ...
    def trades(self, symbol: str) -> bool: ...


def check_capital(
    instances: Iterable[StrategyConfig],
    strategies: Mapping[str, Strategy[Any]],
    accounts: Sequence[TradingVenue],
) -> None:
    """Refuse capital or limits of an instance that trades at several venues."""
    for each in instances:
        symbols = strategies[each.name].symbols
        at = [
            account.venue
            for account in accounts
            if symbols is None or any(map(account.trades, symbols))
        ]
        check_one_venue(each, at)


START_TIMEOUT_S = 30.0
_PARAMS = (
    "surge_breakout.window=3",
    "surge_breakout.margin=0.004",
    "surge_breakout.volume_ratio=1",
    "moving_average_swing.fast=2",
    "moving_average_swing.slow=4",
    "moving_average_swing.margin=0.001",
    "rsi_scalper.length=4",
    "rsi_scalper.low=25",
    "rsi_scalper.high=75",
)
_HOLDS = "SELECT EXISTS (SELECT FROM position WHERE broker = $1 AND account = $2 AND quantity <> 0)"
_LOCAL = "http://127.0.0.1"
_FOUND = re.compile(r"(http://\S+) +(ws://\S+)")


def uses_simulated_venue(config: Config) -> bool:
    """Return whether the settings of an account name neither key nor host, and it can be simulated.

    Upbit's quotes, which need no key, come from Upbit with `enabled` off.
    """
    if not config.simulator.enabled:
        return False
    venue = venue_of(config.feed.venue_name)
    settings = venue_settings(config.venues, venue)
    return venue.simulator is not None and venue.simulator.is_needed(settings)


def is_simulated(config: Config) -> bool:
    """Return whether the prices are a simulator's: its keys are valid nowhere else."""
    venue = venue_of(config.feed.venue_name)
    settings = venue_settings(config.venues, venue)
    return venue.simulator is not None and venue.simulator.is_used(settings)


def run_accounts(config: Config) -> dict[str, AccountKey]:
    """Return the accounts that a run with these settings trades, by venue, simulated or not."""
    configs = account_configs(config)
    return {each.feed.venue_name: account_of(each) for each in configs}


def run_account(config: Config) -> AccountKey:
    """Return the only account of a run with these settings, or its first."""
    return next(iter(run_accounts(config).values()))


def account_of(config: Config) -> AccountKey:
    """Return the account that settings of one venue name."""
    venues = config.venues
    venue = venue_of(config.feed.venue_name)
    if venue.simulator is not None and uses_simulated_venue(config):
        table = venue_settings(venues, venue)
        simulated = venue.simulator.settings(table, _LOCAL, _LOCAL, own_limits=False)
        venues = replace(venues, **{venue.name: simulated})
    return account_key(config.brokers, venues)


async def refuse_stale_positions(database: Database, key: AccountKey) -> None:
    """Refuse a ledger with positions: a simulated account starts empty in every run."""
    if await database.fetchval(_HOLDS, *key):
        raise RefusedError(
            f"the ledger has positions at {key.broker}, and its simulator starts empty in every "
            'run; set brokers.broker = "paper", or another home'
        )


class SimulatedVenue:
    """Context manager of the simulator process; `settings` point a run at it."""

    def __init__(
        self,
        home: Home,
        config: SimulatorConfig,
        venue: str = "kis",
        *,
        takes_orders: bool = False,
        folder: str = "simulator",
    ) -> None:
        simulator = venue_of(venue).simulator
        if simulator is None:
            raise RefusedError(f"venue {venue} has no simulator")
        self._simulator: VenueSimulator[Any] = simulator
        self._home = home
        # Orders are dated by the simulator's clock, and searched for by ours.
        self._config = replace(config, speed=1.0) if takes_orders else config
        self._venue = venue
        self._folder = folder
        self._takes_orders = takes_orders
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self.stream_url = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        log = self._home.log / f"{self._folder}.log"
        log.write_bytes(b"")
        shutil.rmtree(self.keys, ignore_errors=True)
        self.keys.mkdir(mode=0o700)
        config = self._config
        options = SimulatorOptions(
            config.port, config.seed, config.speed, config.symbols, self._takes_orders
        )
        argv = [sys.executable, *self._simulator.command(options)]
        self._process = spawn(Launch(argv=argv, log=log, death_signal=signal.SIGKILL))
        try:
            self._wait(log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            stop(self._process, ((signal.SIGINT, 5.0),))
            self._process = None

    def settings(self, other: Config) -> Config:
        """Return `other` with the venue, feed and strategies of this simulator."""
        table = self.venue_settings(getattr(other.venues, self._venue), own_limits=True)
        return replace(
            other,
            venues=replace(other.venues, **{self._venue: table}),
            feed=self.feed(other.feed),
            pipeline=self.pipeline(other),
        )

    def venue_settings(self, table: Any, *, own_limits: bool) -> Any:
        """Return the table of the venue, with the keys and addresses of this simulator."""
        return self._simulator.settings(table, self.url, self.stream_url, own_limits=own_limits)

    def feed(self, other: FeedConfig) -> FeedConfig:
        """Return feed settings for all symbols of the simulator, open at any time."""
        with urllib.request.urlopen(f"{self.url}/_control/symbols", timeout=10) as reply:  # noqa: S310 - our own child
            symbols = reply.read()
        path: Path = self._home.path / f"{self._folder}.symbols"
        path.write_bytes(symbols)
        return replace(
            other,
            symbols=path,
            always_open=True,
            interval_s=self._config.scan_s if self._simulator.own_scan else None,
            record_dir=other.record_dir or self._home.path / "record",
        )

    @staticmethod
    def pipeline(config: Config) -> PipelineConfig:
        """Return the built-in strategies with short windows, unless others are set."""
        other = config.pipeline
        if other.strategies or config.strategy:
            return other
        return replace(
            other,
            strategies=(
                "qts.strategies:SurgeBreakout",
                "qts.strategies:MovingAverageSwing",
                "qts.strategies:RsiScalper",
            ),
            params=(*_PARAMS, *other.params),
        )

    @property
    def keys(self) -> Path:
        """Folder of the token and the usage log; removed at every start."""
        return self._home.path / self._folder

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while self._process is not None:
            text = log.read_text("utf-8", errors="replace")
            if found := _FOUND.search(text):
                self.url, self.stream_url = found[1], found[2]
                return
            if self._process.poll() is not None or time.monotonic() > end:
                last = (text.strip().splitlines() or ["no output"])[-1]
                raise ServerFailedError(f"the simulator did not start: {last}; see {log}")
            time.sleep(0.02)
