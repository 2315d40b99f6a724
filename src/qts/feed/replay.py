"""Recorded days: replay through QuoteIngest, at their own speed or faster, and export to Parquet.

Records are read in the order they were written; a torn last line is skipped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from qts.domain import Clock, OperationError, RefusedError, assumed_instrument
from qts.feed.file_columns import FileLayout
from qts.feed.ingest import (
    DECODER,
    SCHEMA,
    Context,
    Inputs,
    Meta,
    Observation,
    ObservationSnapshot,
    PatternRecord,
    QuoteIngest,
    State,
)
from qts.feed.market_files import is_market_file, pyarrow_module, read_market_file
from qts.feed.recorder import day_of

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


def read_records(data: Path, layout: FileLayout | None = None) -> Iterator[PatternRecord]:
    """Read the records of a folder, of a recorded file, or of a CSV or Parquet file of ticks."""
    if data.is_dir():
        files = recorded_files(data)
        if not files:
            raise RefusedError(f"{data} holds no recorded file (*.jsonl, *.jsonl.zst)")
        for file in files:
            yield from _lines(file)
    elif data.name.endswith((".jsonl", ".jsonl.zst")):
        yield from _lines(_existing(data))
    elif is_market_file(data):
        yield from _ticks(_existing(data), layout or FileLayout())
    else:
        _existing(data)
        raise RefusedError(
            f"{data} is not a record; expected a folder, .jsonl, .jsonl.zst, .csv or .parquet"
        )


def is_recorded(data: Path) -> bool:
    """Return whether a file or folder holds records rather than files of others."""
    return data.name.endswith((".jsonl", ".jsonl.zst")) or bool(recorded_files(data))


def recorded_files(folder: Path) -> list[Path]:
    """Return the files in order; skip a compressed copy whose plain file still exists."""
    plain = {path.name: path for path in folder.glob("*.jsonl")}
    packed = [
        path for path in folder.glob("*.jsonl.zst") if path.name.removesuffix(".zst") not in plain
    ]
    return sorted([*plain.values(), *packed], key=lambda path: path.name)


def recorded_days(folder: Path) -> dict[date, list[Path]]:
    """Return the files of each recorded day, in order."""
    days: dict[date, list[Path]] = {}
    for path in recorded_files(folder):
        if day := day_of(path):
            days.setdefault(day, []).append(path)
    return days


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


def _ticks(path: Path, layout: FileLayout) -> Iterator[PatternRecord]:
    number = 0
    for part in read_market_file(path, layout):
        if part.is_bars:
            raise RefusedError(f"{path} holds bars; expected ticks: time, symbol, price, volume")
        names = ("at", "price", "volume", "bid", "ask", "venue_at")
        columns = (part.columns[name].tolist() for name in names)
        for symbol, at, price, volume, *rest in zip(part.symbols, *columns, strict=True):
            number += 1
            meta = Meta(datetime.fromtimestamp(at, UTC), path.stem, "REPLAY", "file", 0.0)
            context = Context("market", "raw", symbol, assumed_instrument(symbol).market)
            observation = Observation(Inputs(price, volume, {}, *rest), {}, State("normal"))
            snapshot = ObservationSnapshot(meta, context, observation)
            yield PatternRecord(SCHEMA, number, snapshot)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise RefusedError(f"{path} does not exist")
    return path


_BATCH = 20_000


def export_parquet(records: Iterable[PatternRecord], target: Path) -> int:
    """Write the file atomically; return its number of rows."""
    pq, schema = pyarrow_module("pyarrow.parquet"), _schema()
    draft = target.with_name(target.name + ".draft")
    rows, stream = 0, iter(records)
    try:
        with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
            while batch := [_row(record) for record in islice(stream, _BATCH)]:
                writer.write_table(_table(batch, schema))
                rows += len(batch)
        draft.rename(target)
    except OSError as error:
        raise RefusedError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _schema() -> Any:
    pa = pyarrow_module("pyarrow")
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("time", pa.timestamp("us", tz="UTC")),
            ("number", pa.int64()),
            ("session_id", text),
            ("mode", text),
            ("symbol", text),
            ("market", text),
            ("price", pa.float64()),
            ("volume", pa.float64()),
            ("polling_mode", text),
            ("tick_source", text),
            ("loop_interval_ms", pa.float64()),
            ("raw", pa.string()),
            ("bid", pa.float64()),
            ("ask", pa.float64()),
            ("venue_at", pa.float64()),
        ]
    )


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    return pyarrow_module("pyarrow").Table.from_pylist(rows, schema=schema)


def _row(record: PatternRecord) -> dict[str, Any]:
    meta, context = record.snapshot.meta, record.snapshot.context
    inputs, state = record.snapshot.observation.inputs, record.snapshot.observation.state
    return {
        "time": meta.time,
        "number": record.number,
        "session_id": meta.session_id,
        "mode": meta.mode,
        "symbol": context.symbol,
        "market": context.market,
        "price": inputs.price,
        "volume": inputs.volume,
        "polling_mode": state.polling_mode,
        "tick_source": meta.tick_source,
        "loop_interval_ms": meta.loop_interval_ms,
        "raw": msgspec.json.encode(inputs.kis_raw).decode(),
        "bid": inputs.bid,
        "ask": inputs.ask,
        "venue_at": inputs.venue_at,
    }
