"""Tape of a backtest: ticks as columns, read in chunks; bars of files are a BarTape."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest.bar_tape import BarTape
from qts.backtest.row_table import Rows, RowTable, sort_rows, windows
from qts.domain import KRX_TICKS, RefusedError, Tick, Timeframe, check_name
from qts.feed import (
    FileLayout,
    FileRows,
    TickBuilder,
    find_files,
    is_recorded,
    read_frame,
    read_market_file,
    read_records,
)
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig

CHUNK = 100_000
_TICK_FIELDS = ("price", "volume", "bid", "ask", "at")  # as in a chunk
MAX_BACKWARD_S = 1.0  # a clock may be set back so far; more means an unsorted file

Floats = npt.NDArray[np.float64]
Volume = Literal["auto", "day", "tick"]


class Chunk(NamedTuple):
    """Columns of events in time order; a bid of 0 is no bid."""

    symbol: npt.NDArray[np.int32]  # index into the tape's symbols
    price: Floats
    volume: Floats  # traded since the previous event
    bid: Floats
    ask: Floats
    at: Floats  # seconds since 1970

    def ticks(self, symbols: Sequence[str]) -> Iterator[Tick]:
        """Return the events as ticks, also those whose price is none."""
        price, volume, at = self.price.tolist(), self.volume.tolist(), self.at.tolist()
        quotes = (self.bid, self.ask)
        bid, ask = (np.where(each != 0, each, self.price).tolist() for each in quotes)
        names = map(symbols.__getitem__, self.symbol.tolist())
        return map(Tick, names, price, volume, bid, ask, at)


EMPTY_CHUNK = Chunk(np.zeros(0, np.int32), *(np.zeros(0) for _ in range(5)))


class Tape:
    """Iterable of chunks, repeatable; `symbols` grows while the tape is read.

    `content` names what the events are computed from, if it does: they are not hashed then.
    """

    def __init__(
        self,
        symbols: Iterable[str],
        chunks: Callable[[Tape], Iterable[Chunk]],
        events: int | None = None,
        content: str = "",
    ) -> None:
        self.symbols = list(symbols)
        self.events = events  # number of events, if known in advance
        self.digest = ""  # of what the last pass read, to its end
        self.wanted: tuple[str, ...] = ()  # symbols that were asked for
        self._chunks = chunks
        self._content = hashlib.sha256(content.encode())
        self._is_hashed = bool(content)
        self._rows: Rows | None = None  # all ticks, if they are in memory

    def __iter__(self) -> Iterator[Chunk]:
        """Yield validated chunks with non-decreasing times; raise RefusedError for other data."""
        last, count = -math.inf, 0
        content = self._content.copy()
        for raw in self._chunks(self):
            if not len(raw.at):
                continue
            chunk = self._validate(raw)
            at = np.maximum(np.maximum.accumulate(chunk.at), last)
            backward = at - chunk.at
            worst = int(backward.argmax())
            if not backward[worst] <= MAX_BACKWARD_S:
                raise RefusedError(
                    f"event {count + worst + 1}, {self.symbols[chunk.symbol[worst]]}: its time"
                    f" is {backward[worst]:.1f} s before the previous event; sort the data by time"
                )
            last, count = float(at[-1]), count + len(at)
            if backward[worst]:
                chunk = chunk._replace(at=at)
            for column in chunk if not self._is_hashed else ():
                content.update(column.data)
            yield chunk
        content.update("\x1f".join(self.symbols).encode())
        self.digest = content.hexdigest()[:16]

    def _validate(self, chunk: Chunk) -> Chunk:
        """Check the columns, because the compiled scan checks no bounds."""
        columns = [np.ascontiguousarray(column, np.float64) for column in chunk[1:]]
        symbol = np.ascontiguousarray(chunk.symbol, np.int32)
        if any(column.shape != symbol.shape for column in columns) or symbol.ndim != 1:
            raise RefusedError("columns of a chunk have different lengths")
        if symbol.min() < 0 or symbol.max() >= len(self.symbols):
            raise RefusedError(
                f"chunk has symbol index {symbol.max()}; expected 0 to {len(self.symbols) - 1}"
            )
        return Chunk(symbol, *columns)

    def select(
        self, symbols: Sequence[str] | None, start: float = -math.inf, end: float = math.inf
    ) -> Tape:
        """Return the ticks of these symbols from `start` on, before `end`."""
        if self._rows is None:
            selected = self._selected_chunks(symbols, start, end)
        else:
            at = self._rows["at"]
            rows = self._rows[bisect_left(at, start) : bisect_left(at, end)]
            if symbols is not None:
                rows = rows[np.isin(self.symbols, symbols)[rows["symbol"]]]
            selected = self._of_sorted(self.symbols, rows)
        selected.wanted = tuple(symbols or self.wanted)
        return selected

    def _selected_chunks(self, symbols: Sequence[str] | None, start: float, end: float) -> Tape:
        wanted = None if symbols is None else set(symbols)

        def chunks(tape: Tape) -> Iterator[Chunk]:
            for chunk in self:
                tape.symbols[:] = self.symbols
                kept = (chunk.at >= start) & (chunk.at < end)
                if wanted is not None:
                    is_wanted = np.array([symbol in wanted for symbol in self.symbols])
                    kept &= is_wanted[chunk.symbol]
                if chunk.at[0] >= end:
                    return
                columns = (column[kept] for column in chunk[1:])
                yield Chunk(chunk.symbol[kept], *columns)

        return Tape(self.symbols, chunks)

    @classmethod
    def of_ticks(cls, ticks: Callable[[], Iterable[Tick]], events: int | None = None) -> Tape:
        """Return a tape of ticks; `ticks` is called for every pass."""

        def chunks(tape: Tape) -> Iterator[Chunk]:
            indices = {symbol: index for index, symbol in enumerate(tape.symbols)}
            source = iter(ticks())
            while rows := list(islice(source, CHUNK)):
                for tick in rows:
                    if tick.symbol not in indices:
                        indices[tick.symbol] = len(indices)
                        tape.symbols.append(tick.symbol)
                values = np.array(
                    [(t.price, t.volume, t.bid, t.ask, t.at) for t in rows], np.float64
                )
                price, volume, bid, ask, at = np.ascontiguousarray(values.T)
                symbol = np.array([indices[tick.symbol] for tick in rows], np.int32)
                yield Chunk(symbol, price, volume, bid, ask, at)

        return cls((), chunks, events)

    @classmethod
    def of_rows(cls, parts: Callable[[], Iterable[FileRows]]) -> Tape:
        """Return a tape of ticks; `parts` is called for every pass."""

        def chunks(tape: Tape) -> Iterator[Chunk]:
            indices = {symbol: index for index, symbol in enumerate(tape.symbols)}
            for part in parts():
                names, inverse = np.unique(part.symbols.astype(str), return_inverse=True)
                for name in map(str, names):
                    if name not in indices:
                        indices[name] = len(indices)
                        tape.symbols.append(name)
                symbol = np.array([indices[str(name)] for name in names], np.int32)[inverse]
                yield _chunk(symbol, part)

        return cls((), chunks)

    @classmethod
    def of_table(cls, parts: Iterable[FileRows]) -> Tape:
        """Return a tape of ticks that are read now, held in memory and sorted by time."""
        table = RowTable(_TICK_FIELDS)
        for part in parts:
            table.add(part)
        symbols, rows = table.finish()
        sort_rows(rows, ("at",))
        return cls._of_sorted(symbols, rows)

    @classmethod
    def _of_sorted(cls, symbols: Sequence[str], rows: Rows) -> Tape:
        def chunks(_tape: Tape) -> Iterator[Chunk]:
            for first in range(0, len(rows), CHUNK):
                some = rows[first : first + CHUNK]
                yield Chunk(some["symbol"], *(some[name] for name in _TICK_FIELDS))

        tape = cls(symbols, chunks, len(rows))
        tape._rows = rows
        for name in rows.dtype.names or ():  # whole columns: the chunks do not change the digest
            for some in windows(rows):
                tape._content.update(some[name].tobytes())
        tape._is_hashed = True
        return tape

    @classmethod
    def of_frame(
        cls, frame: Any, mapping: dict[str, str] | None = None, **layout: Any
    ) -> Tape | BarTape:
        """Return a tape of a pandas or polars frame, sorted by time.

        `layout` are fields of `qts.feed.FileLayout`: symbol, timeframe, tz, label, market.
        """
        rows = read_frame(frame, _layout(mapping, layout))
        return BarTape.of_rows([rows]) if rows.is_bars else cls.of_table([rows])

    @classmethod
    def read(
        cls,
        data: str | Path,
        mapping: dict[str, str] | None = None,
        *,
        volume: Volume = "auto",
        **layout: Any,
    ) -> Tape | BarTape:
        """Return a tape of records, of a CSV or Parquet file, or of a folder of either.

        `mapping` names the column of a field, as in {"time": "Date"}; `layout` are fields of
        `qts.feed.FileLayout`. The first part is read at once, so that bad data is refused early.
        """
        return load_tape(data, volume, _layout(mapping, layout))


def _chunk(symbol: npt.NDArray[np.int32], part: FileRows) -> Chunk:
    return Chunk(symbol, *(part.columns[name] for name in _TICK_FIELDS))


DAY_S = 23_400  # regular trading session
CHUNK_S = 60
_OPENS = datetime(2026, 11, 16, 9, 0)  # noqa: DTZ001 - the simulator takes Korean time
_EPOCH_S = (
    date(1970, 1, 1).toordinal() * 86_400 + 9 * 3600
)  # the simulator counts seconds in Korean time
_EDGES = np.array([float(edge) for edge, _ in KRX_TICKS])
_STEPS = np.array([float(tick) for _, tick in KRX_TICKS])


def simulated_day(seed: int, symbols: int = 2500, seconds: int = DAY_S) -> Tape:
    """Return one bar per symbol and second; deterministic, and read a minute at a time."""
    codes = _market(seed, symbols).universe.codes
    content = f"simulated day of seed {seed}, {seconds} s"
    return Tape(codes, lambda _tape: _chunks(seed, symbols, seconds), symbols * seconds, content)


def _market(seed: int, symbols: int) -> Any:
    config = MarketConfig(seed=seed, symbols=symbols, start=_OPENS)
    return KisSimulator(KisSimulatorConfig(market=config)).market


def _chunks(seed: int, symbols: int, seconds: int) -> Iterator[Chunk]:
    market = _market(seed, symbols)
    while market.phase.kind != "regular":
        for _ in market.advance(market.time + 1):
            pass
    indices = np.arange(symbols, dtype=np.int32)
    for start in range(0, seconds, CHUNK_S):
        rows = min(CHUNK_S, seconds - start)
        price, volume = np.empty((rows, symbols)), np.empty((rows, symbols))
        bid, ask, at = np.empty((rows, symbols)), np.empty((rows, symbols)), np.empty(rows)
        for row in range(rows):
            price[row] = market.price
            volume[row] = np.where(market.traded, market.size, 0)
            step = _STEPS[np.searchsorted(_EDGES, price[row], side="right")]
            bid[row] = np.where(market.at_ask, price[row] - step, price[row])
            ask[row] = np.where(market.at_ask, price[row], price[row] + step)
            at[row] = market.time - _EPOCH_S
            for _ in market.advance(market.time + 1):
                pass
        flat = (price.ravel(), volume.ravel(), bid.ravel(), ask.ravel())
        yield Chunk(np.tile(indices, rows), *flat, np.repeat(at, symbols))


def _layout(mapping: dict[str, str] | None, given: dict[str, Any]) -> FileLayout:
    """Return the layout of columns; a timeframe may be a text, as in 1d."""
    if (timeframe := given.get("timeframe")) is not None:
        check_name("timeframe", timeframe, list(Timeframe))
        given = {**given, "timeframe": Timeframe(timeframe)}
    return FileLayout(mapping=mapping or {}, **given)


def load_tape(
    data: str | Path, volume: Volume = "auto", layout: FileLayout | None = None
) -> Tape | BarTape:
    """Return records, files of bars or ticks, or a folder of either as a tape.

    A tape of records or of one file of ticks reads them while it runs; the first is read at once,
    so that bad data is refused early. Bars, and the files of a folder, are read at once into one
    table, part by part, and sorted.
    """
    data, layout = Path(data), layout or FileLayout()
    if is_recorded(data):
        next(_ticks([data], volume != "tick"), None)
        return Tape.of_ticks(lambda: _ticks([data], volume != "tick"))
    files = find_files(data)
    parts = _rows(files, layout, volume)
    first = next(parts, None)
    if first is None:
        return Tape.of_rows(tuple)
    if len(files) == 1 and not first.is_bars:
        return Tape.of_rows(lambda: _rows(files, layout, volume))
    every = _of_one_kind(chain([first], parts), first.is_bars, data)
    return BarTape.of_rows(every) if first.is_bars else Tape.of_table(every)


def _of_one_kind(parts: Iterable[FileRows], is_bars: bool, data: Path) -> Iterator[FileRows]:
    for part in parts:
        if part.is_bars != is_bars:
            raise RefusedError(f"{data} holds files of bars and files of ticks; expected one kind")
        yield part


def _rows(files: list[Path], layout: FileLayout, volume: Volume) -> Iterator[FileRows]:
    """Yield the rows of the files; a cumulative volume is converted to the volume of each tick."""
    last_volume: dict[str, float] = {}
    for file in files:
        for part in read_market_file(file, layout):
            if volume == "day" and not part.is_bars:
                totals = zip(part.symbols, part.columns["volume"].tolist(), strict=True)
                part.columns["volume"] = np.array(
                    [_since(last_volume, symbol, total) for symbol, total in totals]
                )
            yield part


def _since(last_volume: dict[str, float], symbol: str, total: float) -> float:
    volume = max(0.0, total - last_volume.get(symbol, total))
    last_volume[symbol] = total
    return volume


def recorded_tape(files: Sequence[Path]) -> Tape:
    """Return recorded files as one tape, in the order of the files."""
    return Tape.of_ticks(lambda: _ticks(files, cumulative=True))


def _ticks(data: Sequence[Path], cumulative: bool) -> Iterator[Tick]:
    """Yield the recorded ticks; a cumulative volume is converted to the volume of each tick."""
    ticks = TickBuilder()
    for path in data:
        for record in read_records(path):
            tick = ticks.from_record(record, cumulative=cumulative)
            if tick is not None:
                yield tick
