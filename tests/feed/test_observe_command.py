"""The verbs observe --plan, replay and export."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from qts.cli.data import StatusLine, _observe, export, observe, replay
from qts.config import Config
from qts.domain import RefusedError, SystemClock
from qts.feed import FeedConfig, FeedStatus, PollerStatus, Recorder, read_records
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues import RateLimiterStatus, VenuesConfig
from tests.feed.market import write_symbols
from tests.feed.records import record
from tests.venues.kis import config_for


@pytest.fixture
def day(tmp_path: Path) -> Path:
    folder = tmp_path / "record"
    recorder = Recorder(folder, SystemClock())
    for number in range(1, 101):
        recorder.write(record(number, symbol=f"{number % 5:06}", price=100.0 + number))
    recorder.close()
    return folder


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("QTS_CONFIG", "QTS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_plan_is_printed_with_its_arithmetic(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert observe(show_plan=True, json_file=str(tmp_path / "plan.json")) == 0
    printed = capsys.readouterr().out
    assert "2,500 symbols / 30 a call = 84 calls" in printed
    assert "30.0 s scan, 84 calls, 2.8/s" in printed
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["calls"] == 84
    assert plan["bound"] == "asked"


def test_the_plan_counts_the_symbols_that_are_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "symbols.txt"
    file.write_text("005930\n000660\n")
    assert observe(show_plan=True, symbols=file) == 0
    assert "2 symbols / 30 a call = 1 calls" in capsys.readouterr().out


def test_the_plan_of_single_quotes_shows_what_each_limit_allows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QTS_FEED__MULTI_QUOTES", "false")
    monkeypatch.setenv("QTS_VENUES__KIS__LIMITS__PER_SECOND", "20")
    assert observe(show_plan=True) == 0
    printed = capsys.readouterr().out
    assert "limits     20/s, 1,000/min, 100,000/day (rolling)" in printed
    assert "by second  2,500 / (17 / 1.1 s - 10/s) = 458.3 s" in printed
    assert "by minute  2,500 / (925 / 60.1 s - 10/s) = 463.7 s" in printed
    assert "asked      30 s is not possible" in printed


def test_simulated_time_without_a_simulator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match=r"venues\.kis\.url is not set"):
        observe(show_plan=True, simulated_time=True)
    monkeypatch.setenv("QTS_VENUES__KIS__URL", "http://127.0.0.1:9")
    with pytest.raises(RefusedError, match=r"no simulator responds at http://127\.0\.0\.1:9"):
        observe(show_plan=True, simulated_time=True)


def test_observing_without_symbols_or_keys_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"feed\.symbols is not set"):
        observe(duration="1s")


def test_observing_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "symbols.txt"
    file.write_text("005930\n")
    with pytest.raises(RefusedError, match=r"venues\.kis\.app_key"):
        observe(duration="1s", symbols=file)


def test_a_replay_tells_what_it_saw(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(day, json_file="-") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["symbols"]) == (100, 5)
    assert report["surges"] > 0


def test_a_negative_speed_is_refused(day: Path) -> None:
    with pytest.raises(RefusedError, match="--speed is -1"):
        replay(day, speed=-1.0)


def test_an_export_names_its_rows(
    day: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(day, tmp_path / "day.parquet") == 0
    assert capsys.readouterr().out.startswith("100 rows in ")
    with pytest.raises(RefusedError, match=r"does not end in \.parquet"):
        export(day, tmp_path / "day.csv")


STATE = FeedStatus(
    seconds=61.0,
    plan="30.0 s scan",
    interval_s=30.0,
    lag_s=0.4,
    records=5000,
    lost=0,
    skipped=0,
    recording="on",
    surges=2,
    symbols_known=2500,
    streaming=False,
    watched="none",
    poller=PollerStatus(
        scans=2,
        position=3,
        batches=84,
        last_scan_s=30.4,
        polls=170,
        failed=0,
        refused=1,
        in_flight=1,
        bursts=["005930"],
        open=True,
    ),
    budget=RateLimiterStatus(
        used_second=3,
        used_minute=170,
        used_day=171,
        left_day=99_829,
        rate_per_s=18,
        granted=171,
        refused=1,
        waiting=1,
    ),
)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_and_a_pipe_gets_json() -> None:
    terminal, pipe = Terminal(), StringIO()
    StatusLine(terminal).show(STATE)
    assert "scan 3: 3/84" in terminal.getvalue()
    assert "left today 99,829" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    StatusLine(pipe).show(STATE)
    assert msgspec.json.decode(pipe.getvalue(), type=FeedStatus) == STATE


async def test_observing_the_simulator_tells_how_it_goes_and_records(tmp_path: Path) -> None:
    pipe = StringIO()
    async with KisSimulator(KisSimulatorConfig(market=MarketConfig(symbols=60))) as simulator:
        symbols = write_symbols(tmp_path / "symbols.txt", simulator.market.universe.codes)
        feed = FeedConfig(symbols=symbols, interval_s=1.0, always_open=True, stream=False)
        where = (tmp_path / "home", SystemClock())
        config = Config(feed=feed, venues=VenuesConfig(kis=config_for(simulator.url)))
        state = await _observe(config, where, 1.5, StatusLine(pipe))
    lines = [msgspec.json.decode(line, type=FeedStatus) for line in pipe.getvalue().splitlines()]
    assert len(lines) == 2
    assert lines[-1].records <= state.records
    assert len(list(read_records(tmp_path / "home" / "record"))) == state.records >= 60
