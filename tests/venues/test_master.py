"""Lists of KIS and Upbit: bytes of the real form, and a round trip with the simulator's writer."""

from __future__ import annotations

import io
import ssl
import zipfile
from decimal import Decimal
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from qts.app.kis_venue import KisVenue
from qts.domain import InstrumentClass, SystemClock, UnreachableError
from qts.simulators import (
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from qts.simulators.kis.companies import MasterRow, write_master
from qts.venues import (
    KisConfig,
    UpbitConfig,
    fetch_kis_instruments,
    fetch_upbit_instruments,
    parse_master,
    unpack_master,
)
from qts.venues.upbit.market_data import parse_markets
from tests.dashboard.certificates import make_pair


def line(code: str, name: str, tail: bytes, width: int) -> bytes:
    return f"{code:<9}KR7005930003".encode() + name.encode("cp949").ljust(40) + tail.ljust(width)


def kospi_tail(**fields: str) -> bytes:
    """Return a tail with fields at the documented offsets, and blanks elsewhere."""
    starts = {"group": 0, "base": 41, "lot": 50, "halt": 60, "liquidation": 61, "admin": 62}
    starts |= {"alarm": 63, "shares": 113}
    tail = bytearray(b" " * 227)
    for name, text in fields.items():
        tail[starts[name] : starts[name] + len(text)] = text.encode()
    return bytes(tail)


def test_fields_are_cut_by_bytes_from_both_ends() -> None:
    tail = kospi_tail(
        group="ST", base="000071900", lot="00001", halt="N", liquidation="N", admin="N",
        alarm="00", shares="000000005969783",
    )  # fmt: skip
    (found,) = parse_master("KOSPI", line("005930", "삼성전자", tail, 227) + b"\r\n")
    assert (found.symbol, found.name, found.board) == ("005930", "삼성전자", "KOSPI")
    assert (found.base_price, found.lot) == (Decimal(71_900), Decimal(1))
    assert found.listed_shares == 5_969_783_000
    assert found.status == ""


def test_a_name_whose_bytes_differ_from_its_length_does_not_shift_the_tail() -> None:
    tail = kospi_tail(group="ST", base="000010000", lot="00010", halt="Y", admin="Y", alarm="02")
    short = b"000020   KR7000020008" + "동화약품".encode("cp949") + tail  # no padding at all
    (found,) = parse_master("KOSPI", short)
    assert (found.name, found.lot) == ("동화약품", Decimal(10))
    assert found.status == "halted, administrative, caution"
    assert found.entry_block == "halted"


def test_codes_with_letters_and_etn_codes_are_kept() -> None:
    rows = [
        MasterRow("0001A0", "문자 코드", 5_000, "ST"),
        MasterRow("Q500001", "신한 레버리지 WTI ETN", 1_200, "EN"),
        MasterRow("58JK12", "한국JK12삼성전자콜", 70, "EW"),
        MasterRow("F70100026", "펀드", 1_000, "BC"),
        MasterRow("900001", "이상한 상품", 1_000, "ZZ"),
    ]
    found = {each.symbol: each for each in parse_master("KOSPI", write_master(rows, kospi=True))}
    kinds = {symbol: each.kind.value for symbol, each in found.items()}
    assert kinds == {
        "0001A0": "STOCK", "Q500001": "ETN", "58JK12": "ELW", "F70100026": "FUND",
        "900001": "OTHER",
    }  # fmt: skip
    assert found["Q500001"].ticks.size(Decimal(50_000)) == 5
    assert found["Q500001"].sale_tax == 0


names = st.text(
    st.sampled_from("가나다라마바사아자차카타파하전자홀딩스ABCXYZ 0123456789&-()"), max_size=20
).map(str.strip)
rows = st.builds(
    MasterRow,
    code=st.from_regex(r"[0-9A-Z]{6}|Q[0-9]{6}", fullmatch=True),
    name=names,
    base=st.integers(0, 999_999_999),
    group=st.sampled_from(["ST", "RT", "EF", "EN", "EW", "BC", "MF", "SR", "FS"]),
    lot=st.integers(1, 99_999),
    halted=st.booleans(),
    liquidation=st.booleans(),
    administrative=st.booleans(),
    alarm=st.integers(0, 3),
    thousand_shares=st.integers(0, 10**12),
)


@given(st.lists(rows, max_size=20), st.booleans())
def test_what_the_simulator_writes_is_read_back(written: list[MasterRow], kospi: bool) -> None:
    board = "KOSPI" if kospi else "KOSDAQ"
    found = parse_master(board, write_master(written, kospi))
    assert len(found) == len(written)
    for row, each in zip(written, found, strict=True):
        assert (each.symbol, each.name, each.board) == (row.code, row.name, board)
        assert each.base_price == (row.base or None)
        assert (each.lot, each.halted) == (Decimal(row.lot), row.halted)
        assert (each.liquidation, each.administrative) == (row.liquidation, row.administrative)
        assert each.caution is (row.alarm > 0)
        assert each.listed_shares == (row.thousand_shares * 1000 or None)


def test_one_unreadable_line_is_left_out_and_a_damaged_file_refused() -> None:
    good = write_master([MasterRow(f"{n:06}", "이름", 1000) for n in range(150)], kospi=True)
    assert len(parse_master("KOSPI", good + b"garbage\n\n")) == 150
    with pytest.raises(ValueError, match=r"3 of 153 lines of the KOSPI list are no products"):
        parse_master("KOSPI", good + b"garbage\n" * 3)
    with pytest.raises(ValueError, match="are no products"):
        parse_master("KOSDAQ", b"<html>moved</html>\n")


def test_a_zip_is_unpacked_only_if_it_holds_one_list() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("readme.txt", "no list")
    with pytest.raises(ValueError, match=r"expected one \.mst in the zip, found none"):
        unpack_master(packed.getvalue())
    with pytest.raises(ValueError, match="not a readable zip"):
        unpack_master(b"no zip")


async def test_lists_of_the_kis_simulator_are_fetched_without_a_key() -> None:
    market = MarketConfig(symbols=100, suspended=2)
    async with KisSimulator(KisSimulatorConfig(market=market)) as simulator:
        source = KisVenue().instruments(KisConfig(url=simulator.url), SystemClock())
        found = await source.fetch()
        codes = simulator.market.universe.codes
    assert source.environment == "simulator"
    assert KisVenue().instruments(KisConfig(), SystemClock()).environment == "real"
    assert sorted(each.symbol for each in found) == sorted(codes)
    by_symbol = {each.symbol: each for each in found}
    assert by_symbol["005930"].name == "삼성전자"
    assert {each.symbol for each in found if each.halted} == set(codes[-2:])
    assert {each.board for each in found} == {"KOSPI", "KOSDAQ"}


async def test_list_of_the_upbit_simulator_is_fetched_without_a_key() -> None:
    async with UpbitSimulator(UpbitSimulatorConfig(market=MarketConfig(symbols=20))) as simulator:
        found = await fetch_upbit_instruments(UpbitConfig(url=simulator.url), SystemClock())
    assert len(found) == 20
    assert found[0].symbol == "KRW-BTC"
    assert (found[0].kind, found[0].min_order_value) == (InstrumentClass.COIN, Decimal(5000))


def test_markets_in_won_are_taken_with_names_and_warnings() -> None:
    calm = {"PRICE_FLUCTUATIONS": False}
    reply = [
        {"market": "KRW-BTC", "korean_name": "비트코인", "english_name": "Bitcoin",
         "market_event": {"warning": False, "caution": calm}},
        {"market": "KRW-XYZ", "korean_name": "가짜", "english_name": "Xyz",
         "market_event": {"warning": False, "caution": {"PRICE_FLUCTUATIONS": True}}},
        {"market": "BTC-ETH", "korean_name": "이더리움", "english_name": "Ethereum"},
    ]  # fmt: skip
    bitcoin, other = parse_markets(reply)
    assert (bitcoin.symbol, bitcoin.name, bitcoin.name_en) == ("KRW-BTC", "비트코인", "Bitcoin")
    assert (bitcoin.caution, other.caution) == (False, True)


@pytest.mark.parametrize("body", [b"no zip", b""])
async def test_a_list_that_cannot_be_read_is_an_error_of_the_venue(body: bytes) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/common/master/{file}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        with pytest.raises(UnreachableError, match=r"kospi_code.mst.zip: not a readable zip"):
            await fetch_kis_instruments(KisConfig(url=url))
    finally:
        await runner.cleanup()


async def test_a_host_with_a_certificate_of_nobody_is_not_believed(
    tmp_path: Path,
) -> None:
    pair = make_pair(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        kis = KisConfig(master_url=f"https://127.0.0.1:{runner.addresses[0][1]}/common/master")
        with pytest.raises(UnreachableError, match=r"certificate|CERTIFICATE"):
            await fetch_kis_instruments(kis)
    finally:
        await runner.cleanup()
