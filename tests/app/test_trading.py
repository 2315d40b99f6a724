"""The assembled trading system: parts react to the events of each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
import pytest

from qts.app.account_configs import SimulatedVenue
from qts.app.supervision import request_level
from qts.app.trading import TradingSystem
from qts.brokers import AccountTakenError
from qts.config import Config
from qts.database import Database
from qts.domain import IntentType, OrderType, Secret, Side
from qts.embedded import Home
from qts.events import DegradationLevel
from qts.feed import Feed
from qts.orders import resume_manually
from qts.pipeline.exits import POSITION_FREEZE, PositionFreeze
from qts.pipeline.position_sync import PositionSync
from qts.risk import OrderProposal
from tests.acceptance.runs import UNRESOLVED
from tests.accounts import trading_system
from tests.outbox.kit import until

PATIENCE_S = 60.0
PREFIX = "joined:"


@asynccontextmanager
async def opened(
    database: Database, valkey_url: Secret, folder: Path, broker: str, fault: str = ""
) -> AsyncIterator[TradingSystem]:
    """A run on the Upbit simulator, with a fault of all its replies where one is named."""
    home = Home.at(folder / "home")
    home.create_directories()
    config = msgspec.convert(
        {
            "feed": {"venue": "upbit"},
            "brokers": {"broker": broker},
            "simulator": {"symbols": 30, "speed": 60 if broker == "paper" else 1},
            "cache": {"prefix": PREFIX, "socket_timeout_ms": 5000},
            "pipeline": {"strategies": ["tests.acceptance.turner:Turner"]},
        },
        Config,
    )
    simulated = SimulatedVenue(home, config.simulator, "upbit")
    await asyncio.to_thread(simulated.__enter__)
    try:
        settings = await asyncio.to_thread(simulated.settings, config)
        if fault:
            await control(simulated.url, "POST", {"kind": fault})
        async with (
            trading_system(settings, database, simulated.keys) as trading,
            trading.open(valkey_url),
        ):
            yield trading
    finally:
        await asyncio.to_thread(simulated.__exit__)


async def control(url: str, method: str, fault: dict[str, str] | None = None) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{url}/_control/faults", json=fault) as reply,
    ):
        assert reply.status == 200, await reply.text()


@pytest.fixture
async def trading(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> AsyncIterator[TradingSystem]:
    async with opened(database, valkey_url, tmp_path, "paper") as trading:
        yield trading


async def held(trading: TradingSystem) -> str:
    """A symbol that is held now."""

    async def is_held() -> bool:
        return bool(trading.accounts[0].portfolio.positions)

    await until(is_held, PATIENCE_S)
    return next(iter(trading.accounts[0].portfolio.positions))


def proposal(trading: TradingSystem, symbol: str, why: IntentType) -> OrderProposal:
    now = trading.clock.now()
    return OrderProposal(
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


async def refusals(trading: TradingSystem, symbol: str, why: IntentType) -> str:
    return (await trading.accounts[0].submitter.submit(proposal(trading, symbol, why), 0.0)).reason


async def test_a_broker_that_is_out_at_the_start_is_traded_with_when_it_is_back(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    async with opened(database, valkey_url, tmp_path, "upbit", fault="error") as trading:
        assert not trading.accounts[0].reconciler.is_reconciled()
        assert trading.accounts[0].portfolio.equity == 0
        await control(trading.accounts[0].config.venues.upbit.url, "DELETE")
        symbol = await held(trading)
        stops = trading.accounts[0].micro_risk.stops

        async def is_watched() -> bool:
            return (
                stops.position(symbol) is not None
                or symbol not in trading.accounts[0].portfolio.positions
            )

        await until(is_watched, PATIENCE_S)
        assert trading.accounts[0].portfolio.equity > 0


async def test_a_run_that_lost_its_account_stores_why_before_it_ends(
    database: Database, valkey_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, stored = asyncio.Event(), list[str]()
    async with opened(database, valkey_url, tmp_path, "paper") as trading:
        end, trip = trading._tasks.end, trading.accounts[0].fail_safe.trip

        async def end_all(*tasks: Any) -> None:
            await end(*tasks)
            if not tasks:
                ended.set()

        async def trip_late(code: str, *more: Any) -> None:
            await ended.wait()  # everything else of the run has ended
            await trip(code, *more)
            stored.append(code)

        monkeypatch.setattr(trading._tasks, "end", end_all)
        monkeypatch.setattr(trading.accounts[0].fail_safe, "trip", trip_late)
        await database.execute(
            "UPDATE account SET epoch = epoch + 1, holder = gen_random_uuid(), pid = 1,"
            " host = 'other' WHERE account = $1",
            trading.accounts[0].key.account,
        )
        await database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND"
            " database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(AccountTakenError, match="was taken by process 1 on other"):
                await trading.failed
        await trading.stop()
        assert "FS112" in stored


async def test_a_position_whose_price_is_old_raises_a_code(
    database: Database, valkey_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age of a price reaches the stops from the feed, and the code the log."""
    monkeypatch.setattr(Feed, "price_age_s", lambda _self, _symbol: 2.1)

    async def is_raised() -> bool:
        return bool(await database.fetchval("SELECT count(*) FROM safety_log WHERE code = 'FS105'"))

    async with opened(database, valkey_url, tmp_path, "paper") as trading:
        await held(trading)
        await until(is_raised, PATIENCE_S)


