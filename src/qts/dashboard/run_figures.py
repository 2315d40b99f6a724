"""Figures of a run from memory: its metrics, status of its accounts, profit of its strategies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple

import msgspec

from qts import telemetry
from qts.cache import Cache
from qts.dashboard.lane_handlers import ORDER_LATENCY
from qts.dashboard.live_status import AccountStatus, LimitStatus, PositionStatus, SafetyStatus
from qts.dashboard.run_records import AccountValue, RunCounts
from qts.database import Database
from qts.domain import AccountKey, Clock
from qts.events import EngineStatus, EventEngine, Payload
from qts.events import payloads as p
from qts.feed import PriceFeed
from qts.notify import RecentAlerts
from qts.orders import AccountState, FiguresOfDay, StrategyProfit, merged_profits, strategy_profits
from qts.outbox import StreamConfig
from qts.pipeline import (
    EtedaPipeline,
    MarketState,
    Portfolio,
    StrategyRunner,
    TickPublisher,
    compute_exposure,
    held_by,
)
from qts.risk import RiskLimits, SafetyMonitor, SafetyState
from qts.venues import ClockSkew

_EQUITY = telemetry.recorded("qts_equity_won", "Equity of the account.")
_CASH = telemetry.recorded("qts_cash_won", "Cash of the account.")
_REALISED = telemetry.recorded("qts_realised_today_won", "Realised profit of the day, after fees.")
_UNREALISED = telemetry.recorded("qts_unrealised_won", "Unrealised profit of the positions.")
_EXPOSURE = telemetry.recorded("qts_exposure_ratio", "Value of the positions to the equity.")
_POSITIONS = telemetry.recorded("qts_positions", "Open positions.")
_RATE = telemetry.recorded("qts_lane_rate", "Events handled per second, by lane.")


class RateMeter:
    """Growth of counters per second over the last `over_s` seconds."""

    def __init__(self, over_s: float) -> None:
        self._over_ns = over_s * 1e9
        self._past: deque[tuple[int, dict[str, int]]] = deque()

    def rates(self, now_ns: int, counts: dict[str, int]) -> dict[str, float]:
        past = self._past
        past.append((now_ns, counts))
        while len(past) > 2 and now_ns - past[1][0] >= self._over_ns:
            past.popleft()
        then_ns, before = past[0]
        seconds = (now_ns - then_ns) / 1e9
        return {
            name: round((count - before.get(name, 0)) / seconds, 1) if seconds > 0 else 0.0
            for name, count in counts.items()
        }


class AccountSources(NamedTuple):
    """The parts of an account whose state is published."""

    venue: str
    key: AccountKey
    epoch: Callable[[], int]  # of the lease
    cache: Cache
    feed: PriceFeed
    ticks: TickPublisher
    market: MarketState
    portfolio: Portfolio
    position_notes: Callable[[], Mapping[str, str]]  # by symbol
    stop_price: Callable[[str], float | None]
    monitor: SafetyMonitor
    limits: RiskLimits
    is_reconciled: Callable[[], bool]
    is_open: Callable[[], bool]
    skew: ClockSkew
    pipeline: EtedaPipeline
    refusals: Mapping[str, int]
    precheck_refusals: Mapping[str, int]
    refused: Counter[tuple[str, str]]  # by strategy and code
    precheck_refused: Counter[tuple[str, str]]

    @property
    def all_refused(self) -> Counter[tuple[str, str]]:
        return self.refused + self.precheck_refused


class StatusSources(NamedTuple):
    """The parts of a run whose state is published."""

    name: str
    mode: Literal["paper", "live"]
    simulated: bool
    began: datetime
    clock: Clock
    database: Database
    streams: Mapping[str, StreamConfig]
    engine: EventEngine
    accounts: Sequence[AccountSources]
    runners: Mapping[str, StrategyRunner]
    warm_up_of: Callable[[str], str]  # how far a strategy's warm-up is
    alerts: RecentAlerts
    description: Callable[[], str]

    @property
    def refusals(self) -> Counter[str]:
        """By the gates of all accounts."""
        return sum((Counter(each.refusals) for each in self.accounts), Counter())

    @property
    def precheck_refusals(self) -> Counter[str]:
        return sum((Counter(each.precheck_refusals) for each in self.accounts), Counter())


class RunMetrics:
    """Publisher of the metrics of one run, for its event loop.

    Each second has the events METRIC_RECORD, PERF_UPDATE and LOG_WRITE.
    """

    def __init__(self, sources: StatusSources, emit: Callable[[str, Payload], bool]) -> None:
        self._sources = sources
        self._emit = emit
        self._clock = sources.clock
        self._rates = RateMeter(2.0)
        self._refused: dict[str, Counter[str]] = {"gate": Counter(), "PreCheck": Counter()}

    def on_order(self, decided_at: datetime) -> None:
        """Record the time from the tick of a decision to its order."""
        seconds = (self._clock.now() - decided_at).total_seconds()
        self._emit("PERF_UPDATE", p.PerfUpdate(name=ORDER_LATENCY, value=seconds))

    def record(self, realised_today: Decimal) -> None:
        """Publish the metrics of the account and the lanes, and what was refused meanwhile."""
        events = self._sources.engine.status()
        if events.lanes["P3"].paused:
            return  # the next values replace these
        portfolios = [each.portfolio for each in self._sources.accounts]
        equity = sum((each.equity for each in portfolios), Decimal(0))
        exposure = sum(
            (
                abs(portfolio.price(each) * each.quantity)
                for portfolio in portfolios
                for each in portfolio.positions.values()
            ),
            Decimal(0),
        )
        values: dict[str, Decimal | int] = {
            _EQUITY: equity,
            _CASH: sum((each.cash for each in portfolios), Decimal(0)),
            _REALISED: realised_today,
            _UNREALISED: sum((each.unrealised for each in portfolios), Decimal(0)),
            _EXPOSURE: exposure / equity if equity else Decimal(0),
            _POSITIONS: sum(len(each.positions) for each in portfolios),
        }
        for name, value in values.items():
            self._emit("METRIC_RECORD", p.MetricRecord(name=name, value=float(value)))
        rates = self._rates.rates(self._clock.monotonic_ns(), handled_by_lane(events))
        for lane, rate in rates.items():
            self._emit("PERF_UPDATE", p.PerfUpdate(name=f'{_RATE}{{lane="{lane}"}}', value=rate))
        self._log_refusals("gate", self._sources.refusals)
        self._log_refusals("PreCheck", self._sources.precheck_refusals)

    def take_sample(self, account: AccountSources) -> tuple[AccountValue, RunCounts]:
        portfolio = account.portfolio
        p0, feed = self._sources.engine.status().lanes["P0"], account.feed.status()
        counts = RunCounts(
            ticks=account.ticks.count,
            p0_events=p0.handled,
            refusals=dict(account.refusals),
            precheck_refusals=dict(account.precheck_refusals),
            strategy_refusals={
                f"{name} {code}": count for (name, code), count in account.all_refused.items()
            },
            polls_failed=feed.poller.failed,
            quotes_lost=feed.lost,
            p0_p50_ms=p0.minute.p50,
            p0_p99_ms=p0.minute.p99,
            p0_max_ms=p0.minute.max,
            scan_lag_s=feed.lag_s,
            streaming=feed.streaming,
            market_open=feed.poller.open,
            held=held_by(portfolio),
        )
        return AccountValue(portfolio.equity, portfolio.cash, portfolio.unrealised), counts

    def _log_refusals(self, where: str, now: Mapping[str, int]) -> None:
        new = Counter(now) - self._refused[where]
        self._refused[where] = Counter(now)
        if new:
            codes = " ".join(f"{code}={count}" for code, count in new.most_common())
            self._emit("LOG_WRITE", p.LogWrite(message=f"orders refused by the {where}: {codes}"))


def handled_by_lane(events: EngineStatus) -> dict[str, int]:
    """Return the handled events of each lane."""
    return {name: lane.handled for name, lane in events.lanes.items()}


_WON = Decimal("0.01")


def position_statuses(account: AccountSources) -> Iterator[PositionStatus]:
    portfolio, notes = account.portfolio, account.position_notes()
    for each in portfolio.positions.values():
        yield PositionStatus(
            symbol=each.symbol,
            quantity=each.quantity,
            average_price=each.average_price,
            price=(price := portfolio.price(each)),
            unrealised=((price - each.average_price) * each.quantity).quantize(_WON),
            strategy=portfolio.owners.get(each.symbol, ""),
            price_age_s=rounded(account.feed.price_age_s(each.symbol)),
            note=notes.get(each.symbol, ""),
            name=portfolio.instruments.name(each.symbol),
            stop_price=account.stop_price(each.symbol),
            venue=account.venue,
        )


def money_status(portfolio: Portfolio, state: AccountState | None) -> AccountStatus:
    return AccountStatus(
        cash=portfolio.cash.quantize(_WON),
        equity=portfolio.equity.quantize(_WON),
        realised_today=(state.earned_today if state else Decimal(0)).quantize(_WON),
        unrealised=portfolio.unrealised.quantize(_WON),
        orders_today=state.orders_today if state else 0,
    )


def limit_statuses(account: AccountSources, state: AccountState | None) -> list[LimitStatus]:
    """Return the limits on new positions; none before the account is read."""
    if state is None:
        return []
    limits = account.limits
    used = compute_exposure("", state, account.portfolio)
    found: dict[str, tuple[Decimal | int, Decimal | int]] = {
        "daily_loss": (max(Decimal(0), -used.daily_pnl), used.equity * limits.daily_loss),
        "orders_per_day": (used.orders_today, limits.orders_per_day),
        "orders_per_minute": (used.orders_last_minute, limits.orders_per_minute),
        "max_open_symbols": (used.open_symbols, limits.max_open_symbols),
        "max_exposure": (used.total_value, used.equity * limits.max_exposure),
    }
    return [
        LimitStatus(name=name, used=Decimal(value).quantize(_WON), limit=Decimal(limit))
        for name, (value, limit) in found.items()
        if limit > 0
    ]


def total_money(accounts: Iterable[AccountStatus]) -> AccountStatus:
    """Add accounts up; all of them are in won."""
    rows = [msgspec.structs.asdict(each) for each in accounts]
    return AccountStatus(**{name: sum(row[name] for row in rows) for name in rows[0]})


def safety_status(account: AccountSources) -> SafetyStatus:
    now, suspension = account.monitor.safety, account.pipeline.suspension
    return SafetyStatus(
        state=now.state,
        code=now.code,
        message=now.message,
        trading=account.monitor.enabled(),
        database_read=account.monitor.is_current,
        session_open=account.is_open(),
        clock_synced=account.skew.is_synced(),
        suspended=suspension.reason if suspension else "",
        may_trade=account.is_reconciled(),
        clock_skew_s=None if (skew := account.skew.seconds) is None else round(skew, 2),
    )


def worst_safety(found: Sequence[SafetyStatus]) -> SafetyStatus:
    """Return the state of the account that is most restricted."""
    states = list(SafetyState)

    def rank(each: SafetyStatus) -> tuple[bool, int, bool, bool]:
        state = states.index(SafetyState(each.state))
        return not each.trading, state, bool(each.suspended), not each.may_trade

    return max(found, key=rank)


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


_STRATEGY_REALISED = telemetry.gauge(
    "qts_strategy_realised_today_won", "realised profit of the day, after fees", ("strategy",)
)
_STRATEGY_UNREALISED = telemetry.gauge(
    "qts_strategy_unrealised_won", "unrealised profit of its positions", ("strategy",)
)
_STRATEGY_EXPOSURE = telemetry.gauge(
    "qts_strategy_exposure_won", "value of its positions", ("strategy",)
)
_STRATEGY_ORDERS = telemetry.gauge("qts_strategy_orders_today", "orders of the day", ("strategy",))
_STRATEGY_REFUSED = telemetry.gauge(
    "qts_strategy_refusals", "reasons PreCheck and the gate gave in this run", ("strategy", "code")
)


class StrategyProfitReader:
    """Profits of the strategies of a run; new fills are read when the day's profit changes."""

    def __init__(self, database: Database, accounts: Sequence[AccountSources]) -> None:
        self._database = database
        self._accounts = accounts
        self._read: dict[AccountKey, tuple[datetime, Decimal]] = {}  # day and its profit
        self._figures: dict[AccountKey, FiguresOfDay] = {}
        self._orders: dict[AccountKey, dict[str, int]] = {}

    async def update(self, key: AccountKey, state: AccountState, day: datetime) -> None:
        """Read the fills of the day of an account, unless those that are known still count."""
        self._orders[key] = dict(state.orders_of)
        if self._read.get(key) != (day, state.earned_today):
            known = self._figures.get(key)
            if known is None or known.day != day:
                known = self._figures[key] = FiguresOfDay(self._database, key, day)
            await known.update()
            self._read[key] = day, state.earned_today

    def collect(self) -> dict[str, StrategyProfit]:
        """Return the profits as they are now, by name, without a query."""
        return merged_profits(
            strategy_profits(
                known.figures if (known := self._figures.get(each.key)) is not None else {},
                held_by(each.portfolio),
                self._orders.get(each.key, {}),
                each.all_refused,
            )
            for each in self._accounts
        )

    def export(self) -> None:
        """Set the gauges."""
        for gauge in (
            _STRATEGY_REALISED,
            _STRATEGY_UNREALISED,
            _STRATEGY_EXPOSURE,
            _STRATEGY_ORDERS,
            _STRATEGY_REFUSED,
        ):
            gauge.clear()
        for name, profit in self.collect().items():
            _STRATEGY_REALISED.labels(name).set(float(profit.realised))
            _STRATEGY_UNREALISED.labels(name).set(float(profit.unrealised))
            _STRATEGY_EXPOSURE.labels(name).set(float(profit.exposure))
            _STRATEGY_ORDERS.labels(name).set(profit.orders)
            for code, count in profit.refusals.items():
                _STRATEGY_REFUSED.labels(name, code).set(count)
