"""Metrics of a run: the events METRIC_RECORD, PERF_UPDATE and LOG_WRITE of each second."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple

from qts import telemetry
from qts.cache import Cache
from qts.dashboard.lane_handlers import ORDER_LATENCY
from qts.dashboard.run_samples import AccountValue, RunCounts
from qts.database import Database
from qts.domain import AccountKey, Clock
from qts.events import EngineStatus, EventEngine, Payload
from qts.events import payloads as p
from qts.feed import PriceFeed
from qts.notify import RecentAlerts
from qts.outbox import StreamConfig
from qts.pipeline import (
    EtedaPipeline,
    MarketState,
    Portfolio,
    StrategyRunner,
    TickPublisher,
    held_by,
)
from qts.risk import RiskLimits, SafetyMonitor
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
    """Publisher of the metrics of one run, for its event loop."""

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
