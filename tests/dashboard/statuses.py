"""Live statuses for tests."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from qts.cache import CacheStatus, CacheStore
from qts.cache.monitor import QueueStatus, RegionStatus
from qts.cache.store import Health, StoreWrite
from qts.dashboard.live_status import (
    KEY,
    TTL_MS,
    AccountStatus,
    LiveStatus,
    OutboxStatus,
    PositionStatus,
    SafetyStatus,
    StrategyStatus,
    encode,
)
from qts.dashboard.terminal.tables import TerminalSnapshot
from qts.dashboard.verdict import Observed, judge
from qts.events import EngineStatus, LaneStatus, Latency
from qts.feed import FeedStatus, PollerStatus
from qts.notify import RecentAlert
from qts.orders import OrderRow
from qts.outbox import Depth
from qts.pipeline.market_state import IndexStatus, MarketStatus, VolumeSurge
from qts.venues import RateLimiterStatus

LANES = {"P0": 100, "P1": 10_000, "P2": 1000, "P3": 50_000}


def lane(capacity: int, depth: int = 3) -> LaneStatus:
    span = Latency(5000, 0.4, 1.2, 2.5, 6.1, 9.9)
    return LaneStatus(
        depth=depth,
        capacity=capacity,
        published=5003,
        handled=5000,
        collapsed=40,
        dropped=2,
        sampled=0,
        dead=1,
        waiting=depth,
        retried=0,
        blocked=0,
        over=0,
        overran=0,
        paused=False,
        pressure="NORMAL",
        wait=span,
        handling=span,
        total=span,
    )


def feed() -> FeedStatus:
    return FeedStatus(
        seconds=60.0,
        plan="300 symbols every 6.0 s",
        interval_s=6.0,
        lag_s=0.1,
        records=1200,
        lost=0,
        skipped=0,
        recording="on",
        surges=4,
        symbols_known=300,
        streaming=True,
        watched="2 streamed",
        poller=PollerStatus(9, 4, 10, 6.1, 90, 0, 1, 1, ["005930"], True),
        budget=RateLimiterStatus(8, 300, 5000, 95_000, 18, 5000, 0, 0),
    )


def cache() -> CacheStatus:
    return CacheStatus(
        at=0,
        kinds={"price": RegionStatus(900, 90, 10, 0, 0, 0, 1000, 0.99, 0.99)},
        precheck_p50_us=80.0,
        precheck_p99_us=400.0,
        prechecks=1000,
        breaker="closed",
        breaker_opened=0,
        queue=QueueStatus(0, 0.0, 1200, 0, 0),
        server=Health("9.1", 2_000_000, 0, 0, 4, 0.1),
    )


def strategy(**more: Any) -> StrategyStatus:
    fields = {
        "length": {"type": "integer", "minimum": 2, "maximum": 500, "description": "ticks"},
        "low": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 50},
    }
    status: dict[str, Any] = {
        "key": "rsi_scalper",
        "kind": "SCALP",
        "enabled": True,
        "signals": 12,
        "errors": 0,
        "dropped": 0,
        "stopped": "",
        "params": {"length": 14, "low": 30.0},
        "fields": fields,
    } | more
    return StrategyStatus(**status)


def live(**more: Any) -> LiveStatus:
    status: dict[str, Any] = {
        "at": time.time(),
        "pid": os.getpid(),
        "version": "0.1.0",
        "started_at": datetime(2026, 11, 16, 0, 0, tzinfo=UTC),
        "mode": "paper",
        "broker": "paper",
        "account": "9f86d081884c7d65",
        "trades": "rsi_scalper on paper",
        "ticks": 123_456,
        "market": MarketStatus(
            indices={"KOSPI": IndexStatus(value=2612.34, change=-0.0142)},
            realised_volatility=0.0183,
            surges=[VolumeSurge(at=0.0, symbol="005930", volume=1200.0, turnover=85_000_000.0)],
        ),
        "events": EngineStatus(
            {name: lane(size) for name, size in LANES.items()},
            "LEVEL_0 NORMAL",
            1,
            Latency(100, 0.1, 0.2, 0.3, 0.4, 0.5),
        ),
        "rates": {"P0": 150.0, "P1": 5200.0, "P2": 320.0, "P3": 1800.0},
        "drops": {"PRICE_TICK": {"005930": 2}},
        "feed": feed(),
        "cache": cache(),
        "outbox": OutboxStatus(depths=[Depth("everbit.trade.command")], per_second={}, paused=[]),
        "strategies": [strategy()],
        "positions": [
            PositionStatus(
                symbol="005930",
                quantity=Decimal(10),
                average_price=Decimal(70_000),
                price=Decimal(70_500),
                unrealised=Decimal(5000),
                strategy="rsi_scalper",
                price_age_s=0.4,
            )
        ],
        "money": AccountStatus(
            cash=Decimal(99_300_000),
            equity=Decimal(100_005_000),
            realised_today=Decimal(1234),
            unrealised=Decimal(5000),
            orders_today=7,
        ),
        "safety": SafetyStatus(
            state="NORMAL", code=None, message="", trading=True, suspended="", may_trade=True
        ),
        "refusals": {"DAILY_LOSS": 2},
        "notices": [RecentAlert(time.time(), "warning", "P1 is 81 % full: WARNING", "")],
    } | more
    return LiveStatus(**status)


def snapshot(status: LiveStatus, orders: list[OrderRow] | None = None) -> TerminalSnapshot:
    """Return what the terminal shows of a recent status."""
    verdict = judge(Observed(live=status, age_s=0.0))
    return TerminalSnapshot(status, orders or [], verdict=verdict)


async def publish(store: CacheStore, prefix: str, ttl_ms: int = TTL_MS, **more: Any) -> LiveStatus:
    """Publish a status as a run does."""
    status = live(**more)
    ver = int(status.at * 1000)
    await store.write(
        [StoreWrite.of(prefix + KEY, ver, ttl_ms, {"ver": str(ver), "json": encode(status)})]
    )
    return status
