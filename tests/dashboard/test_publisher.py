"""A run in this process: what it tells of itself is what is so, and it takes what is set."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.app.simulated_venue import SimulatedVenue
from qts.app.trading import TradingSystem
from qts.cache import CacheConfig
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.config.schema import SimulatorConfig
from qts.dashboard import DashboardConfig, LiveStatus, read_live
from qts.database import Database
from qts.domain import Secret, SystemClock
from qts.embedded import Home
from qts.events import DeadLetterAdmin, StoredDeadLetter
from qts.events import payloads as p
from qts.pipeline.maintenance import STREAM_DOWN
from tests.dashboard.conftest import opened
from tests.dashboard.pace import PATIENCE_S, soonest
from tests.dashboard.test_pages import shots, visit
from tests.dashboard.wire import Wire

PREFIX = f"qts-run-{os.getpid()}:"


class Told:
    """What the run tells, as any other program reads it."""

    def __init__(self, trading: TradingSystem, store: RedisStore, wire: Wire) -> None:
        self.trading = trading
        self.store = store
        self.wire = wire  # to the venue's stream

    async def until(
        self, so: Callable[[LiveStatus], object], seconds: float = PATIENCE_S
    ) -> LiveStatus:
        async with asyncio.timeout(seconds):
            while True:
                live = await read_live(self.store, PREFIX)
                if live is not None and so(live):
                    return live
                await asyncio.sleep(0.02)


@pytest.fixture
async def told(database: Database, valkey_url: Secret, tmp_path: Path) -> AsyncIterator[Told]:
    home = Home.at(tmp_path / "home")
    home.create_directories()
    config = Config(cache=CacheConfig(prefix=PREFIX, socket_timeout_ms=2000))
    simulated = SimulatedVenue(home, SimulatorConfig(symbols=60, speed=60, scan_s=1))
    await asyncio.to_thread(simulated.__enter__)
    try:
        async with Wire.to(simulated.stream_url) as wire:
            simulated.stream_url = wire.url
            config = msgspec.structs.replace(
                config,
                venues=msgspec.structs.replace(config.venues, kis=simulated.kis(config.venues.kis)),
                feed=await asyncio.to_thread(simulated.feed, config.feed),
                pipeline=simulated.pipeline(config.pipeline),
            )
            trading = TradingSystem(config, database, SystemClock())
            async with RedisStore.open(valkey_url, config.cache) as store:
                async with trading.open(valkey_url, simulated.keys):
                    yield Told(trading, store, wire)
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
    trading, engine = told.trading, told.trading.engine
    numbers = iter(range(100))

    async def lost() -> None:
        text = f"cut {next(numbers)}"
        cut = p.BrokerDisconnect(broker="kis", reason=text)
        engine.publish(engine.new_event("BROKER_DISCONNECT", cut, "test"))
        live = await told.until(lambda live: any(text in each.text for each in live.notices))
        assert ("BROKER_DISCONNECT", f"kis {text}") in {(n.code, n.text) for n in live.notices}

    async def tripped() -> None:
        await trading.fail_safe.release("test", "looked")
        await trading.fail_safe.trip("FS070", "books differ")
        live = await told.until(lambda live: live.safety.state == "FAIL")
        assert live.safety.code == "FS070"

    assert await soonest(lost) < 1.0
    assert await soonest(tripped) < 1.0


async def test_a_cut_stream_is_seen_on_the_page_within_a_second(
    told: Told, database: Database, valkey_url: Secret, browser: Any, tmp_path: Path
) -> None:
    config, cuts, before = DashboardConfig(port=0), 0, 0
    streaming = lambda live: live.feed is not None and live.feed.streaming  # noqa: E731
    shown = "(before) => document.querySelectorAll('.notices .critical').length > before"
    async with (
        opened(database, valkey_url, tmp_path, config, PREFIX) as site,
        visit(browser, site.tokens.link(site.address)) as seen,
    ):

        async def open_again() -> None:
            nonlocal before
            await told.until(streaming)
            before = await seen.page.locator(".notices .critical").count()

        async def cut() -> None:
            nonlocal cuts
            cuts += told.wire.cut()
            await seen.page.wait_for_function(shown, arg=before)

        assert await soonest(cut, open_again) < 1.0
        assert STREAM_DOWN in await seen.page.inner_text(".notices")
        await seen.page.screenshot(path=shots(tmp_path) / "broker-disconnect.png")
        await seen.sees(".notices", "stream connected")
        codes = [each.code for each in (await told.until(streaming)).notices]
        assert codes.count("BROKER_DISCONNECT") == cuts > 0


async def test_parameters_that_are_set_reach_the_strategy(told: Told, database: Database) -> None:
    query = (
        "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, 'test')"
        " ON CONFLICT (strategy_key) DO UPDATE SET params = $2,"
        " version = strategy_params.version + 1"
    )

    def length(live: LiveStatus) -> object:
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
    engine, desk = told.trading.engine, DeadLetterAdmin(database)
    cut = engine.new_event(
        "BROKER_DISCONNECT", p.BrokerDisconnect(broker="kis", reason="x"), "test"
    )
    engine.dead_letters.add(cut, "handler", RuntimeError("no"))

    async def until(wanted: str) -> StoredDeadLetter:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await desk.find(10, None, True)
                if [letter.state for letter in found] == [wanted]:
                    return found[0]
                await asyncio.sleep(0.05)

    letter = await until("dead")
    assert (letter.event_type, letter.handler) == ("BROKER_DISCONNECT", "handler")
    await desk.request_replay(letter.number)
    assert (await until("replayed")).number == letter.number
    live = await told.until(lambda live: any(each.text == "kis x" for each in live.notices))
    assert live.notices[0].severity == "critical"  # its handlers have had it again
