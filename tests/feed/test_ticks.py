"""One tick from the wire to the strategy: bid, ask and both times, live, recorded and replayed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.brokers import FeesConfig, PaperConfig, PaperMatchingEngine
from qts.domain import (
    ManualClock,
    OrderRequest,
    OrderType,
    Side,
    SystemClock,
    Tick,
)
from qts.feed import (
    FeedCallbacks,
    FeedConfig,
    Observer,
    PatternRecord,
    QuoteIngest,
    Recorder,
    TickBuilder,
    read_records,
)
from qts.feed.ingest import DECODER
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues import Quote
from qts.venues.kis.frames import MalformedFrameError, trade_quote
from tests.feed.feeds import open_feed
from tests.feed.market import MONDAY_OPEN, write_symbols
from tests.feed.test_feed import _until
from tests.instruments import LISTED
from tests.venues.kis import config_for

# The example record of KIS, with the field that it added in 2026.
TRADE_TEXT = (
    "005930^093354^71900^5^-100^-0.14^72023.83^72100^72400^71700^71900^71800^1^3052507^219853241700"
    "^5105^6937^1832^84.90^1366314^1159996^1^0.39^20.28^090020^5^-200^090820^5^-500^092619^2^200"
    "^20230612^20^N^65945^216924^1118750^2199206^0.05^2424142^125.92^0^^72100^2"
)
TRADE = TRADE_TEXT.split("^")

prices = st.floats(1, 1e6)
QUOTES = st.lists(
    st.builds(
        Quote,
        symbol=st.sampled_from(["005930", "000660"]),
        price=st.one_of(st.just(0.0), prices),
        volume=st.floats(0, 1e9),
        bid=st.one_of(st.just(0.0), prices),
        ask=st.one_of(st.just(0.0), prices),
        raw=st.just({"bidp1": "1", "askp1": "2"}),  # must not win over the quote's own
        source=st.just("kis_ws"),
        at=st.one_of(st.just(0.0), st.floats(1.7e9, 1.9e9)),
    ),
    max_size=20,
)


def test_a_trade_of_kis_keeps_bid_ask_time_and_base() -> None:
    quote = trade_quote(TRADE)
    assert (quote.price, quote.bid, quote.ask) == (71_900, 71_800, 71_900)
    assert quote.at == 1_686_530_034.0  # 2023-06-12 09:33:54 in Seoul
    assert quote.base == 72_000


@pytest.mark.parametrize(("sign", "change", "base"), [("5", "100", 72_000), ("2", "100", 71_800)])
def test_a_change_without_its_sign_takes_that_of_its_code(
    sign: str, change: str, base: float
) -> None:
    assert trade_quote([*TRADE[:3], sign, change, *TRADE[5:]]).base == base


def test_a_trade_without_a_date_has_no_venue_time() -> None:
    assert trade_quote(TRADE[:20]).at == 0.0
    assert trade_quote([*TRADE[:33], "", *TRADE[34:]]).at == 0.0
    with pytest.raises(MalformedFrameError):
        trade_quote([*TRADE[:33], "2023-06-12", *TRADE[34:]])


@settings(max_examples=60)
@given(QUOTES)
def test_a_recorded_tick_is_read_as_it_was_received(
    tmp_path_factory: pytest.TempPathFactory, quotes: list[Quote]
) -> None:
    folder = tmp_path_factory.mktemp("record")
    received: list[Tick] = []
    recorder = Recorder(folder, ManualClock())
    ingest = QuoteIngest(
        FeedConfig(), Observer([recorder.write]), "test", FeedCallbacks(on_tick=received.append)
    )
    for number, quote in enumerate(quotes):
        ingest.ingest(quote, float(number), MONDAY_OPEN + timedelta(seconds=number * 0.37))
    recorder.close()
    ticks = TickBuilder()
    read = [ticks.from_record(each) for each in read_records(folder)] if quotes else []
    assert [tick for tick in read if tick is not None] == received
    for tick, quote in zip(received, [q for q in quotes if q.price > 0], strict=True):
        assert (tick.bid, tick.ask) == (quote.bid or quote.price, quote.ask or quote.price)
        assert tick.venue_at == quote.at


def test_a_record_of_schema_1_has_its_quotes_in_the_venues_row() -> None:
    line = (
        b'{"schema":1,"number":1,"snapshot":{"meta":{"time":"2026-11-16T00:00:00Z",'
        b'"session_id":"s","mode":"PROD","tick_source":"kis_rest","loop_interval_ms":1.0},'
        b'"context":{"source":"market","stage":"raw","symbol":"005930","market":"KRX"},'
        b'"observation":{"inputs":{"price":71900.0,"volume":5.0,"kis_raw":{"inter2_bidp":"71800",'
        b'"inter2_askp":""}},"computed":{},"state":{"polling_mode":"normal"}}}}'
    )
    tick = TickBuilder().from_record(DECODER.decode(line))
    at = MONDAY_OPEN.timestamp()
    assert tick == Tick("005930", 71_900.0, 0.0, 71_800.0, 71_900.0, at)


def test_a_tick_is_published_before_its_quote_is_recorded() -> None:
    order: list[str] = []

    def record(_record: PatternRecord) -> None:
        order.append("recorded")

    ingest = QuoteIngest(
        FeedConfig(),
        Observer([record]),
        "test",
        FeedCallbacks(on_tick=lambda _tick: order.append("published")),
    )
    ingest.ingest(Quote("005930", 100.0, 1.0, 99.0, 101.0, {}, "test"), 0.0, MONDAY_OPEN)
    ingest.ingest(Quote("005930", 0.0, 1.0, 0.0, 0.0, {}, "test"), 1.0, MONDAY_OPEN)  # halted
    assert order == ["published", "recorded", "recorded"]


async def test_a_paper_order_pays_the_spread_of_the_kis_stream(tmp_path: Path) -> None:
    """The stream's trades carry a spread of 21 ticks; the fill is at the ask, not at the last."""
    market = MarketConfig(symbols=5, suspended=0, surges_per_hour=0, speed=5)
    ticks: list[Tick] = []
    async with KisSimulator(KisSimulatorConfig(market=market)) as simulator:
        symbol = simulator.market.universe.codes[0]
        simulator.inject("spread", symbol, {"ticks": 20})
        symbols = write_symbols(tmp_path / "symbols.txt", [symbol])
        config = FeedConfig(symbols=symbols, interval_s=60.0, always_open=True)
        kis, clock = config_for(simulator.url), SystemClock()
        async with open_feed(
            kis, config, tmp_path / "home", clock, callbacks=FeedCallbacks(on_tick=ticks.append)
        ) as feed:
            feed.watch([symbol])
            running = asyncio.create_task(feed.run())
            await _until(lambda: any(tick.venue_at for tick in ticks), running)
            running.cancel()
            await asyncio.wait({running})
    tick = next(tick for tick in ticks if tick.venue_at)
    venue = PaperMatchingEngine(PaperConfig(), FeesConfig(), Decimal(10**9), LISTED)
    venue.on_tick(tick, 0)
    request = OrderRequest(
        client_order_id="x",
        symbol=symbol,
        side=Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal(1),
    )
    (fill,) = venue.submit("1", request, 0)
    assert fill.price == Decimal(int(tick.ask))
    assert LISTED[tick.symbol].ticks.has(fill.price)
    assert tick.ask > tick.price > tick.bid
    assert abs(tick.at - tick.venue_at) < 5 * 86_400
