"""Settings of the accounts of a run: one venue and one broker each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from qts.backtest import BacktestConfig
from qts.brokers import venue_of, venue_settings
from qts.config import Config
from qts.domain import AccountKey, RefusedError
from qts.pipeline import JournalHeader, StrategyConfig, with_strategies
from qts.pipeline import check_venues as check_one_venue
from qts.strategies import Strategy, load_strategy, source_digest


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
