"""Replay and export: the same records give the same events, whatever the speed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import ManualClock, RefusedError, SystemClock
from qts.feed import (
    FeedCallbacks,
    FeedConfig,
    Observer,
    PatternRecord,
    QuoteIngest,
    Surge,
    export_parquet,
    pyarrow_module,
    read_records,
    replay,
)
from tests.feed.market import MONDAY_OPEN
from tests.feed.records import record

SEEN = st.lists(
    st.tuples(st.sampled_from("ABCDE"), st.floats(50, 150), st.floats(0, 40)), max_size=80
)


async def _events(records: list[PatternRecord]) -> list[object]:
    events: list[object] = []
    ingest = QuoteIngest(
        FeedConfig(), Observer([events.append]), "again", FeedCallbacks(on_surge=events.append)
    )
    await replay(records, ingest, SystemClock())
    return events


@settings(max_examples=50)
@given(SEEN)
async def test_replayed_twice_the_events_are_identical(
    seen: list[tuple[str, float, float]],
) -> None:
    at, records = MONDAY_OPEN, []
    for number, (symbol, price, gap) in enumerate(seen, 1):
        at += timedelta(seconds=gap)
        records.append(record(number, symbol=symbol, price=price, time=at))
    first, second = await _events(records), await _events(records)
    assert first == second
    assert [event for event in first if isinstance(event, PatternRecord)] == records


async def test_a_replay_detects_the_surges_of_the_live_run() -> None:
    records = [
        record(1, price=100.0, time=MONDAY_OPEN),
        record(2, price=104.0, time=MONDAY_OPEN + timedelta(seconds=30)),
    ]
    events = await _events(records)
    assert [type(event) for event in events] == [PatternRecord, Surge, PatternRecord]


async def test_a_replay_at_a_speed_takes_its_time() -> None:
    clock = ManualClock()
    done: list[PatternRecord] = []
    ingest = QuoteIngest(FeedConfig(), Observer([done.append]), "again")
    records = [record(n, time=MONDAY_OPEN + timedelta(seconds=10 * n)) for n in range(1, 5)]
    task = asyncio.create_task(replay(records, ingest, clock, speed=10.0))
    await clock.advance(1.5)
    assert len(done) == 2
    await clock.advance(2.0)
    assert await task == 4


def test_an_export_has_a_row_for_each_record(tmp_path: Path) -> None:
    records = [record(n, price=100.0 + n, raw={"a": str(n)}) for n in range(1, 51)]
    target = tmp_path / "day.parquet"
    assert export_parquet(records, target) == 50
    table = pyarrow_module("pyarrow.parquet").read_table(target)
    assert table.column("price").to_pylist() == [101.0 + n for n in range(50)]
    assert table.column("time")[0].as_py() == records[0].snapshot.meta.time
    assert table.column("symbol")[0].as_py() == "005930"
    assert table.column("raw")[4].as_py() == '{"a":"5"}'
    assert [path.name for path in tmp_path.iterdir()] == ["day.parquet"]


def test_an_exported_day_can_be_replayed(tmp_path: Path) -> None:
    target = tmp_path / "day.parquet"
    export_parquet([record(n, price=100.0 + n) for n in range(1, 51)], target)
    again = list(read_records(target))
    assert [each.snapshot.observation.inputs.price for each in again] == [
        101.0 + n for n in range(50)
    ]


def test_ticks_of_a_csv_file_become_records(tmp_path: Path) -> None:
    file = tmp_path / "ticks.csv"
    file.write_text("time,symbol,price,volume\n2026-11-16T09:00:00+09:00,005930,71900,10\n")
    (only,) = read_records(file)
    assert only.snapshot.meta.time == MONDAY_OPEN
    assert only.snapshot.observation.inputs.price == 71900.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("time,symbol\n2026-11-16,x\n", "has no column for price; it has time, symbol"),
        ("time,symbol,price,volume\nx,y,z,1\n", "line 2: time 'x'"),
        ("time,symbol,price\n2026-11-16 09:00,x,1\n", "line 2: .* has no time zone"),
        ("time,symbol,open,high,low,close\n1,x,1,1,1,1\n", "holds bars"),
    ],
)
def test_a_csv_file_of_another_form_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "ticks.csv"
    file.write_text(text)
    with pytest.raises(RefusedError, match=rf"ticks\.csv.*{reason}"):
        list(read_records(file))


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.csv", "odd.txt"])
def test_a_path_that_holds_no_record_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError, match=name.replace(".", r"\.")):
        list(read_records(tmp_path / name))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="holds no recorded file"):
        list(read_records(tmp_path))
