"""A run in this process: its published status, parameters and dead letters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.app.account_configs import SimulatedVenue
from qts.app.trading import TradingSystem
from qts.cache import CacheConfig
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.config.schema import SimulatorConfig
from qts.dashboard import DashboardConfig, LiveStatus, read_live
from qts.dashboard.verdict import Observed, judge, read_stored
from qts.database import Database
from qts.domain import Secret
from qts.embedded import Home
from qts.events import DeadLetterAdmin, StoredDeadLetter
from qts.events import payloads as p
from qts.pipeline.engine import STREAM_DOWN
from qts.risk import RiskLimitsConfig
from tests.accounts import PAPER, trading_system
from tests.dashboard.conftest import opened
from tests.dashboard.tcp_proxy import TcpProxy
from tests.dashboard.test_pages import shoot, visit
from tests.dashboard.timing import TIMEOUT_S, fastest

PREFIX = f"qts-run-{os.getpid()}:"


class PublishedRun:
    """Run and its status, as another process reads it."""

    def __init__(self, trading: TradingSystem, store: RedisStore, proxy: TcpProxy) -> None:
        self.trading = trading
        self.store = store
        self.proxy = proxy  # to the venue's stream

    async def until(
        self, condition: Callable[[LiveStatus], object], seconds: float = TIMEOUT_S
    ) -> LiveStatus:
        async with asyncio.timeout(seconds):
            while True:
                live = await read_live(self.store, self.trading.accounts[0].config.cache.prefix)
                if live is not None and condition(live):
                    return live
                await asyncio.sleep(0.02)


@pytest.fixture
async def run(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> AsyncIterator[PublishedRun]:
    home = Home.at(tmp_path / "home")
    home.create_directories()
    config = Config(cache=CacheConfig(prefix=PREFIX, socket_timeout_ms=2000))
    simulated = SimulatedVenue(home, SimulatorConfig(symbols=20, speed=60, scan_s=1))
    await asyncio.to_thread(simulated.__enter__)
    try:
        async with TcpProxy.to(simulated.stream_url) as proxy:
            simulated.stream_url = proxy.url
            config = msgspec.structs.replace(
                config,
                venues=msgspec.structs.replace(
                    config.venues,
                    kis=simulated.venue_settings(config.venues.kis, own_limits=True),
                ),
                feed=await asyncio.to_thread(simulated.feed, config.feed),
                pipeline=simulated.pipeline(config),
            )
            async with (
                trading_system(config, database, simulated.keys) as trading,
                RedisStore.open(valkey_url, config.cache) as store,
            ):
                async with trading.open(valkey_url):
                    yield PublishedRun(trading, store, proxy)
                prefix = trading.accounts[0].config.cache.prefix
                assert await read_live(store, prefix) is None  # gone with the run
    finally:
        await asyncio.to_thread(simulated.__exit__)


async def test_the_status_matches_the_run(run: PublishedRun, database: Database) -> None:
    trading = run.trading
    live = await run.until(
        lambda live: (
            live.ticks > 100
            and live.rates["P1"] > 0
            and live.safety.state == trading.accounts[0].monitor.safety.state
            and live.outbox.depths  # read from the database each second
        )
    )
    assert live.pid == os.getpid()
    assert (live.mode, live.broker) == ("paper", "paper")
    assert {each.key for each in live.strategies} == set(trading.runners)
    assert all(each.enabled for each in live.strategies)
    assert live.strategies[0].fields.keys() == live.strategies[0].params.keys()
    assert live.feed is not None
    assert live.feed.symbols_known <= 20
    assert {depth.stream for depth in live.outbox.depths} >= {"everbit.trade.command"}
    assert live.safety.trading
    assert live.label == "SIMULATED"  # the keys are the simulator's
    assert live.safety.database_read
    assert live.safety.session_open
    assert live.safety.clock_synced
    live = await run.until(lambda live: live.limits and live.tick_age_s is not None)
    limits = {each.name: each for each in live.limits}
    assert set(limits) <= set(RiskLimitsConfig.__struct_fields__)
    assert limits["max_open_symbols"].limit == RiskLimitsConfig().max_open_symbols
    verdict = judge(Observed(live=live, age_s=0.0, stored=await read_stored(database, PAPER)))
    assert verdict.state == "trading", verdict.en


async def test_the_profits_of_the_strategies_are_those_of_the_account(run: PublishedRun) -> None:
    live = await run.until(
        lambda live: (
            live.money.orders_today
            and live.money.realised_today
            and sum(each.realised for each in live.profits.values()) == live.money.realised_today
        )
    )
    profits = live.profits.values()
    assert sum(each.unrealised for each in profits) == live.money.unrealised
    assert sum(each.orders for each in profits) == live.money.orders_today
    assert sum(each.exposure for each in profits) == live.money.equity - live.money.cash


async def test_a_position_of_the_run_has_its_stop_and_its_name(run: PublishedRun) -> None:
    live = await run.until(lambda live: live.positions)
    (held, *_) = live.positions
    assert held.name
    assert held.stop_price is not None
    assert 0 < held.stop_price < held.average_price * 2


async def test_a_lost_broker_and_a_code_are_published_within_a_second(run: PublishedRun) -> None:
    await run.until(lambda live: live.ticks)
    trading, engine = run.trading, run.trading.engine
    numbers = iter(range(100))

    async def lost() -> None:
        text = f"cut {next(numbers)}"
        cut = p.BrokerDisconnect(broker="kis", reason=text)
        engine.publish(engine.new_event("BROKER_DISCONNECT", cut, "test"))
        live = await run.until(lambda live: any(text in each.text for each in live.notices))
        assert ("BROKER_DISCONNECT", f"kis {text}") in {(n.code, n.text) for n in live.notices}

    async def tripped() -> None:
        await trading.accounts[0].fail_safe.release("test", "checked")
        await trading.accounts[0].fail_safe.trip("FS070", "positions differ")
        live = await run.until(lambda live: live.safety.state == "FAIL")
        assert live.safety.code == "FS070"

    assert await fastest(lost) < 1.0
    assert await fastest(tripped) < 1.0


async def test_a_cut_stream_is_seen_on_the_page_within_a_second(
    run: PublishedRun, database: Database, valkey_url: Secret, browser: Any, tmp_path: Path
) -> None:
    config, cuts, before = DashboardConfig(port=0), 0, 0
    streaming = lambda live: live.feed is not None and live.feed.streaming  # noqa: E731
    shown = "(before) => document.querySelectorAll('.alerts .critical').length > before"
    async with (
        opened(
            database, valkey_url, tmp_path, config, run.trading.accounts[0].config.cache.prefix
        ) as site,
        visit(browser, site.tokens.link(site.address)) as tab,
    ):

        async def reconnect() -> None:
            nonlocal before
            await run.until(streaming)
            before = await tab.page.locator(".alerts .critical").count()

        async def cut() -> None:
            nonlocal cuts
            cuts += run.proxy.cut()
            await tab.page.wait_for_function(shown, arg=before)

        assert await fastest(cut, reconnect) < 1.0
        assert STREAM_DOWN in await tab.page.inner_text(".alerts")
        await shoot(tab.page, "broker-disconnect.png")
        await tab.wait_text(".alerts.past", "stream connected")
        codes = [each.code for each in (await run.until(streaming)).notices]
        assert codes.count("BROKER_DISCONNECT") == cuts > 0


async def test_parameters_that_are_set_reach_the_strategy(
    run: PublishedRun, database: Database
) -> None:
    query = (
        "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, 'test')"
        " ON CONFLICT (strategy_key) DO UPDATE SET params = $2,"
        " version = strategy_params.version + 1"
    )

    def length(live: LiveStatus) -> object:
        return {each.key: each.params for each in live.strategies}["rsi_scalper"]["length"]

    await run.until(lambda live: live.ticks)
    await database.execute(query, "rsi_scalper", {"length": 17})
    await run.until(lambda live: length(live) == 17)
    await database.execute(query, "rsi_scalper", {"length": -1})  # bypasses the dashboard's checks
    await database.execute(query, "unknown", {"length": 3})
    await database.execute(query, "moving_average_swing", {"fast": 3})
    live = await run.until(
        lambda live: any(each.params.get("fast") == 3 for each in live.strategies)
    )
    assert length(live) == 17  # refused parameters change nothing


async def test_a_dead_letter_is_stored_and_replayed_on_request(
    run: PublishedRun, database: Database
) -> None:
    engine, admin = run.trading.engine, DeadLetterAdmin(database)
    cut = engine.new_event(
        "BROKER_DISCONNECT", p.BrokerDisconnect(broker="kis", reason="x"), "test"
    )
    engine.dead_letters.add(cut, "handler", RuntimeError("no"))

    async def until(state: str) -> StoredDeadLetter:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found = await admin.find(10, None, True)
                if [letter.state for letter in found] == [state]:
                    return found[0]
                await asyncio.sleep(0.05)

    letter = await until("dead")
    assert (letter.event_type, letter.handler) == ("BROKER_DISCONNECT", "handler")
    await admin.request_replay(letter.number)
    assert (await until("replayed")).number == letter.number
    live = await run.until(lambda live: any(each.text == "kis x" for each in live.notices))
    (notice,) = [each for each in live.notices if each.text == "kis x"]
    assert notice.severity == "critical"  # its handlers ran again
