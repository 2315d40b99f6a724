"""Lane P3 of a run: its handlers, and what publishes their events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from qts import telemetry
from qts.app.account_configs import is_simulated
from qts.app.summary import warm_up_of
from qts.cache import CacheStore
from qts.cache.redis import RedisStore
from qts.dashboard.daily_report import ReportSchedule, day_bounds
from qts.dashboard.lane_handlers import LaneSettings, register_handlers
from qts.dashboard.publisher import StatusPublisher
from qts.dashboard.run_figures import AccountSources, StatusSources
from qts.dashboard.telegram_commands import TelegramCommands
from qts.domain import Secret
from qts.notify import TelegramBot

if TYPE_CHECKING:
    from qts.app.account import TradingAccount
    from qts.app.trading import TradingSystem


def build_status(
    trading: TradingSystem,
    stack: contextlib.AsyncExitStack,
    store: CacheStore,
    cache_url: Secret,
    reports: Path,
) -> tuple[StatusPublisher, list[ReportSchedule]]:
    """Register the handlers of P3 and build the tasks that publish its events."""
    metrics = stack.enter_context(telemetry.MetricTable.create())
    engine, account = trading.engine, trading.accounts[0]
    config = account.config
    url, database = trading.database.settings
    settings = LaneSettings(
        account=account.key,
        database_url=url,
        database=database,
        cache_url=cache_url,
        cache=config.cache,
        telemetry=config.telemetry,
        channels=tuple(trading.notifications.channels),
        reports=reports,
        metrics=metrics.path,
    )
    register_handlers(engine, settings, RedisStore.open)
    status = StatusPublisher(status_sources(trading), store, config.cache.prefix, metrics)

    schedules = [
        ReportSchedule(
            trading.database,
            each.key,
            reports if each.alone else reports / each.venue,
            partial(_closes_at, each),
            engine,
        )
        for each in trading.accounts
    ]
    return status, schedules


def _closes_at(account: TradingAccount, day: date) -> datetime | None:
    """Return when trading of a day ends: at midnight in a market that never closes."""
    calendar = account.feed.calendar
    return day_bounds(day)[1] if calendar is None else calendar.closes_at(day)


def status_sources(trading: TradingSystem) -> StatusSources:
    return StatusSources(
        name=_name_of(trading),
        mode=trading.config.brokers.mode,
        simulated=all(is_simulated(each.config) for each in trading.accounts),
        began=trading.began,
        clock=trading.clock,
        database=trading.database,
        streams=trading.config.outbox.streams,
        engine=trading.engine,
        accounts=[_account_sources(each) for each in trading.accounts],
        runners=trading.runners,
        warm_up_of=lambda key: warm_up_of(trading, key),
        alerts=trading.alerts,
        description=lambda: trading.description,
    )


def _name_of(trading: TradingSystem) -> str:
    """Return the name of the run among several, by default its host and home."""
    home = trading.config.home
    return trading.config.dashboard.run_name or f"{gethostname()}:{home.name if home else ''}"


def _account_sources(account: TradingAccount) -> AccountSources:
    return AccountSources(
        venue=account.venue,
        key=account.key,
        epoch=lambda: account.lease.epoch,
        cache=account.cache,
        feed=account.feed,
        ticks=account.ticks,
        market=account.market,
        portfolio=account.portfolio,
        position_notes=account.positions.notes,
        stop_price=account.micro_risk.stop_price,
        monitor=account.monitor,
        limits=account.limits,
        is_reconciled=account.reconciler.is_reconciled,
        is_open=account.is_open,
        skew=account.skew,
        pipeline=account.pipeline,
        refusals=account.submitter.refusals,
        precheck_refusals=account.precheck.refusals,
        refused=account.submitter.refused,
        precheck_refused=account.precheck.refused,
    )


def telegram_bot(
    trading: TradingSystem, token: Secret, collect: Callable[[datetime], Any]
) -> TelegramBot:
    """Return the bot that takes commands of the operator."""
    config, database, clock = trading.config, trading.database, trading.clock
    keys = [each.key for each in trading.accounts]
    live = lambda: collect(clock.now())  # noqa: E731
    commands = TelegramCommands(database, keys, config.outbox.streams, live, clock).all()
    return TelegramBot(config.notify, token, database, commands, clock)
