"""Files and frames of bars or ticks that others have written: CSV, Parquet, pandas, polars."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from qts.domain import RefusedError, Timeframe
from qts.feed.file_columns import FileLayout, FileRows, Instants, RawColumns, Texts, convert_columns

_TEXT = (".csv", ".tsv", ".txt")
_PACKED = (".gz", ".zst")
_DELIMITERS = ",;\t|"
_ROWS = 20_000
_SAMPLE = 1 << 16
_FILE_NAME = "{file}"
_EXACT = 1 << 53  # integers up to this are floats too


def is_market_file(path: Path) -> bool:
    """Return whether the name ends like a file of bars or ticks."""
    name = path.name.lower()
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return name.endswith(_TEXT) or path.name.lower().endswith(".parquet")


def find_files(path: Path) -> list[Path]:
    """Return the files of a folder and its folders in order of their names, or the file itself."""
    if path.is_file():
        if is_market_file(path):
            return [path]
        raise RefusedError(f"{path} is not .csv, .tsv, .txt, also with .gz or .zst, or .parquet")
    if not path.is_dir():
        raise RefusedError(f"{path} does not exist")
    files = sorted(each for each in path.rglob("*") if each.is_file() and is_market_file(each))
    if not files:
        raise RefusedError(
            f"{path} holds neither records (.jsonl) nor files of bars or ticks (.csv, .parquet)"
        )
    return files


def read_market_file(path: Path, layout: FileLayout) -> Iterator[FileRows]:
    """Yield the rows of one file, part by part; raise RefusedError naming file and line."""
    if layout.symbol == _FILE_NAME:
        layout = msgspec.structs.replace(layout, symbol=path.name.split(".")[0])
    try:
        if path.name.lower().endswith(".parquet"):
            yield from _read_parquet(path, layout)
        else:
            for raw in _read_text(path, layout):
                yield convert_columns(raw, layout, str(path))
    except (OSError, UnicodeDecodeError, csv.Error, EOFError, zstandard.ZstdError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RefusedError(f"{path} cannot be read: {reason}") from None


def read_frame(frame: Any, layout: FileLayout) -> FileRows:
    """Return the rows of a frame of pandas or polars."""
    if hasattr(frame, "reset_index"):  # pandas
        if type(frame.index).__name__ != "RangeIndex":
            frame = frame.reset_index()
        values = {str(name): _series_values(frame[name]) for name in frame.columns}
    elif hasattr(frame, "get_columns"):  # polars
        values = {
            each.name: each.to_numpy() if each.dtype.is_numeric() else each.to_list()
            for each in frame.get_columns()
        }
    else:
        raise RefusedError(f"{type(frame).__name__} is not a frame of pandas or polars")
    return convert_columns(RawColumns(values, lambda row: f"row {row}"), layout, "the frame")


def _series_values(series: Any) -> Any:
    return series.to_numpy() if series.dtype.kind in "iuf" else series.tolist()


def _read_text(path: Path, layout: FileLayout) -> Iterator[RawColumns]:
    with _open(path) as binary:
        text = io.TextIOWrapper(binary, encoding=_encoding(path), newline="")
        first = text.readline()
        if not first.strip():
            raise RefusedError(f"{path} is empty")
        delimiter = max(_DELIMITERS, key=first.count)
        header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter))]
        rest: Iterable[str] = text
        skipped = 1
        if layout.columns:
            if len(layout.columns) != len(header):
                raise RefusedError(
                    f"{path} has {len(header)} columns, and --columns names {len(layout.columns)}"
                )
            rest, skipped = _with_first(first, text), 0
            header = list(layout.columns)
        elif any(_is_number(name) for name in header):
            raise RefusedError(
                f"{path} has no header: its first line is {first.strip()[:80]!r}; name its columns "
                "with --columns time,open,high,low,close,volume"
            )
        for raw in _parts(path, csv.reader(rest, delimiter=delimiter), header, skipped):
            yield raw._replace(thousands=delimiter != ";")


def _parts(path: Path, reader: Any, header: list[str], skipped: int) -> Iterator[RawColumns]:
    numbered = ((reader.line_num + skipped, row) for row in reader if row)
    while part := list(islice(numbered, _ROWS)):
        lines, rows = zip(*part, strict=True)
        for line, row in part:
            if len(row) != len(header):
                raise RefusedError(
                    f"{path}, line {line}: {len(row)} values; expected {len(header)}: "
                    f"{', '.join(header)}"
                )
        columns = dict(zip(header, zip(*rows, strict=True), strict=True))
        yield RawColumns(columns, partial(_line, path, lines))


def _line(path: Path, lines: Sequence[int], row: int) -> str:
    return f"{path}, line {lines[row]}"


def _row(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row + 1}"


def _with_first(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    file = path.open("rb")
    if path.suffix == ".zst":
        reader = zstandard.ZstdDecompressor().stream_reader(file, closefd=True)
        return io.BufferedReader(reader)
    return file


def _encoding(path: Path) -> str:
    """Return the encoding of a text file: UTF-8, or the one of Korean spreadsheets."""
    with _open(path) as file:
        sample: bytes = file.read(_SAMPLE)
    try:
        sample[: sample.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError:
        return "cp949"
    return "utf-8-sig"


class _CatalogueMetadata(msgspec.Struct):
    symbol: str
    kind: str


def _read_parquet(path: Path, layout: FileLayout) -> Iterator[FileRows]:
    arrow, parquet = pyarrow_module("pyarrow"), pyarrow_module("pyarrow.parquet")
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            metadata = (file.schema_arrow.metadata or {}).get(b"qts")
            for batch in file.iter_batches(_ROWS, use_threads=False):
                names = batch.schema.names
                values = {name: _arrow_values(arrow, batch.column(name)) for name in names}
                raw = RawColumns(values, partial(_row, path, row))
                if metadata is None:
                    yield convert_columns(raw, layout, str(path))
                else:
                    yield _catalogue_rows(raw, metadata)
                row += batch.num_rows
    except arrow.ArrowException as error:
        raise RefusedError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _catalogue_rows(raw: RawColumns, metadata: bytes) -> FileRows:
    """Return rows that the catalogue has written: their times are closes already."""
    found = msgspec.json.decode(metadata, type=_CatalogueMetadata)
    if found.kind not in [each.value for each in Timeframe]:
        return convert_columns(raw, FileLayout(symbol=found.symbol))
    # a length that shifts no time
    layout = FileLayout(symbol=found.symbol, timeframe=Timeframe.M1, label="close")
    return convert_columns(raw, layout)._replace(timeframe=Timeframe(found.kind))


def _arrow_values(arrow: Any, column: Any) -> Any:
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_whole = not column.null_count
    if is_whole and types.is_timestamp(column.type) and column.type.tz is not None:
        return _instants(arrow, column)
    if is_whole and (types.is_string(column.type) or types.is_large_string(column.type)):
        encoded = column.dictionary_encode()
        return Texts(np.from_dlpack(encoded.indices), encoded.dictionary.to_pylist())
    if types.is_timestamp(column.type):
        return _datetimes(arrow, column)
    if (types.is_integer(column.type) or types.is_floating(column.type)) and is_whole:
        return np.from_dlpack(column)  # to_numpy imports pandas, which takes 70 MB
    return ["" if each is None else each for each in column.to_pylist()]


def _datetimes(arrow: Any, column: Any) -> list[Any]:
    found: list[Any] = column.cast(arrow.timestamp("us", column.type.tz), safe=False).to_pylist()
    return found


def _instants(arrow: Any, column: Any) -> Any:
    whole = column.cast(arrow.timestamp("us", column.type.tz), safe=False)
    numbers = np.from_dlpack(whole.cast(arrow.int64()))
    if np.abs(numbers).max(initial=0) > _EXACT:
        return _datetimes(arrow, column)
    return Instants(numbers, partial(_datetimes, arrow, column))


def pyarrow_module(module: str) -> Any:
    """Import a module of pyarrow; refused with the name of the extra where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise RefusedError(
            "Parquet needs pyarrow; install it with: pip install 'qts[export]'"
        ) from None
