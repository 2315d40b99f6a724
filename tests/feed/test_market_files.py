"""Files of others: every usual form of CSV, Parquet and frames is read; doubt is refused."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import Market, RefusedError, Timeframe
from qts.feed import FileLayout, find_files, read_frame, read_market_file

# They have no types of their own.
pd: Any = importlib.import_module("pandas")
pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")

NINE = datetime(2026, 10, 1, 0, 0, tzinfo=UTC)  # 09:00 in Seoul
AT = NINE.timestamp()
DAYS = FileLayout(symbol="005930", timeframe=Timeframe.D1)
MINUTES = FileLayout(symbol="005930", timeframe=Timeframe.M1)
SEOUL_MINUTES = FileLayout(symbol="005930", timeframe=Timeframe.M1, tz="Asia/Seoul")
TICKS = FileLayout(symbol="005930")


def rows(path: Path, layout: FileLayout) -> list[dict[str, Any]]:
    found = []
    for part in read_market_file(path, layout):
        names, columns = zip(*part.columns.items(), strict=True)
        values = zip(*(column.tolist() for column in columns), strict=True)
        for symbol, row in zip(part.symbols, values, strict=True):
            found.append({"symbol": symbol, **dict(zip(names, row, strict=True))})
    return found


def one(path: Path, layout: FileLayout) -> dict[str, Any]:
    (row,) = rows(path, layout)
    return row


BAR = {"open": 100.0, "high": 110.0, "low": 90.0, "close": 105.0, "volume": 1000.0}
CLOSE = datetime(2026, 10, 1, 6, 30, tzinfo=UTC).timestamp()

HEAD, ROW = "time,open,high,low,close,volume\n", ",100,110,90,105,1000\n"
ZOO: dict[str, tuple[str | bytes, FileLayout, float]] = {
    "capitals": ("Date,Open,High,Low,Close,Volume\n2026-10-01,100,110,90,105,1000\n", DAYS, CLOSE),
    "semicolons": (
        "date;open;high;low;close;volume\n2026-10-01;100;110;90;105;1000\n",
        DAYS,
        CLOSE,
    ),
    "tabs": ("date\topen\thigh\tlow\tclose\tvol\n20261001\t100\t110\t90\t105\t1000\n", DAYS, CLOSE),
    "BOM": (
        b"\xef\xbb\xbfDate,Open,High,Low,Close,Volume\r\n2026/10/01,100,110,90,105,1000\r\n",
        DAYS,
        CLOSE,
    ),
    "Korean": (
        '일자,시가,고가,저가,종가,거래량\n2026.10.1,100,110,90,105,"1,000"\n'.encode("cp949"),
        DAYS,
        CLOSE,
    ),
    "MetaTrader": (
        "<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>\n20261001,100,110,90,105,1000\n",
        DAYS,
        CLOSE,
    ),
    "pandas midnight": (
        "datetime,o,h,l,c,v\n2026-10-01 00:00:00,100,110,90,105,1000\n",
        DAYS,
        CLOSE,
    ),
    "day as epoch": (f"timestamp,o,h,l,c,v\n{int(AT)},100,110,90,105,1000\n", DAYS, CLOSE),
    "epoch s": (HEAD + f"{int(AT)}{ROW}", MINUTES, AT + 60),
    "epoch s with a point": (HEAD + f"{AT}{ROW}", MINUTES, AT + 60),
    "epoch ms": (HEAD + f"{int(AT)}000{ROW}", MINUTES, AT + 60),
    "epoch us": (HEAD + f"{int(AT)}000000{ROW}", MINUTES, AT + 60),
    "epoch ns": (HEAD + f"{int(AT)}000000000{ROW}", MINUTES, AT + 60),
    "ISO with offset": (HEAD + f"2026-10-01T09:00:00+09:00{ROW}", MINUTES, AT + 60),
    "ISO with Z": (HEAD + f"2026-10-01T00:00:00Z{ROW}", MINUTES, AT + 60),
    "local time": (HEAD + f"2026-10-01 09:00{ROW}", SEOUL_MINUTES, AT + 60),
    "digits": (HEAD + f"20261001090000{ROW}", SEOUL_MINUTES, AT + 60),
    "two columns": (
        "Date,Time,Open,High,Low,Close,Volume\n20261001,090000,100,110,90,105,1000\n",
        SEOUL_MINUTES,
        AT + 60,
    ),
    "headerless": (
        f"{int(AT)},100,110,90,105,1000\n",
        FileLayout(
            symbol="005930",
            timeframe=Timeframe.M1,
            columns=("time", "open", "high", "low", "close", "volume"),
        ),
        AT + 60,
    ),
    "labelled by the close": (
        HEAD + f"{int(AT)}{ROW}",
        FileLayout(symbol="005930", timeframe=Timeframe.M1, label="close"),
        AT,
    ),
    "quotes and blank lines": (
        '"time","open","high","low","close","volume"\n\n"2026-10-01","100","110","90","105","1000"\n\n',
        DAYS,
        CLOSE,
    ),
    "mapped": (
        "when,a,b,c,d,e\n2026-10-01,100,110,90,105,1000\n",
        FileLayout(
            symbol="005930",
            timeframe=Timeframe.D1,
            mapping={
                "time": "when",
                "open": "a",
                "high": "b",
                "low": "c",
                "close": "d",
                "volume": "e",
            },
        ),
        CLOSE,
    ),
}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_csv_of_bars(tmp_path: Path, name: str, packed: str) -> None:
    text, layout, at = ZOO[name]
    data = text.encode() if isinstance(text, str) else text
    zst = zstandard.ZstdCompressor().compress
    pack: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zst}
    path = tmp_path / f"bars.csv{packed}"
    path.write_bytes(pack[packed](data))
    assert one(path, layout) == {"symbol": "005930", "at": at, **BAR, "value": 0.0}


def test_days_close_with_their_market(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    path.write_text("date,symbol,open,high,low,close\n2026-11-19,KRW-BTC,1,1,1,1\n")
    layout = FileLayout(timeframe=Timeframe.D1)
    assert one(path, layout)["at"] == datetime(2026, 11, 20, tzinfo=UTC).timestamp()
    path.write_text("date,symbol,open,high,low,close\n2026-11-19,005930,1,1,1,1\n")
    late = datetime(2026, 11, 19, 7, 30, tzinfo=UTC)  # an exam day closes an hour later
    assert one(path, layout)["at"] == late.timestamp()
    upbit = FileLayout(timeframe=Timeframe.D1, market=Market.UPBIT, tz="Asia/Seoul", symbol="KRW-X")
    path.write_text("time,open,high,low,close\n2026-11-19 09:00:00,1,1,1,1\n")
    assert one(path, upbit)["at"] == datetime(2026, 11, 20, tzinfo=UTC).timestamp()


def test_ticks_keep_bid_and_ask(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text(f"timestamp,ticker,last,qty,bid,ask\n{AT},A,10,3,9.5,10.5\n{AT + 1},B,20,,,\n")
    assert rows(path, FileLayout()) == [
        {
            "symbol": "A",
            "at": AT,
            "price": 10.0,
            "volume": 3.0,
            "bid": 9.5,
            "ask": 10.5,
            "venue_at": 0.0,
        },
        {
            "symbol": "B",
            "at": AT + 1,
            "price": 20.0,
            "volume": 0.0,
            "bid": 0.0,
            "ask": 0.0,
            "venue_at": 0.0,
        },
    ]


def test_a_halted_day_is_flat(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    path.write_text("date,open,high,low,close,volume\n2026-10-01,0,0,0,500,0\n")
    assert [one(path, DAYS)[name] for name in ("open", "high", "low", "close")] == [500.0] * 4


def test_the_name_of_a_file_may_be_its_symbol(tmp_path: Path) -> None:
    for symbol in ("005930", "000660"):
        (tmp_path / f"{symbol}.csv.gz").write_bytes(gzip.compress(f"time,price\n{AT},1\n".encode()))
    (tmp_path / "readme.md").write_text("not data")
    files = find_files(tmp_path)
    assert [one(path, FileLayout(symbol="{file}"))["symbol"] for path in files] == [
        "000660",
        "005930",
    ]


REFUSED: dict[str, tuple[str, FileLayout, str]] = {
    "no zone": (
        "time,price\n2026-10-01 09:00:00,1\n",
        TICKS,
        r"line 2: time '2026-10-01 09:00:00': has no time zone; name it with --tz",
    ),
    "no time of day": ("time,price\n2026-10-01,1\n", TICKS, r"line 2: .* has no time of day"),
    "not a time": ("time,price\nnoon,1\n", TICKS, r"line 2: time 'noon'"),
    "ambiguous day": (HEAD + "10/01/2026,1,1,1,1,1\n", DAYS, r"line 2: time '10/01/2026'"),
    "unknown zone": (
        "time,price\n2026-10-01 09:00,1\n",
        FileLayout(symbol="A", tz="Asia/Soul"),
        "time zone 'Asia/Soul' is unknown",
    ),
    "negative price": (
        HEAD + "20261001,1,1,1,1,1\n20261002,1,1,-1,1,1\n",
        DAYS,
        r"line 3: low is -1; expected more than 0",
    ),
    "NaN price": (
        HEAD + "20261001,nan,1,1,1,1\n",
        DAYS,
        r"line 2: open is nan; expected more than 0",
    ),
    "infinite price": (HEAD + "20261001,1,inf,1,1,1\n", DAYS, r"line 2: high is inf"),
    "empty price": (HEAD + "20261001,1,1,1,,1\n", DAYS, r"line 2: close '' is not a number"),
    "zero price": ("time,price\n1790812800,0\n", TICKS, r"line 2: price is 0"),
    "negative volume": (
        HEAD + "20261001,1,1,1,1,-5\n",
        DAYS,
        r"line 2: volume is -5; expected 0 or more",
    ),
    "low above open": (
        HEAD + "20261001,1,3,2,2,1\n",
        DAYS,
        r"line 2: low is 2; expected at most open and close",
    ),
    "high below close": (
        HEAD + "20261001,1,3,1,4,1\n",
        DAYS,
        r"line 2: high is 3; expected at least open and close",
    ),
    "text as number": (
        HEAD + "20261001,1,1,1,many,1\n",
        DAYS,
        r"line 2: close 'many' is not a number",
    ),
    "decimal comma": (
        "date;open;high;low;close\n20261001;1,5;1,5;1,5;1,5\n",
        DAYS,
        r"line 2: open '1,5' is not a number",
    ),
    "comma in a file of semicolons": (
        "date;open;high;low;close\n20261001;1,500;2;1;1\n",
        DAYS,
        r"open '1,500' is not a number",
    ),
    "short row": (HEAD + "20261001,1,1\n", DAYS, r"line 2: 3 values; expected 6: time, open"),
    "no header": ("20261001,1,1,1,1,1\n", DAYS, r"has no header: its first line is '20261001,1"),
    "wrong width": (
        "20261001,1\n",
        FileLayout(symbol="A", columns=("time", "price", "volume")),
        r"has 2 columns, and --columns names 3",
    ),
    "other columns": (
        "when,what\n1,2\n",
        TICKS,
        r"has no column for time, price; it has when, what; map them, as in --map time=NAME",
    ),
    "unknown column": (
        "time,cloze\n1,2\n",
        FileLayout(symbol="A", mapping={"price": "close"}),
        r"has no column 'close'; it has time, cloze; did you mean cloze\?",
    ),
    "unknown field": (
        "time,price\n1,2\n",
        FileLayout(symbol="A", mapping={"pirce": "price"}),
        r"field 'pirce' is unknown; .* did you mean price\?",
    ),
    "no symbol": (
        "time,price\n1790812800,2\n",
        FileLayout(),
        r"has no symbol column; it has time, price; name one with --symbol",
    ),
    "another symbol": (
        "time,symbol,price\n1790812800,B,2\n",
        TICKS,
        r"line 2: symbol 'B'; --symbol is 005930",
    ),
    "no timeframe": (
        HEAD + "20261001,1,1,1,1,1\n",
        TICKS,
        r"holds bars; name their length with --timeframe",
    ),
    "empty": ("", TICKS, "is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_unclear_or_wrong_is_refused(tmp_path: Path, name: str) -> None:
    text, layout, expected = REFUSED[name]
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(RefusedError, match=expected) as refused:
        rows(path, layout)
    assert "data.csv" in str(refused.value) or name in ("unknown zone", "unknown field")


def test_what_cannot_be_unpacked_is_refused(tmp_path: Path) -> None:
    for name, content in {
        "a.csv.gz": b"plain",
        "b.csv.zst": b"plain",
        "c.parquet": b"plain",
        "d.csv.gz": gzip.compress(b"time,price\n" * 9)[:-9],
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RefusedError, match=f"{name} cannot be read"):
            rows(tmp_path / name, TICKS)
    with pytest.raises(RefusedError, match=r"none\.csv does not exist"):
        find_files(tmp_path / "none.csv")
    (tmp_path / "a.txt.bz2").write_bytes(b"")
    with pytest.raises(RefusedError, match=r"a\.txt\.bz2 is not \.csv"):
        find_files(tmp_path / "a.txt.bz2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RefusedError, match="holds neither records"):
        find_files(tmp_path / "empty")


# Parquet and frames

TIMES: dict[str, tuple[Any, str | None]] = {
    "UTC": (pa.array([NINE], pa.timestamp("ns", "UTC")), None),
    "Seoul": (pa.array([NINE], pa.timestamp("ms", "Asia/Seoul")), None),
    "naive": (pa.array([datetime(2026, 10, 1, 9)], pa.timestamp("us")), "Asia/Seoul"),  # noqa: DTZ001
    "epoch": (pa.array([int(AT * 1000)]), None),
    "float": (pa.array([AT]), None),
    "text": (pa.array(["2026-10-01T00:00:00Z"]).dictionary_encode(), None),
}


@pytest.mark.parametrize("name", TIMES)
def test_a_parquet_of_ticks(tmp_path: Path, name: str) -> None:
    time, tz = TIMES[name]
    path = tmp_path / "ticks.parquet"
    pq.write_table(pa.table({"Time": time, "Symbol": ["A"], "Price": [10], "Bid": [9.5]}), path)
    assert one(path, FileLayout(tz=tz)) == {
        "symbol": "A", "at": AT, "price": 10.0, "volume": 0.0, "bid": 9.5, "ask": 0.0,
        "venue_at": 0.0,
    }  # fmt: skip


def test_a_wrong_row_of_a_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ticks.parquet"
    pq.write_table(pa.table({"time": [AT, AT], "symbol": ["A", "A"], "price": [1.0, None]}), path)
    with pytest.raises(RefusedError, match=r"ticks\.parquet, row 2: price '' is not a number"):
        rows(path, FileLayout())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("kind", [Timeframe.M1, Timeframe.D1])
def test_times_of_a_parquet_are_those_of_a_csv(tmp_path: Path, unit: str, kind: Timeframe) -> None:
    minutes = [NINE + timedelta(minutes=n) for n in range(400)]
    prices = dict.fromkeys(("open", "high", "low", "close"), [1.5] * 400)
    columns = {"time": pa.array(minutes, pa.timestamp(unit, "Asia/Seoul")), **prices}
    columns["symbol"] = ["005930", " 000660 "] * 200
    pq.write_table(pa.table(columns), tmp_path / "bars.parquet")
    lines = [f"{at.isoformat()},1.5,1.5,1.5,1.5,{('005930', '000660')[n % 2]}\n"
             for n, at in enumerate(minutes)]  # fmt: skip
    (tmp_path / "bars.csv").write_text("time,open,high,low,close,symbol\n" + "".join(lines))
    layout = FileLayout(timeframe=kind)
    assert rows(tmp_path / "bars.parquet", layout) == rows(tmp_path / "bars.csv", layout)


def test_a_time_of_a_parquet_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "ticks.parquet"
    time = pa.array([NINE], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"time": time, "symbol": ["A"], "price": time}), path)
    with pytest.raises(RefusedError, match=r"row 1: price '2026-10-01 00:00:00\+00:00' is not a"):
        rows(path, FileLayout())


def test_frames_of_pandas_and_polars() -> None:
    layout = FileLayout(symbol="005930", timeframe=Timeframe.M1)
    values = {"Open": [1.0], "High": [3.0], "Low": [1.0], "Close": [2.0]}
    index = pd.DatetimeIndex([NINE], name="Date")
    frames = [
        pd.DataFrame(values, index=index),
        pd.DataFrame({"Date": [NINE], **values}),
        pl.DataFrame({"Date": [NINE], **values}),
        pl.DataFrame({"Date": [int(AT)], **values}),
    ]
    for frame in frames:
        found = read_frame(frame, layout)
        assert found.columns["at"].tolist() == [AT + 60]
        assert found.columns["high"].tolist() == [3.0]
    naive = pd.DataFrame(values, index=index.tz_localize(None))
    with pytest.raises(RefusedError, match=r"row 0: .* has no time zone"):
        read_frame(naive, layout)
    with pytest.raises(RefusedError, match="dict is not a frame of pandas or polars"):
        read_frame(values, layout)


prices = st.floats(0.0001, 1e9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2 * 10**9 * 10**6), prices, st.floats(0, 1e12), prices, prices),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_what_is_written_as_csv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    ticks: list[tuple[int, float, float, float, float]],
    delimiter: str,
) -> None:
    path = tmp_path_factory.mktemp("csv") / "ticks.csv"
    lines = [
        delimiter.join(
            (datetime.fromtimestamp(us // 10**6, UTC).isoformat(), *map(json.dumps, rest))
        )
        for us, *rest in ticks
    ]
    path.write_text("\n".join([delimiter.join(("time", "price", "volume", "bid", "ask")), *lines]))
    found = [tuple(row.values())[1:-1] for row in rows(path, FileLayout(symbol="A"))]
    assert found == [(float(us // 10**6), *rest) for us, *rest in ticks]
    assert np.isfinite(found).all()
