"""The KIS WebSocket: drops, second sessions, limits, widths, several records, encrypted notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import Clock, ManualClock, RefusedError, SystemClock
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.simulators.faults import Fault
from qts.venues import FillNotice, KisClient, KisStream, Quote, RequestPriority
from qts.venues.kis import KisEndpoint
from qts.venues.kis.frames import ControlMessage, Frame, MalformedFrameError, parse, trade_quote
from tests.venues.kis import KEY, client_of

SAMPLE = (
    "0|H0STCNT0|001|005930^093354^71900^5^-100^-0.14^72023.83^72100^72400^71700^71900^71800^1^"
    "3052507^219853241700^5105^6937^1832^84.90^1366314^1159996^1^0.39^20.28^090020^5^-200^090820^5"
    "^-500^092619^2^200^20230612^20^N^65945^216924^1118750^2199206^0.05^2424142^125.92^0^^72100"
)
BUSY = KisSimulatorConfig(market=MarketConfig(symbols=60, speed=20))


class Heard:
    """Collects what a stream delivers, and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.quotes: list[Quote] = []
        self.fills: list[FillNotice] = []
        self.live = 0
        self._news = asyncio.Event()

    def quote(self, quote: Quote) -> None:
        self.quotes.append(quote)
        self._news.set()

    def fill(self, fill: FillNotice) -> None:
        self.fills.append(fill)
        self._news.set()

    def on_live(self) -> None:
        self.live += 1
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._news.wait()
                except TimeoutError:
                    continue


