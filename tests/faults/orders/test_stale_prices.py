"""A feed that freezes, or a clock that is set back: nothing is ordered on a price that is old."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from qts.cache import Cache, CacheConfig, CachedPrice, CacheEntry
from qts.cache.store import MemoryStore
from qts.domain import Secret, SystemClock, Tick
from qts.orders import SubmitResult
from qts.pipeline import Portfolio
from qts.pipeline.risk_snapshot import (
    AccountStateReader,
    AccountVersion,
    RiskSnapshotReader,
    RiskSources,
)
from qts.risk import ApprovedOrder, PreTradeGate, RiskLimitsConfig, SafetyMonitor
from tests.accounts import UPBIT
from tests.faults.orders.rig import COIN, Rig, worker
from tests.instruments import LISTED
from tests.outbox.worker_group import seed

OLDEST_MS = 200.0
SILENT_S = 1.0
SET_BACK = timedelta(seconds=0.5)


class SetClock(SystemClock):
    """System clock that a test can set."""

    set_by = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.set_by


class Nothing:
    """Loader without values: prices come only from the feed."""

    async def load(self, _kind: str, _name: str) -> CacheEntry | None:
        return None


class Trader:
    """Proposes an entry repeatedly; the gate reads the prices of the feed."""

    def __init__(
        self, made: Rig, facts: RiskSnapshotReader, sources: RiskSources, clock: SetClock
    ) -> None:
        self._made, self._facts, self._clock = made, facts, clock
        self._cache, self._world = sources.cache, sources.portfolio
        self._gate = PreTradeGate(RiskLimitsConfig(max_price_age_ms=OLDEST_MS).exact)
        self.ticks: list[datetime] = []
        self.refused: set[str] = set()
        self.symbol = made.symbols[0]

    def tick(self) -> None:
        made, now = self._made, self._clock.now()
        made.simulator.catch_up()
        book = made.simulator.market.book(made.simulator.market.index[self.symbol])
        bid, ask = book.bids[0].price / COIN, book.asks[0].price / COIN
        price = CachedPrice(
            symbol=self.symbol,
            bid=bid,
            ask=ask,
            last=ask,
            volume=COIN,
            timestamp=int(now.timestamp() * 1000),
        )
        self._cache.prices.push(price)
        quotes = float(ask), 0.0, float(bid), float(ask)
        self._world.apply_tick(Tick(self.symbol, *quotes, now.timestamp()))
        self.ticks.append(now)

    async def order(self) -> None:
        """One order on a price of now; on a busy machine a price may be old before it is used."""
        async with asyncio.timeout(60):
            self.tick()
            while await self.want() is None:
                self.tick()

    async def want(self) -> SubmitResult | None:
        """One order, if the gate lets it."""
        now = self._clock.now()
        proposal = self._made.proposal(
            self.symbol, decided_at=now, expires_at=now + timedelta(seconds=60)
        )
        found = self._gate.check(proposal, await self._facts(proposal))
        if not isinstance(found, ApprovedOrder):
            self.refused |= {reason.code for reason in found.reasons}
            return None
        submitted = await self._made.manager.submit(found)
        self._made.submitted.append(submitted)
        return submitted


@asynccontextmanager
async def trader(made: Rig, clock: SetClock) -> AsyncIterator[Trader]:
    watch, portfolio = SafetyMonitor(made.database, UPBIT, clock), Portfolio(clock, LISTED)
    portfolio.load(COIN, ())
    config = CacheConfig()
    async with Cache.open(MemoryStore(), Nothing(), config, clock=clock) as cache:
        sources = RiskSources(
            states=AccountStateReader(made.database, UPBIT, AccountVersion(), clock),
            cache=cache,
            portfolio=portfolio,
            monitor=watch,
            freezing=(),
            unwatched=frozenset,
            is_reconciled=lambda: True,
            is_open=lambda: True,
            is_clock_synced=lambda: True,
            base_price=lambda _symbol: 0.0,
        )
        await watch.refresh()
        yield Trader(made, RiskSnapshotReader(sources, clock), sources, clock)


@pytest.mark.parametrize("fault", ["frozen", "set back"])
async def test_no_order_is_based_on_an_old_price(
    made: Rig, database_url: Secret, log: Path, fault: str
) -> None:
    chance, clock = random.Random(seed()), SetClock()  # noqa: S311 - repeatable on purpose
    async with worker(made, database_url, log), trader(made, clock) as trading:
        for _ in range(3):
            await trading.order()
            await asyncio.sleep(chance.uniform(0.0, 0.05))
        if fault == "set back":
            clock.set_by = -SET_BACK  # the last price is of the future, and then seems to be of now
        else:
            await asyncio.sleep(OLDEST_MS / 1000)
        end = asyncio.get_running_loop().time() + SILENT_S
        while asyncio.get_running_loop().time() < end:
            assert await trading.want() is None
            await asyncio.sleep(0.02)
        clock.set_by = timedelta(0)
        assert trading.refused
        await trading.order()  # it was the price that was missing
        await made.settle()
        await _judge(made, trading)
    assert trading.refused <= {"G_STALE_PRICE", "G_NO_PRICE"}
    assert len(made.entries) == 4


async def _judge(made: Rig, trading: Trader) -> None:
    """Of every order that the simulator has, the price was fresh when it was approved."""
    rows = await made.database.fetch(
        "SELECT a.identifier, i.approved_at FROM order_attempt a "
        "JOIN order_intent i ON i.id = a.order_intent_id"
    )
    approved_at = {row["identifier"]: row["approved_at"] for row in rows}
    for entry in made.entries:
        at = approved_at[entry.identifier]
        age = min(at - tick for tick in trading.ticks if tick <= at)
        assert age <= timedelta(milliseconds=OLDEST_MS), f"{entry.uuid} on a price {age} old"
