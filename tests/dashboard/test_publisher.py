"""A run in this process: what it tells of itself is what is so, and it takes what is set."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from qts.app.simulated import Simulated
from qts.app.trading import Trading
from qts.cache import CacheConfig
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.config.demo import DemoConfig
from qts.dashboard import Live, read_live
from qts.database import Database
from qts.domain import Secret, SystemClock
from qts.embedded import Home
from qts.events import DeadLetterDesk
from qts.events import payloads as p

PREFIX = f"qts-run-{os.getpid()}:"


class Told:
    """What the run tells, as any other program reads it."""

    def __init__(self, trading: Trading, store: RedisStore) -> None:
        self.trading = trading
        self.store = store

    async def until(self, so: Callable[[Live], object], seconds: float = 5.0) -> Live:
        async with asyncio.timeout(seconds):
            while True:
                live = await read_live(self.store, PREFIX)
                if live is not None and so(live):
                    return live
                await asyncio.sleep(0.02)


@pytest.fixture
async def told(database: Database, valkey_url: Secret, tmp_path: Path) -> AsyncIterator[Told]:
    home = Home.at(tmp_path / "home")
    home.make_room()
    config = Config(cache=CacheConfig(prefix=PREFIX, socket_timeout_ms=2000))
    simulated = Simulated(home, DemoConfig(symbols=60, speed=60, scan_s=1))
    await asyncio.to_thread(simulated.__enter__)
    try:
        config = msgspec.structs.replace(
            config,
            venues=msgspec.structs.replace(config.venues, kis=simulated.kis(config.venues.kis)),
            feed=await asyncio.to_thread(simulated.feed, config.feed),
            pipeline=simulated.pipeline(config.pipeline),
        )
        trading = Trading(config, database, SystemClock())
        async with RedisStore.open(valkey_url, config.cache) as store:
            async with trading.opened(valkey_url, simulated.keys):
                yield Told(trading, store)
            assert await read_live(store, PREFIX) is None  # gone with the run
    finally:
        await asyncio.to_thread(simulated.__exit__)


async def test_a_run_tells_what_is_so(told: Told) -> None:
    live = await told.until(lambda live: live.ticks > 100 and live.rates["P1"] > 0)
    trading = told.trading
    assert live.pid == os.getpid()
    assert (live.mode, live.broker) == ("paper", "paper")
    assert {each.key for each in live.strategies} == set(trading.runners)
    assert all(each.enabled for each in live.strategies)
    assert live.strategies[0].fields.keys() == live.strategies[0].params.keys()
    assert live.feed is not None
    assert live.feed.symbols_known <= 60
    assert {depth.stream for depth in live.outbox.depths} >= {"everbit.trade.command"}
    assert live.safety.state == "NORMAL"
    assert live.safety.trading


async def test_a_lost_broker_and_a_code_are_told_within_a_second(told: Told) -> None:
    await told.until(lambda live: live.ticks)
    engine = told.trading.engine
    engine.publish(
        engine.event("BROKER_DISCONNECT", p.BrokerDisconnect(broker="kis", reason="cut"), "test")
    )
    live = await told.until(lambda live: live.notices, 1.0)
    assert (live.notices[0].code, live.notices[0].text) == ("BROKER_DISCONNECT", "kis cut")
    await told.trading.fail_safe.trip("FS070", "books differ")
    live = await told.until(lambda live: live.safety.state == "FAIL", 1.0)
    assert live.safety.code == "FS070"


async def test_parameters_that_are_set_reach_the_strategy(told: Told, database: Database) -> None:
    query = (
        "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, 'test')"
        " ON CONFLICT (strategy_key) DO UPDATE SET params = $2,"
        " version = strategy_params.version + 1"
    )

    def length(live: Live) -> object:
        return {each.key: each.params for each in live.strategies}["rsi_scalper"]["length"]

    await told.until(lambda live: live.ticks)
    await database.execute(query, "rsi_scalper", {"length": 17})
    await told.until(lambda live: length(live) == 17)
    await database.execute(query, "rsi_scalper", {"length": -1})  # not by the dashboard's door
    await database.execute(query, "nobody", {"length": 3})
    await database.execute(query, "moving_average_swing", {"fast": 3})
    live = await told.until(
        lambda live: any(each.params.get("fast") == 3 for each in live.strategies)
    )
    assert length(live) == 17  # what it does not take changes nothing


async def test_a_dead_letter_is_kept_and_replayed_when_asked_for(
    told: Told, database: Database
) -> None:
    engine, desk = told.trading.engine, DeadLetterDesk(database)
    cut = engine.event("BROKER_DISCONNECT", p.BrokerDisconnect(broker="kis", reason="x"), "test")
    engine.dead_letters.add(cut, "handler", RuntimeError("no"))

    async def state(wanted: str) -> None:
        async with asyncio.timeout(10):
            while True:
                found = await desk.find(10, None, True)
                if [letter.state for letter in found] == [wanted]:
                    return
                await asyncio.sleep(0.05)

    await state("dead")
    (letter,) = await desk.find(10, None, True)
    await desk.ask(letter.number)
    await state("replayed")
    await told.until(lambda live: live.notices)  # its handlers have had it again