class Pauses(ManualClock):
    """Tells what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self._asked.put_nowait(seconds)
        await super().sleep(seconds)

    async def asked(self) -> float:
        """How long the next sleeper means to sleep; it sleeps by now."""
        return await asyncio.wait_for(self._asked.get(), 60)


@asynccontextmanager
async def running(
    client: KisClient, heard: Heard, clock: Clock | None = None
) -> AsyncIterator[KisStream]:
    stream = KisStream(client, clock or SystemClock(), heard.quote, on_live=heard.on_live)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        task.cancel()
        await asyncio.wait({task})


class Floor(NamedTuple):
    """A simulated venue, a client of it, its stream and what it delivered."""

    simulator: KisSimulator
    client: KisClient
    stream: KisStream
    heard: Heard


@asynccontextmanager
async def floor(
    folder: Path, config: KisSimulatorConfig = BUSY, clock: Clock | None = None
) -> AsyncIterator[Floor]:
    heard = Heard()
    async with (
        KisSimulator(config) as simulator,
        client_of(simulator, folder) as client,
        running(client, heard, clock) as stream,
    ):
        yield Floor(simulator, client, stream, heard)


async def test_trades_of_watched_symbols_come_and_others_do_not(tmp_path: Path) -> None:
    async with floor(tmp_path) as (_, _, stream, heard):
        stream.subscribe("005930")
        await heard.until(lambda: len(heard.quotes) >= 3)
        assert {quote.symbol for quote in heard.quotes} == {"005930"}
        volumes = [quote.volume for quote in heard.quotes]
        assert volumes == sorted(volumes)
        stream.unsubscribe("005930")
        stream.subscribe("000660")
        await heard.until(lambda: heard.quotes[-1].symbol == "000660")


async def test_after_a_drop_everything_is_subscribed_again(tmp_path: Path) -> None:
    async with floor(tmp_path) as (simulator, _, stream, heard):
        stream.subscribe("005930")
        await heard.until(lambda: bool(heard.quotes))
        assert simulator.drop_streams() == 1
        heard.quotes.clear()
        await heard.until(lambda: heard.live == 2 and bool(heard.quotes))


async def test_a_session_that_drops_at_once_is_retried_ever_more_slowly(tmp_path: Path) -> None:
    """KIS blocks keys that connect and disconnect in a loop."""
    clock = Pauses()
    async with floor(tmp_path, clock=clock) as (simulator, _, stream, heard):
        stream.subscribe("005930")
        for session in range(1, 5):
            await heard.until(lambda n=session: heard.live == n and stream.live)  # type: ignore[misc]
            simulator.drop_streams()
            pause = await clock.asked()
            assert 2.0 ** (session - 1) <= pause <= 2.0**session
            await clock.advance(pause)


async def test_the_42nd_registration_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with KisSimulator(BUSY) as simulator, client_of(simulator, tmp_path) as client:
        stream = KisStream(client, SystemClock(), Heard().quote)
        for symbol in simulator.market.universe.codes[:41]:
            stream.subscribe(symbol)
        assert stream.free == 0
        with pytest.raises(RefusedError, match="41 registrations"):
            stream.subscribe(simulator.market.universe.codes[41])
        stream.subscribe(simulator.market.universe.codes[0])  # has its place already


async def test_all_41_are_accepted_by_the_venue(tmp_path: Path) -> None:
    async with floor(tmp_path) as (simulator, _, stream, heard):
        for symbol in simulator.market.universe.codes[:41]:
            stream.subscribe(symbol)
        await heard.until(lambda: 41 in simulator.stats()["stream"]["registrations"].values())
        assert stream.refusals == {}


async def test_a_key_in_use_elsewhere_waits_a_minute_and_then_comes_back(tmp_path: Path) -> None:
    first, clock = Heard(), Pauses()
    async with floor(tmp_path, clock=clock) as (simulator, client, late, second):
        async with running(client, first) as early:
            early.subscribe("005930")
            await first.until(lambda: bool(first.quotes))
            late.subscribe("005930")
            await second.until(lambda: "OPSP8996" in late.refusals)
            assert not second.quotes
        await second.until(lambda: not simulator.stream.sessions)
        assert await clock.asked() == 60.0
        await clock.advance(60.0)
        await second.until(lambda: bool(second.quotes))


async def test_pings_are_echoed(tmp_path: Path) -> None:
    config = KisSimulatorConfig(
        ping_interval_s=0.05, drop_after_pings=4, market=MarketConfig(symbols=60)
    )
    async with floor(tmp_path, config) as (simulator, _, stream, heard):
        stream.subscribe("005930")
        await heard.until(lambda: simulator.stream.pongs >= 8)
        assert heard.live == 1


async def test_a_field_more_in_every_record_changes_nothing(tmp_path: Path) -> None:
    async with floor(tmp_path) as (simulator, _, stream, heard):
        stream.subscribe("005930")
        await heard.until(lambda: bool(heard.quotes))
        before = int(heard.quotes[-1].raw["fields"])
        simulator.faults.add(Fault(kind="width", path="H0STCNT0", fields=1))
        await heard.until(lambda: int(heard.quotes[-1].raw["fields"]) == before + 1)
        assert heard.quotes[-1].price > 0
        assert stream.broken_frames == 0


async def test_an_encrypted_fill_notice_is_read(tmp_path: Path) -> None:
    config = KisSimulatorConfig(market=MarketConfig(symbols=60))
    async with floor(tmp_path, config) as (simulator, client, stream, heard):
        stream.subscribe_fills(heard.fill, heard.on_live)
        await heard.until(lambda: 1 in simulator.stats()["stream"]["registrations"].values())
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
        await heard.until(lambda: sum(f.quantity for f in heard.fills if f.filled) == 3)
        assert not any(fill.rejected for fill in heard.fills)
        assert {fill.symbol for fill in heard.fills} == {"005930"}
        assert all(fill.buy for fill in heard.fills)
        assert heard.fills[0].order_no in bytes(reply.output).decode()


async def test_a_fill_notice_that_cannot_be_read_is_told_as_missed(tmp_path: Path) -> None:
    config = KisSimulatorConfig(market=MarketConfig(symbols=60))
    async with floor(tmp_path, config) as (simulator, _, stream, heard):
        missed: list[int] = []
        stream.subscribe_fills(heard.fill, lambda: missed.append(1))
        await heard.until(lambda: len(missed) == 1)
        (session,) = simulator.stream.sessions.values()
        await session.socket.send_str("1|H0STCNI0|001|bm90IGVuY3J5cHRlZA==")
        await heard.until(lambda: stream.broken_frames == 1)
        assert len(missed) == 2
        assert not heard.fills


# -- frames


def test_the_sample_of_the_manual_is_read() -> None:
    frame = parse(SAMPLE, {})
    assert isinstance(frame, Frame)
    quote = trade_quote(frame.records[0])
    assert (quote.symbol, quote.price, quote.volume) == ("005930", 71900.0, 3052507.0)
    assert (quote.ask, quote.bid) == (71900.0, 71800.0)


@given(st.integers(1, 20), st.integers(46, 60))
def test_records_of_any_width_are_told_apart(count: int, width: int) -> None:
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
def test_a_broken_frame_is_told_not_guessed(text: str) -> None:
    with pytest.raises(MalformedFrameError):
        parse(text, {})


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser_otherwise(text: str) -> None:
    found = None
    with suppress(MalformedFrameError):
        found = parse(text, {})
    assert found is None or isinstance(found, ControlMessage | Frame)
