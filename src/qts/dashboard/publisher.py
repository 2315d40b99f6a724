"""Publisher of a run's `LiveStatus`: to Valkey, four times a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec

import qts
from qts import telemetry
from qts.cache import Cache, CacheStore, StoreWrite
from qts.dashboard.live_status import (
    INTERVAL_S,
    KEY,
    TTL_MS,
    AccountStatus,
    LiveStatus,
    OutboxStatus,
    PositionStatus,
    SafetyStatus,
    StrategyStatus,
    encode,
    largest_drops,
)
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError
from qts.events import Event, EventEngine
from qts.feed import Feed
from qts.notify import RecentAlert, RecentAlerts
from qts.orders import load_account_state
from qts.outbox import Depth, StreamConfig, paused_streams, stream_depths
from qts.pipeline import (
    EtedaPipeline,
    Portfolio,
    StrategyRunner,
    TickPublisher,
    trading_day_start,
)
from qts.risk import SafetyMonitor
from qts.venues import ClockSkew

log = telemetry.logger("dashboard")

SLOW_INTERVAL_S = 1.0  # for what costs a query or a merge of histograms
_WON = Decimal("0.01")
_PROCESSED = telemetry.counter(
    "everbit_outbox_processed_total", "Attempts that ended.", ("stream", "result")
)
_ALERTED = ("BROKER_DISCONNECT", "EMERGENCY_STOP", "ETEDA_SUSPEND")


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


class StatusSources(NamedTuple):
    """The parts of a run whose state is published."""

    mode: Literal["paper", "live"]
    began: datetime
    clock: Clock
    database: Database
    account: AccountKey
    streams: Mapping[str, StreamConfig]
    engine: EventEngine
    cache: Cache
    feed: Feed
    ticks: TickPublisher
    portfolio: Portfolio
    position_notes: Callable[[], Mapping[str, str]]  # by symbol
    monitor: SafetyMonitor
    is_reconciled: Callable[[], bool]
    skew: ClockSkew
    pipeline: EtedaPipeline
    runners: Mapping[str, StrategyRunner]
    refusals: Mapping[str, int]
    alerts: RecentAlerts
    description: Callable[[], str]


class StatusPublisher:
    """Publishes until cancelled; the value expires soon after."""

    def __init__(self, sources: StatusSources, store: CacheStore, key_prefix: str) -> None:
        self._sources = sources
        self._store = store
        self._alerts = sources.alerts
        self._key = key_prefix + KEY
        self._clock = sources.clock
        self._version = qts.__version__
        self._handled, self._done = RateMeter(2.0), RateMeter(10.0)
        self._outbox = OutboxStatus(depths=[], per_second={}, paused=[])
        self._today = (Decimal(0), 0)
        self._cache = sources.cache.status()
        for name in _ALERTED:
            sources.engine.on(name, self._on_alert)

    def _on_alert(self, event: Event) -> None:
        text = getattr(event.payload, "reason", "") or event.event_type
        broker = getattr(event.payload, "broker", "")
        code = getattr(event.payload, "code", "") or event.event_type
        self._alerts.add(event.timestamp, "critical", f"{broker} {text}".strip(), code)

    async def run(self) -> None:
        slow = asyncio.create_task(self._update_slowly())
        try:
            while True:
                await self._publish()
                await self._clock.sleep(INTERVAL_S)
        finally:
            slow.cancel()
            await asyncio.wait({slow})
            with contextlib.suppress(OperationError):
                await self._store.delete([self._key])

    async def _publish(self) -> None:
        now = self._clock.now()
        ver = int(now.timestamp() * 1000)
        fields = {"ver": str(ver), "json": encode(self.collect(now))}
        try:
            await self._store.write([StoreWrite.of(self._key, ver, TTL_MS, fields)])
        except OperationError as error:
            if due := telemetry.log_every(10.0, "live"):
                log.warning("status not published", error=str(error), **due)

    def collect(self, now: datetime) -> LiveStatus:
        """Collect the status from memory, without a query."""
        sources = self._sources
        events = sources.engine.status()
        return LiveStatus(
            at=now.timestamp(),
            pid=os.getpid(),
            version=self._version,
            started_at=sources.began,
            mode=sources.mode,
            broker=sources.account.broker,
            account=sources.account.account,
            trades=sources.description(),
            ticks=sources.ticks.count,
            events=events,
            rates=self._handled.rates(
                self._clock.monotonic_ns(),
                {name: lane.handled for name, lane in events.lanes.items()},
            ),
            drops=largest_drops(sources.engine.dropped()),
            feed=sources.feed.status(),
            cache=self._cache,
            outbox=self._outbox,
            strategies=self._strategies(),
            positions=self._positions(),
            money=self._account(),
            safety=self._safety(),
            refusals=dict(sources.refusals),
            notices=self._all_alerts(now.timestamp()),
        )

    # --- parts ----------------------------------------------------------------------------------

    def _strategies(self) -> list[StrategyStatus]:
        monitor = self._sources.monitor
        return [
            StrategyStatus(
                key=runner.key,
                kind=runner.strategy.kind,
                enabled=monitor.enabled(runner.key),
                signals=runner.signals,
                errors=runner.errors,
                dropped=runner.dropped,
                stopped=runner.stopped,
                params=msgspec.to_builtins(runner.strategy.params),
                fields=fields_of(runner.strategy.Params),
            )
            for runner in self._sources.runners.values()
        ]

    def _positions(self) -> list[PositionStatus]:
        portfolio, notes = self._sources.portfolio, self._sources.position_notes()
        return [
            PositionStatus(
                symbol=each.symbol,
                quantity=each.quantity,
                average_price=each.average_price,
                price=(price := portfolio.price(each)),
                unrealised=((price - each.average_price) * each.quantity).quantize(_WON),
                strategy=portfolio.owners.get(each.symbol, ""),
                price_age_s=_rounded(self._sources.feed.price_age_s(each.symbol)),
                note=notes.get(each.symbol, ""),
            )
            for each in portfolio.positions.values()
        ]

    def _account(self) -> AccountStatus:
        portfolio, (realised, orders) = self._sources.portfolio, self._today
        return AccountStatus(
            cash=portfolio.cash.quantize(_WON),
            equity=portfolio.equity.quantize(_WON),
            realised_today=realised.quantize(_WON),
            unrealised=portfolio.unrealised.quantize(_WON),
            orders_today=orders,
        )

    def _safety(self) -> SafetyStatus:
        sources = self._sources
        now, suspension = sources.monitor.safety, sources.pipeline.suspension
        return SafetyStatus(
            state=now.state,
            code=now.code,
            message=now.message,
            trading=sources.monitor.enabled(),
            suspended=suspension.reason if suspension else "",
            may_trade=sources.is_reconciled(),
            clock_skew_s=None if (skew := sources.skew.seconds) is None else round(skew, 2),
        )

    def _all_alerts(self, now: float) -> list[RecentAlert]:
        cache = [
            RecentAlert(now, alert.severity, f"{alert.text}: {alert.action}", "cache")
            for alert in self._cache.alerts()
        ]
        return cache + self._alerts.all()

    # --- once a second --------------------------------------------------------------------------

    async def _update_slowly(self) -> None:
        while True:
            try:
                await self._update()
            except OperationError as error:
                if due := telemetry.log_every(10.0, "live-slow"):
                    log.warning("account state not read", error=str(error), **due)
            await self._clock.sleep(SLOW_INTERVAL_S)

    async def _update(self) -> None:
        sources, now = self._sources, self._clock.now()
        self._cache = sources.cache.status()
        database = sources.database
        found: list[Depth] = await stream_depths(database, sources.streams)
        self._outbox = OutboxStatus(
            depths=found,
            per_second=self._done.rates(self._clock.monotonic_ns(), _processed()),
            paused=sorted(await paused_streams(database)),
        )
        account = await load_account_state(database, sources.account, trading_day_start(now), now)
        self._today = (account.earned_today, account.orders_today)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


@cache
def fields_of(params: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the parameters that can be set, as JSON schema properties."""
    (_,), parts = msgspec.json.schema_components([params])
    found: dict[str, dict[str, Any]] = parts[params.__name__].get("properties", {})
    return found


def _processed() -> dict[str, int]:
    """Return the events done since the start, by stream, from the metrics."""
    return {
        sample.labels["stream"]: int(sample.value)
        for metric in _PROCESSED.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["result"] == "done"
    }
