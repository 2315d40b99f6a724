"""Export of records as one Parquet file, one row per record."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from qts.domain import RefusedError
from qts.feed.observer import PatternRecord

_BATCH = 20_000


def export_parquet(records: Iterable[PatternRecord], target: Path) -> int:
    """Write the file atomically; return its number of rows."""
    pq, schema = parquet(), _schema()
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


def parquet() -> Any:
    return _arrow("pyarrow.parquet")


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise RefusedError(
            "Parquet needs pyarrow; install it with: pip install 'qts[export]'"
        ) from None


def _schema() -> Any:
    pa = _arrow("pyarrow")
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
        ]
    )


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    return _arrow("pyarrow").Table.from_pylist(rows, schema=schema)


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
    }
