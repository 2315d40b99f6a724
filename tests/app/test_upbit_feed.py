"""The feed of a run on Upbit: all markets in one request, those that move as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from qts.domain import (
    Instruments,
    RefusedError,
    SystemClock,
    krx_instrument,
    upbit_instrument,
)
from qts.feed import Feed, FeedConfig, PatternRecord
from qts.simulators import MarketConfig, UpbitSimulator, UpbitSimulatorConfig
from qts.venues import UpbitClient, UpbitConfig, upbit_market_data
from tests.instruments import LISTED

TIMEOUT_S = 60.0


def feed_config(tmp_path: Path, *symbols: str) -> FeedConfig:
    (tmp_path / "symbols").write_text("\n".join(symbols))
    return FeedConfig(venue="upbit", symbols=tmp_path / "symbols", interval_s=0.5)


class RecordSink:
    """Sink that signals when a record meets a condition."""

    def __init__(self, enough: Callable[[PatternRecord], bool]) -> None:
        self._enough = enough
        self._done = asyncio.Event()

    def __call__(self, record: PatternRecord) -> None:
        if self._enough(record):
            self._done.set()

    async def enough(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self._done.wait()


@asynccontextmanager
async def watched(tmp_path: Path, sink: RecordSink) -> AsyncIterator[tuple[UpbitSimulator, Feed]]:
    market = MarketConfig(symbols=30, suspended=0, speed=60)
    async with UpbitSimulator(UpbitSimulatorConfig(market=market)) as simulator:
        upbit = UpbitConfig(url=simulator.url, stream_url=f"{simulator.ws_url}/websocket/v1")
        config = feed_config(tmp_path, *simulator.symbols())
        async with UpbitClient.open(upbit, SystemClock()) as client:
            with Feed.attach(
                upbit_market_data(client, SystemClock()),
                config,
                tmp_path,
                SystemClock(),
                LISTED,
                [sink],
            ) as feed:
                running = asyncio.ensure_future(feed.run())
                try:
                    yield simulator, feed
                finally:
                    running.cancel()
                    await asyncio.wait({running})


async def test_all_markets_are_watched_in_one_request_at_any_hour(tmp_path: Path) -> None:
    seen: set[str] = set()

    def all_seen(record: PatternRecord) -> bool:
        seen.add(record.snapshot.context.symbol)
        return len(seen) == 30

    sink = RecordSink(all_seen)
    async with watched(tmp_path, sink) as (simulator, feed):
        await sink.enough()
        assert seen == set(simulator.symbols())
        assert feed.plan.calls == 1
        assert feed.poller.status().open


async def test_a_market_that_moves_is_streamed(tmp_path: Path) -> None:
    first_scan = RecordSink(lambda record: record.snapshot.meta.tick_source == "upbit_rest")
    streamed = RecordSink(lambda record: record.snapshot.meta.tick_source == "upbit_ws")

    def both(record: PatternRecord) -> bool:
        first_scan(record)
        streamed(record)
        return False

    async with watched(tmp_path, RecordSink(both)) as (simulator, feed):
        await first_scan.enough()
        for symbol in simulator.symbols()[:5]:
            simulator.inject("surge", symbol, {"percent": 20.0, "over_s": 60})
        await streamed.enough()
        assert feed.status().streaming


async def test_a_stock_in_the_list_is_refused(tmp_path: Path) -> None:
    config = feed_config(tmp_path, "KRW-BTC", "005930")
    listed = Instruments([upbit_instrument("KRW-BTC"), krx_instrument("005930")])
    async with aiohttp.ClientSession() as session:
        client = UpbitClient(UpbitConfig(), SystemClock(), session)
        with (
            pytest.raises(RefusedError, match=r"005930 is not listed at upbit"),
            Feed.attach(
                upbit_market_data(client, SystemClock()), config, tmp_path, SystemClock(), listed
            ),
        ):
            pass


async def test_a_list_without_any_symbol_of_the_venue_is_refused_with_the_nearest(
    tmp_path: Path,
) -> None:
    config = feed_config(tmp_path, "KRW-BTX")
    listed = Instruments([upbit_instrument("KRW-BTC", name="비트코인")])
    async with aiohttp.ClientSession() as session:
        client = UpbitClient(UpbitConfig(), SystemClock(), session)
        with (
            pytest.raises(RefusedError, match=r"KRW-BTX is not listed .* mean KRW-BTC 비트코인"),
            Feed.attach(
                upbit_market_data(client, SystemClock()), config, tmp_path, SystemClock(), listed
            ),
        ):
            pass


async def test_what_no_venue_lists_is_still_watched(tmp_path: Path) -> None:
    config = feed_config(tmp_path, "KRW-BTC", "KRW-GONE")
    listed = Instruments([upbit_instrument("KRW-BTC"), krx_instrument("005930")])
    async with aiohttp.ClientSession() as session:
        client = UpbitClient(UpbitConfig(), SystemClock(), session)
        with Feed.attach(
            upbit_market_data(client, SystemClock()), config, tmp_path, SystemClock(), listed
        ) as feed:
            assert feed.plan.demand.symbols == 2
            feed.watch(["KRW-HELD", "005930"])  # delisted; of another venue
            assert feed.poller._fast.watched[:2] == (1, 0)