async def test_a_freeze_holds_strategies_off_until_a_person_releases_it(
    trading: TradingSystem,
) -> None:
    symbol = await held(trading)
    engine = trading.engine
    payload = PositionFreeze(symbol=symbol, reason="odd prices")
    engine.publish(engine.new_event(POSITION_FREEZE.name, payload, "test"))

    async def is_frozen() -> bool:
        return "G_FROZEN" in await refusals(trading, symbol, IntentType.ENTRY)

    async def is_written() -> bool:
        query = "SELECT count(*) FROM market_state WHERE symbol = $1 AND reason_code = 'FROZEN'"
        return bool(await trading.database.fetchval(query, symbol))

    await until(is_written, PATIENCE_S)
    for why in (IntentType.ENTRY, IntentType.EXIT_SIGNAL):
        assert "G_FROZEN" in await refusals(trading, symbol, why)
    assert "G_FROZEN" not in await refusals(trading, symbol, IntentType.EXIT_STOPLOSS)
    assert any(notice.code == POSITION_FREEZE.name for notice in trading.alerts.all())
    await resume_manually(trading.database, trading.accounts[0].broker.key, symbol)

    async def is_free() -> bool:
        return not await is_frozen()

    await until(is_free, PATIENCE_S)


async def test_a_manual_degradation_level_is_applied_and_ends(
    trading: TradingSystem, database: Database
) -> None:
    async def is_at(level: DegradationLevel) -> bool:
        return trading.engine.level is level

    paused, now = DegradationLevel.P2_P3_PAUSED, trading.clock.now()
    before = trading.began - timedelta(seconds=1)  # a command that an earlier run did not take
    await request_level(database, trading.accounts[0].key, DegradationLevel.CRITICAL_ONLY, before)
    await request_level(database, trading.accounts[0].key, paused, now)

    async def is_alerted() -> bool:
        return any("LEVEL_2" in alert.text for alert in trading.alerts.all())

    await until(lambda: is_at(paused), PATIENCE_S)
    await until(is_alerted, PATIENCE_S)  # the level is set before its alert is listed
    cycles = len(trading.accounts[0].pipeline.cycles)
    await request_level(database, trading.accounts[0].key, None, now)
    await until(lambda: is_at(DegradationLevel.NORMAL), PATIENCE_S)

    async def has_resumed() -> bool:
        return len(trading.accounts[0].pipeline.cycles) > cycles

    await until(has_resumed, PATIENCE_S)


async def test_fills_come_back_through_p0_and_their_work_is_its_latency(
    database: Database, valkey_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The portfolio is the ledger's after the stop, and a slow handler shows in the summary."""
    slow_ms, apply = 40, PositionSync.apply

    def apply_slowly(self: PositionSync, update: Any) -> None:
        time.sleep(slow_ms / 1000)
        apply(self, update)

    async with opened(database, valkey_url, tmp_path, "paper") as trading:
        monkeypatch.setattr(PositionSync, "apply", apply_slowly)

        async def has_filled() -> bool:
            return int(await database.fetchval("SELECT count(*) FROM fill")) >= 6

        async def is_resolved() -> bool:
            return not await database.fetch(UNRESOLVED)

        await until(has_filled, PATIENCE_S)
        await until(is_resolved, PATIENCE_S)
        await trading.stop()
        summary = await trading.summary()
        rows = await database.fetch("SELECT symbol, quantity FROM position WHERE quantity <> 0")
        held = {
            each.symbol: each.quantity for each in trading.accounts[0].portfolio.positions.values()
        }
        assert held == {row["symbol"]: row["quantity"] for row in rows}
        assert (
            trading.accounts[0].portfolio.cash == (await trading.accounts[0].broker.account()).cash
        )
    assert summary.books_agree
    assert summary.fills >= 6
    assert summary.lanes["P0"].handled >= 2 * summary.fills
    assert summary.lanes["P0"].max_ms >= slow_ms
