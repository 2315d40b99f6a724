"""Tapes of files and frames of others."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from qts.backtest import BarTape, Tape
from qts.backtest import tape as tape_module
from qts.domain import Market, RefusedError, Timeframe
from qts.feed import FileLayout
from qts.history import BarCatalogue, import_files

NINE = datetime(2026, 10, 1, 0, 0, tzinfo=UTC)  # 09:00 in Seoul
AT = NINE.timestamp()


def events(tape: Tape | BarTape) -> list[tuple[Any, ...]]:
    assert isinstance(tape, Tape)
    return [
        (tape.symbols[index], *rest)
        for chunk in tape
        for index, *rest in zip(*(column.tolist() for column in chunk), strict=True)
    ]


def test_ticks_of_a_file_have_bid_and_ask(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text(f"When,Code,Last,Qty,Bid,Ask\n{AT},A,10,3,9,11\n{AT + 1},B,20,4,0,0\n")
    tape = Tape.read(path, {"time": "When"})
    expected = [("A", 10.0, 3.0, 9.0, 11.0, AT), ("B", 20.0, 4.0, 0.0, 0.0, AT + 1)]
    assert events(tape) == expected
    assert events(tape) == expected  # a tape can be read twice


def bars(tape: Tape | BarTape) -> list[tuple[Any, ...]]:
    assert isinstance(tape, BarTape)
    return [(tape.symbols[symbol], *rest) for symbol, *rest in tape.rows.tolist()]


def test_days_are_bars_in_order_of_time_also_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    path.write_text("Date,Open,High,Low,Close,Volume\n20261002,2,4,2,3,7\n20261001,1,3,1,2,5\n")
    tape = Tape.read(path, symbol="005930", timeframe=Timeframe.D1)
    close = (NINE + timedelta(hours=6.5)).timestamp()
    assert bars(tape) == [
        ("005930", close, 1.0, 3.0, 1.0, 2.0, 5.0, 0.0),
        ("005930", close + 86_400, 2.0, 4.0, 2.0, 3.0, 7.0, 0.0),
    ]
    assert isinstance(tape, BarTape)
    assert tape.starts.tolist() == [AT, AT + 86_400]  # 09:00 in Seoul


def test_the_files_of_a_folder_are_one_tape_in_order_of_time(tmp_path: Path) -> None:
    for number, symbol in enumerate(("A", "B")):
        lines = "".join(f"{AT + n * 10 + number},{n + 1}\n" for n in range(3))
        data = gzip.compress(f"time,price\n{lines}".encode())
        (tmp_path / f"{symbol}.csv.gz").write_bytes(data)
    found = events(Tape.read(tmp_path, symbol="{file}"))
    assert [(symbol, at - AT) for symbol, *_, at in found] == [
        ("A", 0), ("B", 1), ("A", 10), ("B", 11), ("A", 20), ("B", 21)
    ]  # fmt: skip


def test_the_digest_of_a_folder_does_not_depend_on_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for symbol in ("A", "B"):
        lines = "".join(f"{AT + n * 10},{n + 1}\n" for n in range(3))
        (tmp_path / f"{symbol}.csv").write_text(f"time,price\n{lines}")
    found = {}
    for size in (100, 4):
        monkeypatch.setattr(tape_module, "CHUNK", size)
        tape = Tape.read(tmp_path, symbol="{file}")
        part = tape.select(["B"], AT + 10)
        chunks = [len(chunk.at) for chunk in tape], [len(chunk.at) for chunk in part]
        found[size] = chunks, (tape.digest, part.digest, events(tape), events(part))
    assert found[100][0] == ([6], [2])
    assert found[4][0] == ([4, 2], [2])
    assert found[100][1] == found[4][1]
    assert found[4][1][3] == [
        ("B", 2.0, 0.0, 0.0, 0.0, AT + 10),
        ("B", 3.0, 0.0, 0.0, 0.0, AT + 20),
    ]


def test_a_cumulative_volume_becomes_that_of_each_tick(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text(
        "time,symbol,price,volume\n" + "".join(f"{AT + n},A,1,{n * n}\n" for n in (1, 2, 4))
    )
    assert [row[2] for row in events(Tape.read(path, volume="day"))] == [0.0, 3.0, 12.0]
    assert [row[2] for row in events(Tape.read(path))] == [1.0, 4.0, 16.0]


def test_a_frame_is_a_tape() -> None:
    frame = pl.DataFrame({"at": [NINE + timedelta(seconds=1), NINE], "p": [2.0, 1.0]})
    tape = Tape.of_frame(frame, {"price": "p"}, symbol="A")
    assert [row[1] for row in events(tape)] == [1.0, 2.0]


def test_what_was_imported_is_a_tape(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    path.write_text("Date,Open,High,Low,Close,Volume\n20261001,1,3,1,2,5\n")
    layout = FileLayout(symbol="005930", timeframe=Timeframe.D1)
    catalogue = BarCatalogue(tmp_path)
    with catalogue.writing():
        import_files([path], Market.KRX, layout, catalogue)
    expected = bars(Tape.read(path, symbol="005930", timeframe=Timeframe.D1))
    assert bars(Tape.read(catalogue.root / "krx")) == expected


def test_bars_and_ticks_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,price\n1790812800,1\n")
    (tmp_path / "b.csv").write_text("time,open,high,low,close\n1790812800,1,1,1,1\n")
    with pytest.raises(RefusedError, match="holds files of bars and files of ticks"):
        Tape.read(tmp_path, symbol="A", timeframe=Timeframe.M1)
