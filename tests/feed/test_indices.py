"""Indices and surges of volume that a feed delivers, within the limits of its key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qts.domain import RefusedError, SystemClock
from qts.feed import (
    Feed,
    FeedCallbacks,
    FeedConfig,
    Observer,
    QuoteIngest,
    Surge,
)
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues import IndexQuote, KisConfig, Quote, UpbitClient, UpbitConfig, upbit_market_data
from tests.feed.feeds import open_feed, plan_of
from tests.feed.market import MONDAY_OPEN, write_symbols
from tests.feed.test_feed import _until
from tests.instruments import LISTED
from tests.venues.kis import KEY, config_for

MARKET = MarketConfig(symbols=30, suspended=0, surges_per_hour=0)


async def test_the_indices_of_kis_arrive_and_a_crash_is_seen(tmp_path: Path) -> None:
    seen: list[IndexQuote] = []
    async with KisSimulator(KisSimulatorConfig(market=MARKET)) as simulator:
        symbols = write_symbols(tmp_path / "symbols.txt", simulator.market.universe.codes)
        config = FeedConfig(
            symbols=symbols,
            always_open=True,
            stream=False,
            index_interval_s=1.0,
            volatility_index="0503",
        )
        kis = config_for(simulator.url)
        callbacks = FeedCallbacks(on_index=seen.append)
        async with open_feed(
            kis, config, tmp_path / "home", SystemClock(), callbacks=callbacks
        ) as feed:
            running = asyncio.create_task(feed.run())
            await _until(lambda: len({each.name for each in seen}) == 4, running)
            simulator.inject("index", "0001", {"percent": -8.0, "over_s": 1})
            await _until(lambda: any(each.change < -0.075 for each in seen), running)
            running.cancel()
            await asyncio.wait({running})
            assert "4 every 1 s = 4/s" in feed.plan.render()
        stats = simulator.stats()["keys"][KEY.app_key]
    assert {each.name for each in seen} == {"KOSPI", "KOSDAQ", "KOSPI200", "0503"}
    assert {each.name for each in seen if each.is_volatility} == {"0503"}
    crashed = next(each for each in seen if each.change < -0.075)
    assert crashed.name == "KOSPI"
    assert stats["refused"] == 0


def test_the_plan_counts_the_indices_and_says_where_there_are_none() -> None:
    config = FeedConfig()
    real = plan_of(KisConfig(), config, 2500, MONDAY_OPEN, held=2)
    paper = plan_of(KisConfig(paper=True), config, 2500, MONDAY_OPEN, held=2)
    observed = plan_of(KisConfig(), config, 2500, MONDAY_OPEN)
    assert "indices    3 every 10 s = 0.3/s" in real.render()
    assert "indices    none: a paper key has no index prices" in paper.render()
    assert "indices    none: only a run reads them" in observed.render()
    assert real.index_per_s == 0.3
    assert paper.index_per_s == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_symbol": "KRW-ETH"}, "expected one of feed.symbols"),
        ({"volatility_index": "0503"}, "expected 4 digits, with KIS only"),
    ],
)
async def test_an_index_that_the_venue_has_not_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    symbols = write_symbols(tmp_path / "symbols.txt", ["KRW-BTC"])
    config = FeedConfig(venue="upbit", symbols=symbols, **changes)
    async with UpbitClient.open(UpbitConfig(), SystemClock()) as client:
        with (
            pytest.raises(RefusedError, match=message),
            Feed.attach(
                upbit_market_data(client, SystemClock()), config, tmp_path, SystemClock(), LISTED
            ),
        ):
            pass


def test_ticks_of_the_proxy_are_the_index_of_upbit() -> None:
    seen: list[IndexQuote] = []
    config = FeedConfig(venue="upbit", index_symbol="KRW-BTC")
    ingest = QuoteIngest(config, Observer([]), "test", FeedCallbacks(on_index=seen.append))
    for symbol, price in (("KRW-BTC", 100.0), ("KRW-ETH", 5.0), ("KRW-BTC", 0.0)):
        ingest.ingest(Quote(symbol, price, 1.0, 0.0, 0.0, {}, "upbit_ws"), 0.0, MONDAY_OPEN)
    assert seen == [IndexQuote("KRW-BTC", 100.0)]


def test_a_surge_of_volume_is_delivered_with_what_was_traded() -> None:
    seen: list[Surge] = []
    ingest = QuoteIngest(FeedConfig(), Observer([]), "test", FeedCallbacks(on_volume=seen.append))
    volume = 0.0
    for step in range(12):
        volume += 3000.0 if step == 10 else 300.0  # ten times the symbol's own rate, once
        quote = Quote("005930", 70_000.0, volume, 0.0, 0.0, {}, "kis_rest")
        ingest.ingest(quote, step * 30.0, MONDAY_OPEN + timedelta(seconds=step * 30))
    (surge,) = seen
    assert (surge.symbol, surge.volume, surge.price) == ("005930", 3000.0, 70_000.0)
