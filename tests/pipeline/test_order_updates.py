"""Order updates reach positions, stops and lanes; after the stop, positions alone."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from qts.cache import Cache, CacheConfig, CacheEntry
from qts.cache.redis import RedisStore
from qts.domain import Fill, Secret, Side, SystemClock
from qts.events import Catalogue, EventEngine, EventsConfig
from qts.orders import FillApplied
from qts.pipeline import IntentTracker, Portfolio
from qts.pipeline.order_updates import OrderUpdatePublisher
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion
from qts.risk import MicroRiskLoop, StopsConfig

CONFIG = CacheConfig(prefix="changes:", socket_timeout_ms=5000)


class Nothing:
    """A loader that has nothing."""

    async def load(self, kind: str, name: str) -> CacheEntry | None:  # noqa: ARG002
        return None


def bought() -> FillApplied:
    clock = SystemClock()
    return FillApplied(
        fill=Fill(
            trade_id="t",
            broker_order_id="o",
            symbol="KRW-BTC",
            side=Side.BUY,
            quantity=Decimal(2),
            price=Decimal(100),
            fee=Decimal(1),
            at=clock.now(),
        ),
        attempt_id=None,
        counted=True,
        position=Decimal(2),
        average_price=Decimal(100),
        realised_pnl=Decimal(0),
    )


@pytest.mark.parametrize("at_the_end", [False, True])
async def test_a_fill_is_in_the_portfolio_and_published_until_the_stop(
    valkey_url: Secret, at_the_end: bool
) -> None:
    clock, heard = SystemClock(), list[str]()
    engine = EventEngine(EventsConfig(), Catalogue(), clock)
    engine.on("FILL_CONFIRMED", lambda event: heard.append(event.payload.symbol))
    engine.start()
    portfolio = Portfolio(clock)
    portfolio.load(Decimal(1000), ())
    async with (
        RedisStore.open(valkey_url, CONFIG) as store,
        Cache.open(store, Nothing(), CONFIG, clock=clock) as cache,
    ):
        micro_risk = MicroRiskLoop(StopsConfig(), lambda *_: None, lambda *_: None, clock)
        positions, version = PositionSync(portfolio, micro_risk, {}), AccountVersion()
        updates = OrderUpdatePublisher(
            engine, positions, IntentTracker(), cache, version, lambda *_: None
        )
        if at_the_end:  # the final reconciliation finds a fill
            await updates.close()
            await asyncio.to_thread(engine.stop)
        updates(bought())
        await updates.close()
        await asyncio.to_thread(engine.stop)
    assert (portfolio.positions["KRW-BTC"].quantity, portfolio.cash) == (Decimal(2), Decimal(799))
    assert version.value == 1
    assert micro_risk.stops.position("KRW-BTC") is not None
    assert heard == ([] if at_the_end else ["KRW-BTC"])
