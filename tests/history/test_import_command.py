"""`qts data import`: checked as a whole before anything is stored; twice is once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qts.cli.main import run_command
from qts.history import BarCatalogue

DAYS = "Date,Open,High,Low,Close,Volume\n2026-10-01,1,3,1,2,5\n2026-10-02,2,4,2,3,7\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("QTS_HOME", str(home))
    return tmp_path


def test_days_are_imported_once_however_often(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("days.csv").write_text(DAYS)
    arguments = [
        "data",
        "import",
        "days.csv",
        "--venue",
        "krx",
        "--timeframe",
        "1d",
        "--symbol",
        "005930",
    ]
    assert run_command([*arguments, "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        "005930 1d: 2 rows, 2026-10-01 06:30 to 2026-10-02 06:30 UTC, read, not stored\n"
    )
    catalogue = BarCatalogue(folder / "home")
    assert catalogue.series() == []
    for _ in range(2):
        assert run_command([*arguments, "--json", "-"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row == {
            "symbol": "005930", "timeframe": "1d", "rows": 2,
            "from": "2026-10-01T06:30:00Z", "to": "2026-10-02T06:30:00Z",
        }  # fmt: skip
        assert catalogue.bars("krx", "005930", "1d")["close"].tolist() == [2.0, 3.0]


def test_a_folder_of_ticks_with_a_symbol_column(folder: Path) -> None:
    Path("in").mkdir()
    for number in range(2):
        text = f"t;c;p\n2026-10-01 09:00:0{number};A;1{number}\n2026-10-01 09:00:00;B;20\n"
        Path(f"in/{number}.csv").write_text(text)
    options = "--venue krx --timeframe ticks --symbol-column c --map time=t,price=p --tz Asia/Seoul"
    assert run_command(["data", "import", "in", *options.split()]) == 0
    catalogue = BarCatalogue(folder / "home")
    found = {each.symbol: catalogue.rows(each)["price"].tolist() for each in catalogue.series()}
    assert found == {"A": [10.0, 11.0], "B": [20.0, 20.0]}


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (DAYS + "2026-10-03,1,1,-1,1,1\n", "--symbol A", "days.csv, line 4: low is -1"),
        (DAYS, "", "days.csv has no symbol column; it has Date, Open, High"),
        (DAYS, "--symbol A --symbol-column B", "expected one of them"),
        (DAYS, "--symbol A --map close", "--map 'close': expected FIELD=COLUMN"),
        (DAYS, "--symbol ../A", "'../A' is not a symbol"),
        (DAYS + "2026-10-02,9,9,9,9,9\n", "--symbol A", "A has two different bars that close at"),
        ("time,price\n2026-10-01T00:00Z,1\n", "--symbol A", "days.csv holds ticks; --timeframe is"),
    ],
)
def test_nothing_is_stored_when_something_is_wrong(
    folder: Path, text: str, options: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("days.csv").write_text(text)
    arguments = f"data import days.csv --venue krx --timeframe 1d {options}".split()
    assert run_command(arguments) == 2
    assert expected in capsys.readouterr().err
    assert BarCatalogue(folder / "home").series() == []
