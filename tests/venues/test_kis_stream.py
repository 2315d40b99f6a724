"""The KIS stream: drops, keys in use, limits, record widths, encrypted notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import Clock, OrderBook, RefusedError, Secret, SystemClock
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.simulators.control import Fault
from qts.telemetry import metric_samples
from qts.venues import FillNotice, KisClient, KisStream, Quote, RequestPriority
from qts.venues.kis import KisEndpoint
from qts.venues.kis.frames import (
    ControlMessage,
    Frame,
    MalformedFrameError,
    order_book,
    parse,
    trade_quote,
)
from tests.venues.kis import KEY, SleepRecorder, client_of

SAMPLE = (
    "0|H0STCNT0|001|005930^093354^71900^5^-100^-0.14^72023.83^72100^72400^71700^71900^71800^1^"
    "3052507^219853241700^5105^6937^1832^84.90^1366314^1159996^1^0.39^20.28^090020^5^-200^090820^5"
    "^-500^092619^2^200^20230612^20^N^65945^216924^1118750^2199206^0.05^2424142^125.92^0^^72100"
)
BUSY = KisSimulatorConfig(market=MarketConfig(symbols=60, speed=20))


class Recorder:
    """Collects what a stream delivers; `until` waits for a condition on it."""

    def __init__(self) -> None:
        self.quotes: list[Quote] = []
        self.fills: list[FillNotice] = []
        self.live = 0
        self._changed = asyncio.Event()

    def quote(self, quote: Quote) -> None:
        self.quotes.append(quote)
        self._changed.set()

    def fill(self, fill: FillNotice) -> None:
        self.fills.append(fill)
        self._changed.set()

    def on_live(self) -> None:
        self.live += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
                except TimeoutError:
                    continue


@asynccontextmanager
async def running(
    client: KisClient, recorder: Recorder, clock: Clock | None = None
) -> AsyncIterator[KisStream]:
    stream = KisStream(client, clock or SystemClock(), recorder.quote, on_live=recorder.on_live)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        task.cancel()
        await asyncio.wait({task})


class StreamSetup(NamedTuple):
    """A simulated venue, its client, its stream and a recorder of it."""

    simulator: KisSimulator
    client: KisClient
    stream: KisStream
    recorder: Recorder


@asynccontextmanager
async def running_stream(
    folder: Path, config: KisSimulatorConfig = BUSY, clock: Clock | None = None
) -> AsyncIterator[StreamSetup]:
    recorder = Recorder()
    async with (
        KisSimulator(config) as simulator,
        client_of(simulator, folder) as client,
        running(client, recorder, clock) as stream,
    ):
        yield StreamSetup(simulator, client, stream, recorder)


async def test_only_trades_of_subscribed_symbols_arrive(tmp_path: Path) -> None:
    async with running_stream(tmp_path) as (_, _, stream, recorder):
        stream.subscribe("005930")
        await recorder.until(lambda: len(recorder.quotes) >= 3)
        assert {quote.symbol for quote in recorder.quotes} == {"005930"}
        volumes = [quote.volume for quote in recorder.quotes]
        assert volumes == sorted(volumes)
        stream.unsubscribe("005930")
        stream.subscribe("000660")
        await recorder.until(lambda: recorder.quotes[-1].symbol == "000660")


async def test_after_a_drop_everything_is_subscribed_again(tmp_path: Path) -> None:
    async with running_stream(tmp_path) as (simulator, _, stream, recorder):
        stream.subscribe("005930")
        await recorder.until(lambda: bool(recorder.quotes))
        assert simulator.drop_streams() == 1
        recorder.quotes.clear()
        await recorder.until(lambda: recorder.live == 2 and bool(recorder.quotes))


async def test_a_connection_that_drops_at_once_is_retried_more_slowly(tmp_path: Path) -> None:
    """KIS blocks keys that connect and disconnect in a loop."""
    clock = SleepRecorder()
    async with running_stream(tmp_path, clock=clock) as (simulator, _, stream, recorder):
        stream.subscribe("005930")
        for attempt in range(1, 5):
            await recorder.until(lambda n=attempt: recorder.live == n and stream.live)  # type: ignore[misc]
            simulator.drop_streams()
            backoff_s = await clock.next_sleep()
            assert 2.0 ** (attempt - 1) <= backoff_s <= 2.0**attempt
            await clock.advance(backoff_s)


async def test_the_41st_symbol_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with KisSimulator(BUSY) as simulator, client_of(simulator, tmp_path) as client:
        stream = KisStream(client, SystemClock(), Recorder().quote)
        for symbol in simulator.market.universe.codes[:40]:
            stream.subscribe(symbol)
        assert len(stream.symbols) == stream.capacity == 40
        with pytest.raises(RefusedError, match="40 of them for symbols"):
            stream.subscribe(simulator.market.universe.codes[40])
        stream.subscribe(simulator.market.universe.codes[0])  # is subscribed already


async def test_forty_symbols_and_the_fill_notices_fit_also_after_drops(tmp_path: Path) -> None:
    """Symbols change while the connection drops: the venue never counts a 42nd subscription."""
    async with running_stream(tmp_path) as (simulator, _, stream, recorder):
        symbols = simulator.market.universe.codes
        for symbol in symbols[:40]:
            stream.subscribe(symbol)
        live = Recorder()
        stream.subscribe_fills(recorder.fill, live.on_live)
        for turn in range(3):
            await recorder.until(
                lambda: 41 in simulator.stats()["stream"]["registrations"].values()
            )
            await recorder.until(lambda n=turn: live.live == n + 1)  # type: ignore[misc]
            await recorder.until(
                lambda: all(stream.registered_at(symbol) is not None for symbol in stream.symbols)
            )
            for old, new in zip(symbols[:10], symbols[40:50], strict=True):
                stream.unsubscribe(old if turn % 2 == 0 else new)
                stream.subscribe(new if turn % 2 == 0 else old)
            if turn < 2:
                simulator.drop_streams()
        assert stream.rejections == {}


async def test_a_symbol_counts_as_registered_from_its_acknowledgement_to_a_drop(
    tmp_path: Path,
) -> None:
    async with running_stream(tmp_path) as (simulator, _, stream, recorder):
        stream.subscribe("005930")
        stream.subscribe("999999")  # not listed
        assert stream.registered_at("005930") is None
        await recorder.until(lambda: stream.registered_at("005930") is not None)
        await recorder.until(lambda: "999999" not in stream.symbols)
        assert stream.rejections == {"OPSP8992": 1}
        assert stream.registered_at("999999") is None
        await recorder.until(lambda: bool(recorder.quotes))
        assert stream.silence_s < 1.0
        simulator.drop_streams()
        await recorder.until(lambda: not stream.live)
        assert stream.registered_at("005930") is None
        await recorder.until(lambda: stream.registered_at("005930") is not None)


async def test_rejected_fill_notices_are_reported_and_quotes_still_arrive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder, rejected = Recorder(), list[str]()
    async with (
        KisSimulator(BUSY) as simulator,
        client_of(simulator, tmp_path, hts_id=Secret("another")) as client,
        running(client, recorder) as stream,
    ):
        stream.subscribe_fills(recorder.fill, recorder.on_live, rejected.append)
        stream.subscribe("005930")
        await recorder.until(lambda: bool(rejected))
        assert rejected == ["OPSP8992 invalid tr_key"] == [stream.fills_rejected]
        assert metric_samples()["qts_kis_fill_notices_rejected"] == [({}, 1.0)]
        assert "KIS rejected the subscription to fill notices" in capsys.readouterr().err
        await recorder.until(lambda: bool(recorder.quotes))  # KIS has closed the connection once
        stream.subscribe_fills(recorder.fill, recorder.on_live, rejected.append)
        await recorder.until(lambda: len(rejected) == 2)


async def test_a_key_in_use_elsewhere_is_retried_after_a_minute(tmp_path: Path) -> None:
    first, clock = Recorder(), SleepRecorder()
    async with running_stream(tmp_path, clock=clock) as (simulator, client, late, second):
        async with running(client, first) as early:
            early.subscribe("005930")
            await first.until(lambda: bool(first.quotes))
            late.subscribe("005930")
            await second.until(lambda: "OPSP8996" in late.rejections)
            assert not second.quotes
        await second.until(lambda: not simulator.stream.clients)
        assert await clock.next_sleep() == 60.0
        await clock.advance(60.0)
        await second.until(lambda: bool(second.quotes))


async def test_pings_are_echoed(tmp_path: Path) -> None:
    config = KisSimulatorConfig(
        ping_interval_s=0.05, drop_after_pings=4, market=MarketConfig(symbols=60)
    )
    async with running_stream(tmp_path, config) as (simulator, _, stream, recorder):
        stream.subscribe("005930")
        await recorder.until(lambda: simulator.stream.pongs >= 8)
        assert recorder.live == 1


async def test_an_additional_field_in_every_record_changes_nothing(tmp_path: Path) -> None:
    async with running_stream(tmp_path) as (simulator, _, stream, recorder):
        stream.subscribe("005930")
        await recorder.until(lambda: bool(recorder.quotes))
        before = int(recorder.quotes[-1].raw["fields"])
        simulator.faults.add(Fault(kind="width", path="H0STCNT0", fields=1))
        await recorder.until(lambda: int(recorder.quotes[-1].raw["fields"]) == before + 1)
        assert recorder.quotes[-1].price > 0
        assert stream.malformed_frames == 0


async def test_an_encrypted_fill_notice_is_read(tmp_path: Path) -> None:
    config = KisSimulatorConfig(market=MarketConfig(symbols=60))
    async with running_stream(tmp_path, config) as (simulator, client, stream, recorder):
        stream.subscribe_fills(recorder.fill, recorder.on_live)
        await recorder.until(lambda: 1 in simulator.stats()["stream"]["registrations"].values())
        order = KisEndpoint(
            "/uapi/domestic-stock/v1/trading/order-cash", "TTTC0012U", method="POST"
        )
        body = {
            "CANO": KEY.account[:8],
            "ACNT_PRDT_CD": KEY.account[8:],
            "PDNO": "005930",
            "ORD_DVSN": "01",
            "ORD_QTY": "3",
            "ORD_UNPR": "0",
            "EXCG_ID_DVSN_CD": "KRX",
        }
        reply = await client.call(order, body, RequestPriority.ORDER)
        await recorder.until(lambda: sum(f.quantity for f in recorder.fills if f.filled) == 3)
        assert not any(fill.rejected for fill in recorder.fills)
        assert {fill.symbol for fill in recorder.fills} == {"005930"}
        assert all(fill.buy for fill in recorder.fills)
        assert recorder.fills[0].order_no in bytes(reply.output).decode()


async def test_an_unreadable_fill_notice_is_reported_as_missed(tmp_path: Path) -> None:
    config = KisSimulatorConfig(market=MarketConfig(symbols=60))
    async with running_stream(tmp_path, config) as (simulator, _, stream, recorder):
        missed: list[int] = []
        stream.subscribe_fills(recorder.fill, lambda: missed.append(1))
        await recorder.until(lambda: len(missed) == 1)
        (session,) = simulator.stream.clients.values()
        await session.socket.send_str("1|H0STCNI0|001|bm90IGVuY3J5cHRlZA==")
        await recorder.until(lambda: stream.malformed_frames == 1)
        assert len(missed) == 2
        assert not recorder.fills


# -- frames


def test_the_sample_of_the_manual_is_read() -> None:
    frame = parse(SAMPLE, {})
    assert isinstance(frame, Frame)
    quote = trade_quote(frame.records[0])
    assert (quote.symbol, quote.price, quote.volume) == ("005930", 71900.0, 3052507.0)
    assert (quote.ask, quote.bid) == (71900.0, 71800.0)


@given(st.integers(1, 20), st.integers(46, 60))
def test_records_of_any_width_are_split(count: int, width: int) -> None:
    fields = SAMPLE.split("|")[3].split("^")
    record = (fields + ["2"] * 60)[:width]
    records = [[f"{n:06}", *record[1:]] for n in range(count)]
    text = f"0|H0STCNT0|{count:03}|" + "^".join("^".join(each) for each in records)
    frame = parse(text, {})
    assert isinstance(frame, Frame)
    assert frame.records == records


@pytest.mark.parametrize(
    "text",
    ["", "0|H0STCNT0|000|", "0|H0STCNT0|002|a^b^c", "1|H0STCNI0|001|xx", "{", "{}", "2|x|1|y"],
)
def test_a_malformed_frame_raises(text: str) -> None:
    with pytest.raises(MalformedFrameError):
        parse(text, {})


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser_otherwise(text: str) -> None:
    found = None
    with suppress(MalformedFrameError):
        found = parse(text, {})
    assert found is None or isinstance(found, ControlMessage | Frame)


async def test_books_arrive_and_make_room_for_trades(tmp_path: Path) -> None:
    books: asyncio.Queue[OrderBook] = asyncio.Queue()
    async with KisSimulator(BUSY) as simulator, client_of(simulator, tmp_path) as client:
        codes = simulator.market.universe.codes
        stream = KisStream(client, SystemClock(), lambda _: None, on_book=books.put_nowait)
        for symbol in codes[:38]:
            stream.subscribe(symbol)
        stream.set_books(codes[:10])
        assert list(stream.books) == list(codes[:2])
        task = asyncio.create_task(stream.run())
        async with asyncio.timeout(60):
            seen = {(await books.get()).symbol for _ in range(4)}
            assert seen <= set(codes[:2])
            stream.subscribe(codes[38])
            assert list(stream.books) == list(codes[:1])
            stream.subscribe(codes[39])
            assert not stream.books
            recorder = Recorder()
            await recorder.until(
                lambda: simulator.stats()["stream"]["registrations"] == {KEY.app_key: 40}
            )
        assert not stream.rejections
        task.cancel()
        await asyncio.wait({task})


def test_a_book_is_read_by_its_places_whatever_is_appended() -> None:
    asks, bids = [str(100 + n) for n in range(10)], [str(99 - n) for n in range(9)] + ["0"]
    record = ["005930", "093000", "0", *asks, *bids, *["7"] * 10, *["5"] * 10, *["0"] * 16]
    assert len(record) == 59
    for wide in (record, [*record, "99.5", "0", "0", "2"]):
        book = order_book(wide, 12.0)
        assert book is not None
        assert (book.symbol, book.at, len(book.asks), len(book.bids)) == ("005930", 12.0, 10, 9)
        assert (book.asks[0], book.bids[0]) == ((100.0, 7.0), (99.0, 5.0))
    assert order_book([*record[:2], "B", *record[3:]], 12.0) is None  # the opening auction
    with pytest.raises(MalformedFrameError):
        order_book([*record[:3], "x", *record[4:]], 12.0)
