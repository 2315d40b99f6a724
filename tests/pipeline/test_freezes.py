"""What a run freezes: at once in the gate's eyes, then in the books, whatever the database does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest

from qts.database import Database
from qts.domain import AccountKey, SystemClock
from qts.events import Catalogue, EventEngine, EventsConfig
from qts.notify import RecentAlerts
from qts.orders import load_account_state, resume_manually
from qts.outbox import OutboxConfig, PostgresBus
from qts.pipeline.exits import MAX_FAILED_EXITS, POSITION_FREEZE, PositionFreeze, PositionFreezer
from qts.pipeline.risk_snapshot import AccountVersion

SYMBOL = "KRW-BTC"
PATIENCE_S = 30.0


class SignallingVersion(AccountVersion):
    def __init__(self, advanced: asyncio.Event) -> None:
        super().__init__()
        self._advanced = advanced

    def advance(self) -> None:
        super().advance()
        self._advanced.set()


class Frozen:
    """Freezes in the ledger of an account of its own."""

    def __init__(self, database: Database, bus: PostgresBus) -> None:
        self.database = database
        self.account = AccountKey.of("venue", str(uuid4()))
        self.notices = RecentAlerts()
        self.written = asyncio.Event()
        version = SignallingVersion(self.written)
        self.freezes = PositionFreezer(
            database, bus, self.account, self.notices, version, SystemClock()
        )

    async def in_the_books(self) -> frozenset[str]:
        now = SystemClock().now()
        return (
            await load_account_state(self.database, self.account, now - timedelta(1), now)
        ).frozen

    async def until_written(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.written.wait()
        assert await self.in_the_books() == {SYMBOL}
        assert self.freezes.pending == set()


@pytest.fixture
async def frozen(database: Database) -> AsyncIterator[Frozen]:
    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        made = Frozen(database, bus)
        yield made
        await made.freezes.close()


async def test_an_event_of_the_lane_freezes_its_symbol(frozen: Frozen) -> None:
    catalogue = Catalogue()
    catalogue.register(POSITION_FREEZE)
    engine = EventEngine(EventsConfig(), catalogue, SystemClock())
    engine.on(POSITION_FREEZE.name, frozen.freezes)
    engine.start()
    try:
        payload = PositionFreeze(symbol=SYMBOL, reason="odd prices")
        engine.publish(engine.new_event(POSITION_FREEZE.name, payload, "test"))
        await frozen.until_written()
    finally:
        await asyncio.to_thread(engine.stop)
    (notice,) = frozen.notices.all()
    assert (notice.severity, notice.text) == ("critical", f"{SYMBOL}: odd prices")


async def test_exits_that_fail_in_a_row_freeze_what_cannot_be_left(frozen: Frozen) -> None:
    for _ in range(MAX_FAILED_EXITS - 1):
        frozen.freezes.exit_failed(SYMBOL, "no buyer")
    frozen.freezes.exit_done(SYMBOL)
    for _ in range(MAX_FAILED_EXITS - 1):
        frozen.freezes.exit_failed(SYMBOL, "no buyer")
    assert frozen.freezes.pending == set()
    frozen.freezes.exit_failed(SYMBOL, "no buyer")
    assert frozen.freezes.pending == {SYMBOL}  # at once: the books follow
    await frozen.until_written()


async def test_what_a_person_released_is_frozen_again_and_told_each_time(frozen: Frozen) -> None:
    async def fail() -> None:
        frozen.written.clear()
        for _ in range(MAX_FAILED_EXITS):
            frozen.freezes.exit_failed(SYMBOL, f"no buyer {len(told)}")
        await frozen.until_written()
        told.append(len(frozen.notices.all()))

    told: list[int] = []
    await fail()
    await fail()  # frozen all the while: nothing new
    await resume_manually(frozen.database, frozen.account, SYMBOL)
    assert await frozen.in_the_books() == set()
    await fail()
    assert told == [1, 1, 2]


async def test_a_database_that_does_not_answer_keeps_no_freeze_waiting(frozen: Frozen) -> None:
    async with frozen.database.transaction() as tx:
        await tx.execute("LOCK TABLE market_state IN ACCESS EXCLUSIVE MODE")
        for _ in range(MAX_FAILED_EXITS):
            frozen.freezes.exit_failed(SYMBOL, "no buyer")
        assert frozen.freezes.pending == {SYMBOL}
        assert await tx.fetchval("SELECT count(*) FROM market_state") == 0
        assert not frozen.written.is_set()
    await frozen.until_written()
