"""Instruments of a venue: stored, refreshed, used without the venue, listed by the command."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from qts.cli.main import run_command
from qts.database import Database
from qts.domain import (
    Instrument,
    InstrumentClass,
    Instruments,
    ManualClock,
    RefusedError,
    Secret,
    UnreachableError,
    krx_instrument,
    upbit_instrument,
)
from qts.feed import (
    CATALOGUE,
    InstrumentStore,
    InstrumentSync,
    read_catalogue,
)
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues import InstrumentSource

SAMSUNG = krx_instrument("005930", name="삼성전자", base_price=Decimal(71_900))
KODEX = krx_instrument("069500", InstrumentClass.ETF, name="KODEX 200")
BITCOIN = upbit_instrument("KRW-BTC", name="비트코인", name_en="Bitcoin", caution=True)
MORNING = datetime(2026, 11, 16, 23, 30, tzinfo=UTC)  # 08:30 in Seoul, Tuesday


class Venue:
    """A venue whose list can be changed or taken away."""

    def __init__(self, *instruments: Instrument) -> None:
        self.listed: list[Instrument] | None = list(instruments)
        self.calls = 0

    async def fetch(self) -> list[Instrument]:
        self.calls += 1
        if self.listed is None:
            raise UnreachableError("the venue does not answer")
        return self.listed

    def source(self, environment: str = "real") -> InstrumentSource:
        return InstrumentSource("kis", environment, self.fetch)


class Run:
    def __init__(
        self, database: Database, venue: Venue, clock: ManualClock, *folders: Path, where: str
    ) -> None:
        self.instruments = Instruments()
        self.sync = InstrumentSync(
            InstrumentStore(database), venue.source(where), self.instruments, clock, folders
        )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(MORNING)


async def started(
    database: Database, venue: Venue, clock: ManualClock, *folders: Path, where: str = "real"
) -> Run:
    run = Run(database, venue, clock, *folders, where=where)
    await run.sync.start()
    return run


async def test_every_field_is_stored_and_loaded(database: Database, clock: ManualClock) -> None:
    odd = krx_instrument(
        "Q500001", InstrumentClass.ETN, board="KOSDAQ", lot=Decimal(10), halted=True,
        administrative=True, liquidation=True, listed_shares=10**12, name_en="ETN",
    )  # fmt: skip
    run = await started(database, Venue(SAMSUNG, KODEX, odd), clock)
    assert list(run.instruments) == [SAMSUNG, KODEX, odd]


async def test_a_stored_list_of_today_is_not_fetched_again(
    database: Database, clock: ManualClock
) -> None:
    venue = Venue(SAMSUNG)
    await started(database, venue, clock)
    await clock.advance(3600)
    again = await started(database, venue, clock)
    assert (venue.calls, list(again.instruments)) == (1, [SAMSUNG])
    await clock.advance(24 * 3600)
    await started(database, venue, clock)
    assert venue.calls == 2


async def test_a_list_from_before_the_morning_is_fetched_again(database: Database) -> None:
    clock = ManualClock(MORNING - timedelta(hours=1))  # 07:30: the list of the day before
    venue = Venue(SAMSUNG)
    await started(database, venue, clock)
    await clock.advance(1800)
    await started(database, venue, clock)
    assert venue.calls == 2


async def test_a_simulator_is_asked_at_every_start_and_kept_apart(
    database: Database, clock: ManualClock
) -> None:
    venue = Venue(SAMSUNG)
    await started(database, venue, clock, where="simulator")
    await started(database, venue, clock, where="simulator")
    assert venue.calls == 2
    real = Venue()
    real.listed = None
    assert list((await started(database, real, clock)).instruments) == []


async def test_a_start_without_the_venue_uses_what_is_stored(
    database: Database, clock: ManualClock
) -> None:
    venue = Venue(SAMSUNG)
    await started(database, venue, clock)
    venue.listed = None
    await clock.advance(48 * 3600)
    run = await started(database, venue, clock)
    assert list(run.instruments) == [SAMSUNG]
    with pytest.raises(UnreachableError):
        await run.sync.refresh()
    assert run.instruments.entry_block("005930") == ""


async def test_a_start_with_neither_blocks_entries_until_a_retry_succeeds(
    database: Database, clock: ManualClock
) -> None:
    venue = Venue()
    venue.listed = None
    run = await started(database, venue, clock)
    assert run.instruments.entry_block("005930") == "no list of the venue has it"
    venue.listed = [SAMSUNG]
    running = asyncio.create_task(run.sync.run())
    async with asyncio.timeout(30):
        while "005930" not in run.instruments:
            await clock.advance(1)
            await asyncio.sleep(0.01)
    running.cancel()
    assert venue.calls == 2
    assert run.instruments.entry_block("005930") == ""


async def test_what_leaves_the_list_is_delisted_and_keeps_its_name(
    database: Database, clock: ManualClock
) -> None:
    venue = Venue(SAMSUNG, KODEX)
    run = await started(database, venue, clock)
    await clock.advance(60)
    venue.listed = [KODEX]
    await run.sync.refresh()
    assert run.instruments["005930"].name == "삼성전자"
    assert run.instruments.entry_block("005930") == "delisted"
    assert run.instruments.entry_block("069500") == ""
    await clock.advance(60)
    venue.listed = [SAMSUNG, KODEX]
    await run.sync.refresh()
    assert run.instruments.entry_block("005930") == ""


async def test_a_list_that_lost_most_of_its_rows_is_not_believed(
    database: Database, clock: ManualClock
) -> None:
    venue = Venue(*(krx_instrument(f"{n:06}") for n in range(10)))
    run = await started(database, venue, clock)
    venue.listed = [SAMSUNG]
    with pytest.raises(UnreachableError, match="has 1 instruments, and the one before 10"):
        await run.sync.refresh()
    assert len(run.instruments) == 10


async def test_instruments_of_two_venues_stand_side_by_side(
    database: Database, clock: ManualClock
) -> None:
    store = InstrumentStore(database)
    await store.save("upbit", "real", [BITCOIN], clock.now())
    await clock.advance(60)
    run = await started(database, Venue(SAMSUNG), clock)
    assert run.instruments["KRW-BTC"] == BITCOIN  # its own list is its newest


async def test_the_catalogue_is_written_beside_the_data(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    venue = Venue(SAMSUNG)
    run = await started(database, venue, clock, tmp_path / "record")
    found = read_catalogue(tmp_path / "record" / CATALOGUE)
    assert (found.venue, found.environment, found.refreshed_at) == ("kis", "real", MORNING)
    assert found.instruments == list(run.instruments)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(RefusedError, match="is not a list of instruments"):
        read_catalogue(tmp_path / "other.json")


@pytest.fixture
def command(
    database_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    monkeypatch.setenv("QTS_HOME", str(tmp_path))
    monkeypatch.setenv("QTS_DATABASE__URL", database_url.reveal())
    return monkeypatch


async def _typed(*words: str) -> int:
    return await asyncio.to_thread(run_command, ["data", "instruments", *words])


async def test_the_command_refreshes_lists_and_searches(
    command: pytest.MonkeyPatch, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await database.ping()
    assert await _typed() == 2
    assert "no instruments of kis are stored; add --refresh" in capsys.readouterr().err
    async with KisSimulator(KisSimulatorConfig(market=MarketConfig(symbols=60))) as simulator:
        command.setenv("QTS_VENUES__KIS__URL", simulator.url)
        assert await _typed("--refresh") == 0
    shown = capsys.readouterr().out
    assert "60 of 60 at kis simulator" in shown
    assert "10 more; see --limit" in shown
    assert await _typed("삼성", "--json") == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [row["symbol"] for row in found["instruments"]] == ["005930", "207940"]
    assert found["instruments"][0]["class"] == "STOCK"
    assert await _typed("NAVRE") == 2
    assert "no instrument of kis matches 'NAVRE'; did you mean NAVER?" in capsys.readouterr().err


async def test_the_command_says_why_a_refresh_failed(
    command: pytest.MonkeyPatch, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await database.ping()
    command.setenv("QTS_VENUES__KIS__URL", "http://127.0.0.1:9")
    assert await _typed("--refresh") == 1
    assert "the master file http://127.0.0.1:9/common/master/kospi" in capsys.readouterr().err
