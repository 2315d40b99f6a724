"""Everything that trades, joined: what one part says, the others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from qts.app.freezes import POSITION_FREEZE, PositionFreeze
from qts.app.simulated import Simulated
from qts.app.trading import Trading
from qts.config import Config
from qts.database import Database
from qts.domain import IntentType, OrderType, Secret, Side, SystemClock
from qts.embedded import Home
from qts.orders import resume_by_hand
from qts.risk import Proposal
from tests.outbox.kit import until

PATIENCE_S = 60.0
PREFIX = "joined:"


@pytest.fixture
async def trading(database: Database, valkey_url: Secret, tmp_path: Path) -> AsyncIterator[Trading]:
    home = Home.at(tmp_path / "home")
    home.make_room()
    config = msgspec.convert(
        {
            "feed": {"venue": "upbit"},
            "demo": {"symbols": 30, "speed": 60},
            "cache": {"prefix": PREFIX, "socket_timeout_ms": 5000},
            "pipeline": {"strategies": ["tests.acceptance.turner:Turner"]},
        },
        Config,
    )
    simulated = Simulated(home, config.demo, "upbit")
    await asyncio.to_thread(simulated.__enter__)
    try:
        settings = await asyncio.to_thread(simulated.settings, config)
        trading = Trading(settings, database, SystemClock())
        async with trading.opened(valkey_url, simulated.keys):
            yield trading
    finally:
        await asyncio.to_thread(simulated.__exit__)


async def held(trading: Trading) -> str:
    """A symbol that is held now."""

    async def is_held() -> bool:
        return bool(trading.world.positions)

    await until(is_held, PATIENCE_S)
    return next(iter(trading.world.positions))


def proposal(trading: Trading, symbol: str, why: IntentType) -> Proposal:
    now = trading.clock.now()
    return Proposal(
        strategy_key="turner",
        symbol=symbol,
        side=Side.SELL if why.is_exit else Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal("0.00000001"),
        intent_type=why,
        signal_id=uuid4(),
        decided_at=now,
        expires_at=now + timedelta(seconds=60),
    )


async def refusals(trading: Trading, symbol: str, why: IntentType) -> str:
    return (await trading.trader.trade(proposal(trading, symbol, why), 0.0)).reason


async def test_a_freeze_holds_strategies_off_until_a_person_releases_it(trading: Trading) -> None:
    symbol = await held(trading)
    engine = trading.engine
    payload = PositionFreeze(symbol=symbol, reason="odd prices")
    engine.publish(engine.event(POSITION_FREEZE.name, payload, "test"))

    async def is_frozen() -> bool:
        return "G_FROZEN" in await refusals(trading, symbol, IntentType.ENTRY)

    async def is_written() -> bool:
        query = "SELECT count(*) FROM market_state WHERE symbol = $1 AND reason_code = 'FROZEN'"
        return bool(await trading.database.fetchval(query, symbol))

    await until(is_written, PATIENCE_S)
    for why in (IntentType.ENTRY, IntentType.EXIT_SIGNAL):
        assert "G_FROZEN" in await refusals(trading, symbol, why)
    assert "G_FROZEN" not in await refusals(trading, symbol, IntentType.EXIT_STOPLOSS)
    assert any(notice.code == POSITION_FREEZE.name for notice in trading.notices.all())
    await resume_by_hand(trading.database, trading.broker.name, symbol)

    async def is_free() -> bool:
        return not await is_frozen()

    await until(is_free, PATIENCE_S)
