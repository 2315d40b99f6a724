"""The whole feed against the KIS simulator, checked against the simulator's count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qts.domain import RefusedError, Secret, SystemClock
from qts.feed import Feed, FeedConfig, PatternRecord, read_records
from qts.simulators import KisKey, KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues import KisConfig, RateLimitConfig
from tests.feed.feeds import open_feed, plan_of
from tests.feed.market import MONDAY_OPEN, write_symbols
from tests.feed.user import files_containing
from tests.venues.kis import KEY, config_for

MARKET = MarketConfig(symbols=90, suspended=0, surges_per_hour=0)


def _config(simulator: KisSimulator, folder: Path, **changes: Any) -> FeedConfig:
    symbols = write_symbols(folder / "symbols.txt", simulator.market.universe.codes)
    defaults: dict[str, Any] = {"interval_s": 1.0, "always_open": True, "stream": False}
    return FeedConfig(symbols=symbols, **(defaults | changes))


async def _until(condition: Callable[[], bool], running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            if running.done():
                running.result()
            await asyncio.sleep(0.02)


async def _run_until(feed: Feed, condition: Callable[[], bool]) -> None:
    running = asyncio.create_task(feed.run())
    try:
        await _until(condition, running)
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_every_symbol_is_seen_recorded_and_within_the_limits(tmp_path: Path) -> None:
    async with KisSimulator(KisSimulatorConfig(market=MARKET)) as simulator:
        config = _config(simulator, tmp_path)
        kis = config_for(simulator.url)
        async with open_feed(kis, config, tmp_path / "home", SystemClock()) as feed:
            await _run_until(feed, lambda: feed.poller.status().scans >= 3)
            state = feed.status()
        seen = simulator.stats()["keys"][KEY.app_key]
    records = list(read_records(tmp_path / "home" / "record"))
    assert {each.snapshot.context.symbol for each in records} == set(
        simulator.market.universe.codes
    )
    assert len(records) == state.records
    assert records[0].snapshot.meta.mode == "SIMULATION"
    assert records[0].snapshot.observation.inputs.kis_raw["inter_shrn_iscd"]
    assert seen["refused"] == 0
    assert seen["worst"]["second"] <= 18


async def test_random_refusals_lose_no_poll_and_never_raise_the_rate(tmp_path: Path) -> None:
    simulated = KisSimulatorConfig(market=MARKET, random_refusals=0.1)
    async with KisSimulator(simulated) as simulator:
        config = _config(simulator, tmp_path)
        kis = config_for(simulator.url)
        async with open_feed(kis, config, tmp_path / "home", SystemClock()) as feed:
            await _run_until(feed, lambda: feed.poller.status().refused >= 2)
            await _run_until(feed, lambda: feed.status().symbols_known == 90)
            refused = feed.poller.status().refused
        worst = simulator.stats()["keys"][KEY.app_key]["worst"]
    assert refused >= 2
    assert worst["second"] <= 18


async def test_a_planted_jump_is_polled_every_second(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []  # scans so far, symbol

    def sink(record: PatternRecord) -> None:
        if record.snapshot.observation.state.polling_mode == "burst":
            seen.append((feed.poller.status().scans, record.snapshot.context.symbol))

    async with KisSimulator(KisSimulatorConfig(market=MARKET)) as simulator:
        jumper = simulator.market.universe.codes[50]  # the first ones are halted at 3 %
        config = _config(simulator, tmp_path, interval_s=3.0)
        kis = config_for(simulator.url)
        async with open_feed(kis, config, tmp_path / "home", SystemClock(), [sink]) as feed:
            running = asyncio.create_task(feed.run())
            await _until(lambda: feed.status().symbols_known == 90, running)
            simulator.inject("surge", jumper, {"percent": 4.0, "over_s": 1})
            planted = feed.poller.status().scans
            await _until(lambda: len(seen) >= 5, running)
            running.cancel()
            await asyncio.wait({running})
    assert {symbol for _, symbol in seen} == {jumper}
    assert seen[0][0] <= planted + 2  # the scan that goes on may have passed it half-way up


async def test_a_stream_brings_real_ticks_of_a_burst(tmp_path: Path) -> None:
    sources: list[str] = []

    def sink(record: PatternRecord) -> None:
        if record.snapshot.observation.state.polling_mode == "burst":
            sources.append(record.snapshot.meta.tick_source)

    market = MarketConfig(symbols=90, suspended=0, surges_per_hour=0, speed=5)
    async with KisSimulator(KisSimulatorConfig(market=market)) as simulator:
        jumper = simulator.market.universe.codes[50]
        config = _config(simulator, tmp_path, stream=True)
        kis = config_for(simulator.url)
        async with open_feed(kis, config, tmp_path / "home", SystemClock(), [sink]) as feed:
            running = asyncio.create_task(feed.run())
            await _until(lambda: feed.status().streaming, running)
            await _until(lambda: feed.status().symbols_known == 90, running)
            simulator.inject("surge", jumper, {"percent": 4.0, "over_s": 1})
            await _until(lambda: sources.count("kis_ws") >= 3, running)
            running.cancel()
            await asyncio.wait({running})
    assert set(sources) <= {"kis_ws", "kis_rest"}


async def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    key = KisKey(
        app_key="CANARYkey0123456789abcdefghijklmnopq",
        app_secret="CANARYsecret" * 15,
        hts_id="CANARYuser",
    )
    async with KisSimulator(KisSimulatorConfig(market=MARKET, keys=(key,))) as simulator:
        config = _config(simulator, tmp_path)
        plain = config_for(simulator.url)
        kis = KisConfig(
            app_key=Secret(key.app_key),
            app_secret=Secret(key.app_secret),
            hts_id=Secret(key.hts_id),
            url=simulator.url,
            limits=plain.limits,
        )
        async with open_feed(kis, config, tmp_path / "home", SystemClock()) as feed:
            await _run_until(feed, lambda: feed.poller.status().scans >= 1)
    assert files_containing(tmp_path / "home", "CANARY") == []


async def test_a_wrong_key_ends_the_feed_by_name(tmp_path: Path) -> None:
    simulated = KisSimulatorConfig(market=MARKET, keys=(KisKey(app_key="another"),))
    async with KisSimulator(simulated) as simulator:
        config = _config(simulator, tmp_path)
        kis = config_for(simulator.url)
        async with open_feed(kis, config, tmp_path / "home", SystemClock()) as feed:
            with pytest.raises(RefusedError, match=r"venues\.kis\.app_key is not known to KIS"):
                await asyncio.wait_for(feed.run(), 60)


def test_a_plan_needs_no_key() -> None:
    kis = KisConfig(limits=RateLimitConfig(per_second=20))
    made = plan_of(kis, FeedConfig(multi_quotes=False), 2500, MONDAY_OPEN)
    assert round(made.interval_s) == 670
    assert plan_of(kis, FeedConfig(), 2500, MONDAY_OPEN).granted
