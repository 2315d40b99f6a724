"""Tells how a run goes, four times a second, to whoever reads Valkey; see `qts.dashboard.Live`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

import qts
from qts import telemetry
from qts.cache import CacheStore, StoreWrite
from qts.dashboard.live_status import (
    EVERY_S,
    KEY,
    TTL_MS,
    AccountStatus,
    LiveStatus,
    OutboxStatus,
    PositionStatus,
    SafetyStatus,
    StrategyStatus,
    encode,
    most,
)
from qts.domain import OperationError
from qts.events import Event
from qts.notify import RecentAlert, RecentAlerts
from qts.orders import load_account_state
from qts.outbox import Depth, paused_streams, stream_depths
from qts.pipeline import trading_day_start

if TYPE_CHECKING:
    from qts.app import TradingSystem

log = telemetry.logger("app")

SLOWLY_S = 1.0  # what costs a query or a merge of histograms is asked for once a second
_WON = Decimal("0.01")
_PROCESSED = telemetry.counter(
    "everbit_outbox_processed_total", "Attempts that ended.", ("stream", "result")
)
_TELLING = ("BROKER_DISCONNECT", "EMERGENCY_STOP", "ETEDA_SUSPEND")


class RateMeter:
    """How fast counts have grown over the last seconds."""

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


class StatusPublisher:
    """`run` it beside the trading until cancelled; the value is gone soon after."""

    def __init__(self, trading: TradingSystem, store: CacheStore, notices: RecentAlerts) -> None:
        self._trading = trading
        self._store = store
        self._notices = notices
        self._key = trading.config.cache.prefix + KEY
        self._clock = trading.clock
        self._version = qts.__version__
        self._handled, self._done = RateMeter(2.0), RateMeter(10.0)
        self._outbox = OutboxStatus(depths=[], per_second={}, paused=[])
        self._today = (Decimal(0), 0)
        self._cache = trading.cache.status()
        for name in _TELLING:
            trading.engine.on(name, self._told)

    def _told(self, event: Event) -> None:
        text = getattr(event.payload, "reason", "") or event.event_type
        who = getattr(event.payload, "broker", "")
        code = getattr(event.payload, "code", "") or event.event_type
        self._notices.add(event.timestamp, "critical", f"{who} {text}".strip(), code)

    async def run(self) -> None:
        beside = asyncio.create_task(self._look_slowly())
        try:
            while True:
                await self._publish()
                await self._clock.sleep(EVERY_S)
        finally:
            beside.cancel()
            await asyncio.wait({beside})
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
                log.warning("the dashboard was told nothing", error=str(error), **due)

    def collect(self, now: datetime) -> LiveStatus:
        """Everything at hand: no question to anybody."""
        trading = self._trading
        events = trading.engine.status()
        return LiveStatus(
            at=now.timestamp(),
            pid=os.getpid(),
            version=self._version,
            started_at=trading.began,
            mode=trading.config.brokers.mode,
            broker=trading.broker.name,
            trades=trading.description,
            ticks=trading.ticks.count,
            events=events,
            rates=self._handled.rates(
                self._clock.monotonic_ns(),
                {name: lane.handled for name, lane in events.lanes.items()},
            ),
            drops=most(trading.engine.dropped()),
            feed=trading.feed.state(),
            cache=self._cache,
            outbox=self._outbox,
            strategies=self._strategies(),
            positions=self._positions(),
            money=self._money(),
            safety=self._safety(),
            refusals=dict(trading.trader.refusals),
            notices=self._all_notices(now.timestamp()),
        )

    # --- parts ----------------------------------------------------------------------------------

    def _strategies(self) -> list[StrategyStatus]:
        watch = self._trading.watch
        return [
            StrategyStatus(
                key=runner.key,
                kind=runner.strategy.kind,
                enabled=watch.enabled(runner.key),
                signals=runner.signals,
                errors=runner.errors,
                dropped=runner.dropped,
                stopped=runner.stopped,
                params=msgspec.to_builtins(runner.strategy.params),
                fields=fields_of(runner.strategy.Params),
            )
            for runner in self._trading.runners.values()
        ]

    def _positions(self) -> list[PositionStatus]:
        world = self._trading.world
        return [
            PositionStatus(
                symbol=each.symbol,
                quantity=each.quantity,
                average_price=each.average_price,
                price=(price := world.price(each)),
                unrealised=((price - each.average_price) * each.quantity).quantize(_WON),
                strategy=world.owners.get(each.symbol, ""),
            )
            for each in world.positions.values()
        ]

    def _money(self) -> AccountStatus:
        world, (earned, orders) = self._trading.world, self._today
        return AccountStatus(
            cash=world.cash.quantize(_WON),
            equity=world.equity.quantize(_WON),
            realised_today=earned.quantize(_WON),
            unrealised=world.unrealised.quantize(_WON),
            orders_today=orders,
        )

    def _safety(self) -> SafetyStatus:
        trading = self._trading
        now, held = trading.watch.safety, trading.pipeline.suspension
        return SafetyStatus(
            state=now.state,
            code=now.code,
            message=now.message,
            trading=trading.watch.enabled(),
            suspended=held.reason if held else "",
            may_trade=trading.reconciler.is_reconciled(),
        )

    def _all_notices(self, now: float) -> list[RecentAlert]:
        cache = [
            RecentAlert(now, alert.severity, f"{alert.text}: {alert.action}", "cache")
            for alert in self._cache.alerts()
        ]
        return cache + self._notices.all()

    # --- once a second --------------------------------------------------------------------------

    async def _look_slowly(self) -> None:
        while True:
            try:
                await self._look()
            except OperationError as error:
                if due := telemetry.log_every(10.0, "live-slow"):
                    log.warning("the books could not be looked at", error=str(error), **due)
            await self._clock.sleep(SLOWLY_S)

    async def _look(self) -> None:
        trading, now = self._trading, self._clock.now()
        self._cache = trading.cache.status()
        database = trading.database
        found: list[Depth] = await stream_depths(database, trading.config.outbox.streams)
        self._outbox = OutboxStatus(
            depths=found,
            per_second=self._done.rates(self._clock.monotonic_ns(), _processed()),
            paused=sorted(await paused_streams(database)),
        )
        ours = await load_account_state(database, trading.broker.name, trading_day_start(now), now)
        self._today = (ours.earned_today, ours.orders_today)


@cache
def fields_of(params: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """What may be set, as JSON schema has it."""
    (_,), parts = msgspec.json.schema_components([params])
    found: dict[str, dict[str, Any]] = parts[params.__name__].get("properties", {})
    return found


def _processed() -> dict[str, int]:
    """Events done since the start, by stream, as the metrics count them."""
    return {
        sample.labels["stream"]: int(sample.value)
        for metric in _PROCESSED.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["result"] == "done"
    }
