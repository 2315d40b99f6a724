"""Publisher of a run's status: events of lane P3, whose handlers write what the views read.

    every 0.25 s   DASHBOARD_UPDATE            the whole `LiveStatus`
    every second   METRIC_RECORD, PERF_UPDATE  account and rates, for /metrics
                   LOG_WRITE                   what was refused in that second

One status is in the lane at a time: while P3 is paused or slow, nothing piles up, and the last
status that was written stays readable, with its age.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec

import qts
from qts import telemetry
from qts.brokers import LeaseStatus, read_lease
from qts.cache import CacheStore, StoreWrite
from qts.dashboard.lane_handlers import STATUS_WRITTEN
from qts.dashboard.live_status import (
    INTERVAL_S,
    KEY,
    TTL_MS,
    LiveStatus,
    OutboxStatus,
    StrategyStatus,
    VenueStatus,
    encode,
    largest_drops,
)
from qts.dashboard.run_figures import (
    AccountSources,
    RateMeter,
    RunMetrics,
    StatusSources,
    StrategyProfitReader,
    handled_by_lane,
    limit_statuses,
    money_status,
    position_statuses,
    rounded,
    safety_status,
    total_money,
    worst_safety,
)
from qts.dashboard.run_records import SampleWriter
from qts.dashboard.runs import RunStatusWriter
from qts.dashboard.verdict import Observed, judge
from qts.domain import AccountKey, EventRefusedError, OperationError
from qts.events import Event, Payload
from qts.events import payloads as p
from qts.notify import RecentAlert
from qts.orders import AccountState, load_account_state
from qts.outbox import Depth, paused_streams, stream_depths
from qts.pipeline import merged_markets, trading_day_start

log = telemetry.logger("dashboard")

SLOW_INTERVAL_S = 1.0  # for what costs a query or a merge of histograms
_PROCESSED = telemetry.counter(
    "everbit_outbox_processed_total", "Attempts that ended.", ("stream", "result")
)
RESEND_MS = 5_000  # a status that is not written by then was dropped
KEEP_ALIVE_MS = 1_000  # of a status that no newer one replaces
_ALERTED = ("BROKER_DISCONNECT", "EMERGENCY_STOP", "ETEDA_SUSPEND")


class _PublishedStatus(NamedTuple):
    version: int  # ms since 1970
    text: str


class StatusPublisher:
    """Publishes until cancelled; the value expires soon after."""

    def __init__(
        self,
        sources: StatusSources,
        store: CacheStore,
        key_prefix: str,
        metrics: telemetry.MetricTable,
    ) -> None:
        self._sources = sources
        self._store = store
        self._metrics = metrics
        self._waiting: _PublishedStatus | None = None  # in P3, not written yet
        self._written: _PublishedStatus | None = None
        self._kept_ms = 0
        self._alerts = sources.alerts
        self._key = key_prefix + KEY
        self._clock = sources.clock
        self._version = qts.__version__
        self._handled, self._done = RateMeter(2.0), RateMeter(10.0)
        self._outbox = OutboxStatus(depths=[], per_second={}, paused=[])
        self._account_states: dict[AccountKey, AccountState] = {}
        self._last_ticks: dict[AccountKey, tuple[int, int]] = {}  # count of ticks, when reached
        self._leases: list[LeaseStatus] = []
        self._cache = sources.accounts[0].cache.status()
        self._run_status = RunStatusWriter(
            sources.database, sources.name, [(each.key, each.epoch) for each in sources.accounts]
        )
        self._profits = StrategyProfitReader(sources.database, sources.accounts)
        self.metrics = RunMetrics(sources, self._emit)
        self._samples = [
            SampleWriter(
                sources.database, each.key, sources.began, partial(self.metrics.take_sample, each)
            )
            for each in sources.accounts
        ]
        for name in _ALERTED:
            sources.engine.on(name, self._on_alert)

    def _on_alert(self, event: Event) -> None:
        text = getattr(event.payload, "reason", "") or event.event_type
        # The source of an event of one of several accounts ends with its venue.
        broker = getattr(event.payload, "broker", "") or event.source.partition(" ")[2]
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
            for each in self._samples:
                await each.write(self._clock.now())
            with contextlib.suppress(OperationError):
                await self._store.delete([self._key])

    async def _publish(self) -> None:
        """Publish a new status once the last one is written; until then, keep the written one."""
        now = self._clock.now()
        version = int(now.timestamp() * 1000)
        waiting = self._waiting
        if waiting and (self._metrics.get(STATUS_WRITTEN) or 0.0) * 1000 >= waiting.version:
            self._written, self._waiting, waiting = waiting, None, None
        if waiting is None or self._is_lost(waiting, version):
            text = encode(self.collect(now))
            update = p.DashboardUpdate(dashboard_id=KEY, data={"ver": version, "json": text})
            if self._emit("DASHBOARD_UPDATE", update):
                self._waiting, self._kept_ms = _PublishedStatus(version, text), version
        elif self._written and version - self._kept_ms >= KEEP_ALIVE_MS:
            self._kept_ms = version
            await self._keep(self._written)

    def _is_lost(self, waiting: _PublishedStatus, version: int) -> bool:
        if version - waiting.version < RESEND_MS:
            return False
        return not self._sources.engine.status().lanes["P3"].paused

    async def _keep(self, status: _PublishedStatus) -> None:
        """Keep the status readable for the views, which show its age."""
        fields = {"ver": str(status.version), "json": status.text}
        with contextlib.suppress(OperationError):
            await self._store.write([StoreWrite.of(self._key, status.version, TTL_MS, fields)])

    def _emit(self, name: str, payload: Payload) -> bool:
        """Publish an event of P3; return False when the lane is full or stopped."""
        engine = self._sources.engine
        try:
            return engine.try_publish(engine.new_event(name, payload, "status"))
        except EventRefusedError as error:
            if engine.state == "running" and (due := telemetry.log_every(10.0, f"emit {name}")):
                log.warning("event not published", event_type=name, error=str(error), **due)
            return False

    def collect(self, now: datetime) -> LiveStatus:
        """Collect the status from memory, without a query."""
        sources = self._sources
        events = sources.engine.status()
        venues = [self._venue(each) for each in sources.accounts]
        return LiveStatus(
            at=now.timestamp(),
            pid=os.getpid(),
            version=self._version,
            started_at=sources.began,
            mode=sources.mode,
            simulated=sources.simulated,
            broker=venues[0].broker,
            account=venues[0].account,
            trades=sources.description(),
            ticks=sum(each.ticks for each in venues),
            tick_age_s=min(
                (each.tick_age_s for each in venues if each.tick_age_s is not None), default=None
            ),
            market=merged_markets([each.market.status() for each in sources.accounts]),
            events=events,
            rates=self._handled.rates(self._clock.monotonic_ns(), handled_by_lane(events)),
            drops=largest_drops(sources.engine.dropped()),
            feed=venues[0].feed,
            cache=self._cache,
            outbox=self._outbox,
            strategies=self._strategies(),
            positions=[found for each in sources.accounts for found in position_statuses(each)],
            money=total_money(each.money for each in venues),
            safety=worst_safety([each.safety for each in venues]),
            venues=venues,
            refusals=dict(sources.refusals),
            precheck_refusals=dict(sources.precheck_refusals),
            notices=self._all_alerts(now.timestamp()),
            limits=venues[0].limits if len(venues) == 1 else [],
            profits=self._profits.collect(),
            leases=self._leases,
        )

    # --- parts ----------------------------------------------------------------------------------

    def _strategies(self) -> list[StrategyStatus]:
        accounts = self._sources.accounts
        limits = accounts[0].limits.strategies
        off = {
            key: [each.venue for each in accounts if not each.monitor.enabled(key)]
            for key in self._sources.runners
        }
        return [
            StrategyStatus(
                key=runner.key,
                kind=runner.strategy.kind,
                enabled=len(off[runner.key]) < len(accounts),
                stopped_at=off[runner.key],
                signals=runner.signals,
                errors=runner.errors,
                dropped=runner.dropped,
                stopped=runner.stopped,
                warm_up="" if runner.stopped else self._sources.warm_up_of(runner.key),
                params=msgspec.to_builtins(runner.strategy.params),
                fields=fields_of(runner.strategy.Params),
                capital=limits[runner.key].capital if runner.key in limits else None,
            )
            for runner in self._sources.runners.values()
        ]

    def _venue(self, account: AccountSources) -> VenueStatus:
        state = self._account_states.get(account.key)
        return VenueStatus(
            venue=account.venue,
            broker=account.key.broker,
            account=account.key.account,
            ticks=account.ticks.count,
            feed=account.feed.status(),
            money=money_status(account.portfolio, state),
            safety=safety_status(account),
            tick_age_s=self._tick_age_s(account),
            limits=limit_statuses(account, state),
        )

    def _tick_age_s(self, account: AccountSources) -> float | None:
        count, now_ns = account.ticks.count, self._clock.monotonic_ns()
        last = self._last_ticks.get(account.key)
        if count and (last is None or last[0] != count):
            last = self._last_ticks[account.key] = count, now_ns
        return rounded((now_ns - last[1]) / 1e9) if last else None

    def _all_alerts(self, now: float) -> list[RecentAlert]:
        found = self._cache.alerts()
        cache = [RecentAlert(now, e.severity, f"{e.text}: {e.action}", "cache") for e in found]
        return cache + self._alerts.all()

    # --- once a second --------------------------------------------------------------------------

    async def _update_slowly(self) -> None:
        while True:
            try:
                states = self._account_states.values()
                self.metrics.record(sum((each.earned_today for each in states), Decimal(0)))
                await self._update()
                for each in self._samples:
                    await each.write_due(self._clock.now())
            except OperationError as error:
                if due := telemetry.log_every(10.0, "live-slow"):
                    log.warning("account state not read", error=str(error), **due)
            await self._clock.sleep(SLOW_INTERVAL_S)

    async def _update(self) -> None:
        sources, now = self._sources, self._clock.now()
        self._cache = sources.accounts[0].cache.status()
        database = sources.database
        found: list[Depth] = await stream_depths(database, sources.streams)
        self._outbox = OutboxStatus(
            depths=found,
            per_second=self._done.rates(self._clock.monotonic_ns(), _processed()),
            paused=sorted(await paused_streams(database)),
        )
        for each in sources.accounts:
            day = trading_day_start(now)
            state = await load_account_state(database, each.key, day, now)
            self._account_states[each.key] = state
            await self._profits.update(each.key, state, day)
        self._leases = [await read_lease(database, each.key) for each in sources.accounts]
        self._profits.export()
        live = self.collect(now)
        await self._run_status.write(live, judge(Observed(live=live, age_s=0.0)))


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
