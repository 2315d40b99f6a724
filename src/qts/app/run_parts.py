"""What the accounts of a run are opened with, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from qts.brokers import AccountLease
from qts.config import Config
from qts.database import Database
from qts.domain import Clock
from qts.notify import RecentAlerts
from qts.pipeline import DecisionJournal, PortfolioStore, StrategyConfig
from qts.risk import RiskLimits
from qts.roles import RoleConnection
from qts.strategies import Strategy


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
