"""Replay of a recorded day through QuoteIngest, at its own speed, faster, or without waiting.

Records are read in the order they were written; a torn last line is skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from qts.domain import Clock, OperationError, RefusedError
from qts.feed.ingest import QuoteIngest
from qts.feed.observer import (
    DECODER,
    SCHEMA,
    Context,
    Inputs,
    Meta,
    Observation,
    ObservationSnapshot,
    PatternRecord,
    State,
)

_MIN_SLEEP_S = 0.001  # shorter waits are skipped


async def replay(
    records: Iterable[PatternRecord], ingest: QuoteIngest, clock: Clock, speed: float = 0.0
) -> int:
    """Feed the records to `ingest` in order; speed 0 means no waiting.

    Order and detected surges depend on the records alone, not on the speed.
    """
    count, first, started_ns = 0, 0.0, clock.monotonic_ns()
    for record in records:
        at = record.snapshot.meta.time.timestamp()
        first = first or at
        if speed > 0:
            passed = (clock.monotonic_ns() - started_ns) / 1e9
            wait = (at - first) / speed - passed
            if wait > _MIN_SLEEP_S:
                await clock.sleep(wait)
        ingest.ingest_recorded(record.snapshot)
        count += 1
    return count


_COLUMNS = ("time", "symbol", "price", "volume")


def read_records(data: Path) -> Iterator[PatternRecord]:
    """Read the records of a folder, of a recorded file, or of a CSV or Parquet file of ticks."""
    if data.is_dir():
        files = recorded_files(data)
        if not files:
            raise RefusedError(f"{data} holds no recorded file (*.jsonl, *.jsonl.zst)")
        for file in files:
            yield from _lines(file)
    elif data.name.endswith((".jsonl", ".jsonl.zst")):
        yield from _lines(_existing(data))
    elif data.suffix in (".csv", ".parquet"):
        rows = _csv_rows if data.suffix == ".csv" else _parquet_rows
        yield from _ticks(data, rows(_existing(data)))
    else:
        _existing(data)
        raise RefusedError(
            f"{data} is not a record; expected a folder, .jsonl, .jsonl.zst, .csv or .parquet"
        )


def recorded_files(folder: Path) -> list[Path]:
    """Return the files in order; skip a compressed copy whose plain file still exists."""
    plain = {path.name: path for path in folder.glob("*.jsonl")}
    packed = [
        path for path in folder.glob("*.jsonl.zst") if path.name.removesuffix(".zst") not in plain
    ]
    return sorted([*plain.values(), *packed], key=lambda path: path.name)


def _lines(path: Path) -> Iterator[PatternRecord]:
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        if path.suffix == ".zst":
            raise
        yield from _lines(path.with_name(path.name + ".zst"))  # compressed after it was listed
        return
    with opened as file:
        stream: Any = file
        if path.suffix == ".zst":
            stream = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return  # torn by a kill
            try:
                yield DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise OperationError(f"{path}, line {number}: not a record: {error}") from None


def _ticks(path: Path, rows: Iterator[dict[str, Any]]) -> Iterator[PatternRecord]:
    for number, row in enumerate(rows, 1):
        try:
            yield PatternRecord(SCHEMA, number, _snapshot(path, row))
        except (KeyError, ValueError, TypeError) as error:
            raise RefusedError(
                f"{path}, row {number}: {error}; expected columns {', '.join(_COLUMNS)}"
            ) from None


def _snapshot(path: Path, row: dict[str, Any]) -> ObservationSnapshot:
    time = row["time"]
    moment = time if isinstance(time, datetime) else datetime.fromisoformat(str(time))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    symbol, price, volume = str(row["symbol"]), float(row["price"]), float(row["volume"])
    return ObservationSnapshot(
        Meta(moment, path.stem, "REPLAY", "file", 0.0),
        Context("market", "raw", symbol, str(row.get("market") or "KRX")),
        Observation(Inputs(price, volume, {}), {}, State("normal")),
    )


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    from qts.feed.export import parquet

    for batch in parquet().ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise RefusedError(f"{path} does not exist")
    return path
