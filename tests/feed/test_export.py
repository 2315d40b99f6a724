"""An export is read by the libraries it is made for."""

from __future__ import annotations

import importlib
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from qts.feed import PatternRecord, export_parquet
from tests.feed.market import MONDAY_OPEN
from tests.feed.records import record

pd: Any = importlib.import_module("pandas")  # it has no types of its own

ROWS = 20_050  # more than are written at once, with other symbols in the second part
ONES = sum(3.0 * n for n in range(9_000, 18_000))
COLUMNS = [
    "time",
    "number",
    "session_id",
    "mode",
    "symbol",
    "market",
    "price",
    "volume",
    "polling_mode",
    "tick_source",
    "loop_interval_ms",
    "raw",
    "bid",
    "ask",
    "venue_at",
]


@cache
def records() -> list[PatternRecord]:
    return [
        record(
            n, symbol=f"{n // 9_000:06}", price=100.5 + n, volume=n * 3.0, raw={"이름": f"값 {n}"}
        )
        for n in range(1, ROWS + 1)
    ]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("export") / "day.parquet"
    assert export_parquet(records(), target) == ROWS
    return target


def _prices(records: list[PatternRecord]) -> list[float]:
    return [each.snapshot.observation.inputs.price for each in records]


def test_pandas_reads_it(day: Path) -> None:
    frame = pd.read_parquet(day)
    assert list(frame.columns) == COLUMNS
    assert frame["price"].tolist() == _prices(records())
    assert frame["symbol"].astype(str).tolist() == [r.snapshot.context.symbol for r in records()]
    assert frame["time"].iloc[0].to_pydatetime() == MONDAY_OPEN + timedelta(seconds=1)
    assert frame["raw"].iloc[0] == '{"이름":"값 1"}'
    ones = frame[frame["symbol"] == "000001"]
    assert ones["volume"].sum() == ONES


def test_polars_reads_it(day: Path) -> None:
    frame = pl.read_parquet(day)
    assert frame.columns == COLUMNS
    assert frame["price"].to_list() == _prices(records())
    assert frame["symbol"].cast(pl.String).to_list() == [
        r.snapshot.context.symbol for r in records()
    ]
    assert frame["time"][0] == MONDAY_OPEN + timedelta(seconds=1)
    assert frame["raw"][0] == '{"이름":"값 1"}'
    ones = pl.scan_parquet(day).filter(pl.col("symbol") == "000001").select(pl.sum("volume"))
    assert ones.collect().item() == ONES
