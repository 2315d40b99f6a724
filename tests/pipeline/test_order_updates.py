"""What the orders room changed reaches everybody, also when the run is at its end."""

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

CONFIG = CacheConfig(prefix="changes:", socket_timeout_ms=5000)


class Nothing:
    """A Truth that knows nothing."""

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
async def test_a_fill_is_in_the_world_and_told_while_somebody_listens(
    valkey_url: Secret, at_the_end: bool
) -> None:
    clock, heard = SystemClock(), list[str]()
    engine = EventEngine(EventsConfig(), Catalogue(), clock)
    engine.on("FILL_CONFIRMED", lambda event: heard.append(event.payload.symbol))
    engine.start()
    world = Portfolio(clock)
    world.load(Decimal(1000), ())
    async with (
        RedisStore.open(valkey_url, CONFIG) as store,
        Cache.open(store, Nothing(), CONFIG, clock=clock) as cache,
    ):
        changes = OrderUpdatePublisher(engine, world, IntentTracker(), cache, clock)
        if at_the_end:  # the last look at the books finds what nobody had told of
            await changes.close()
            await asyncio.to_thread(engine.stop)
        changes(bought())
        await changes.close()
        await asyncio.to_thread(engine.stop)
    assert (world.positions["KRW-BTC"].quantity, world.cash) == (Decimal(2), Decimal(799))
    assert heard == ([] if at_the_end else ["KRW-BTC"])
