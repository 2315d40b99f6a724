"""Data of a backtest: files, records, the catalogue or a simulated day; and its instruments."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from qts.backtest.bar_tape import BarTape
from qts.backtest.tape import Tape, Volume, load_tape, simulated_day
from qts.domain import (
    Instrument,
    Instruments,
    Market,
    RefusedError,
    Timeframe,
    assumed_instrument,
    krx_instrument,
    nearest_name,
    upbit_instrument,
)
from qts.feed import CATALOGUE, FileLayout, FileRows, read_catalogue
from qts.history import BarCatalogue, Series
from qts.venues import parse_master, unpack_master

Venue = Literal["auto", "kis", "upbit"]
_MASTER = (".mst", ".mst.zip")


class DataSelection(msgspec.Struct, frozen=True, kw_only=True):
    """What a backtest reads: exactly one source, and the symbols and the time of it."""

    data: Path | None = None
    """Records, or files of ticks or bars."""
    bars: Timeframe | None = None
    """Bars of the catalogue."""
    seed: int | None = None
    """Seed of a simulated day."""
    size: tuple[int, int] = (2500, 23_400)
    """Symbols and seconds of the simulated day."""
    symbols: tuple[str, ...] | None = None
    start: float = -np.inf
    end: float = np.inf
    venue: Venue = "auto"
    volume: Volume = "auto"
    layout: FileLayout = FileLayout()


class SelectedData(NamedTuple):
    tape: Tape | BarTape
    source: str  # where it is read from, for the report


def select_tape(chosen: DataSelection, home: Path) -> SelectedData:
    """Return the tape of a selection; raise RefusedError if it names no source, or several."""
    sources = (chosen.data, chosen.bars, chosen.seed)
    if sum(each is not None for each in sources) != 1:
        raise RefusedError("expected one of DATA, --bars TIMEFRAME and --simulated-day SEED")
    tape: Tape | BarTape
    if chosen.seed is not None:
        tape, source = simulated_day(chosen.seed, *chosen.size), f"simulated day {chosen.seed}"
    elif chosen.data is not None:
        tape = load_tape(chosen.data, chosen.volume, chosen.layout)
        source = str(chosen.data)
    else:
        tape, source = _catalogue_tape(chosen, home)
    if chosen.symbols is None and np.isinf(chosen.start) and np.isinf(chosen.end):
        return SelectedData(tape, source)
    return SelectedData(tape.select(chosen.symbols, chosen.start, chosen.end), source)


def _catalogue_tape(chosen: DataSelection, home: Path) -> tuple[BarTape, str]:
    """Return bars of the catalogue; simulated ones only where there are no others."""
    kind = chosen.bars or Timeframe.D1
    problem = ""
    for simulated in (False, True):
        catalogue = BarCatalogue(home, simulated=simulated)
        held = {each.symbol: each for each in catalogue.series() if _is_possible(each, chosen)}
        wanted = chosen.symbols or sorted(held)
        missing = [symbol for symbol in wanted if symbol not in held]
        if wanted and not missing:
            parts = (_rows(catalogue, held[symbol], chosen) for symbol in wanted)
            source = "the catalogue, simulated bars" if simulated else "the catalogue"
            return BarTape.of_rows(parts, wanted), source
        if missing and held and not problem:
            near = nearest_name(missing[0], held)
            hint = f"; did you mean {near}?" if near else ""
            problem = f"the catalogue has no {kind} bars of {', '.join(missing)}{hint}"
    raise RefusedError(
        problem
        or f"the catalogue has no {kind} bars of "
        f"{', '.join(chosen.symbols or ()) or 'any symbol'}; see qts data download, qts data list"
    )


def _is_possible(series: Series, chosen: DataSelection) -> bool:
    market = {"kis": Market.KRX, "upbit": Market.UPBIT}.get(chosen.venue)
    return market in (None, series.market) and series.kind == chosen.bars


def _rows(catalogue: BarCatalogue, series: Series, chosen: DataSelection) -> FileRows:
    rows = catalogue.rows(series, end=chosen.end)  # those before --from are for the warm-up
    symbols = np.full(len(rows), series.symbol, object)
    columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
    return FileRows(Timeframe(series.kind), symbols, columns)


def default_instruments(venue: Venue = "auto") -> Instruments:
    """Return instruments for any symbol: KRX stocks for `kis`, coins in won for `upbit`.

    `auto` reads the form of the symbol, once, where the data enters: Upbit's have a dash.
    """
    return Instruments(default=_DEFAULTS[venue])


def load_instruments(file: Path | None, data: Path | None, venue: Venue) -> Instruments:
    """Return the instruments of a backtest.

    `file` is a catalogue, a master file of KIS or a folder of them. Without it, the catalogue in
    the folder of the data applies, or in the one above; symbols that no file has, and all of them
    without a file, are those of `default_instruments`. Halts and delistings of a file are those of
    its day, not of the data, and do not apply.
    """
    found: list[Instrument] = []
    if file is not None:
        found = _read(file)
    elif data is not None:
        folder = data if data.is_dir() else data.parent
        for place in (folder / CATALOGUE, folder.absolute().parent / CATALOGUE):
            if place.is_file():
                found = read_catalogue(place).instruments
                break
    calm = {"halted": False, "delisted": False, "liquidation": False}
    return Instruments((replace(each, **calm) for each in found), _DEFAULTS[venue])


_DEFAULTS = {"auto": assumed_instrument, "kis": krx_instrument, "upbit": upbit_instrument}


def _read(path: Path) -> list[Instrument]:
    if path.is_dir():
        files = [each for each in sorted(path.iterdir()) if each.name.endswith(_MASTER)]
        if not files:
            return _read(path / CATALOGUE)
        return [instrument for each in files for instrument in _read(each)]
    if not path.name.endswith(_MASTER):
        return read_catalogue(path).instruments
    board = "KOSDAQ" if "kosdaq" in path.name else "KOSPI"
    try:
        data = path.read_bytes()
        return parse_master(board, unpack_master(data) if path.suffix == ".zip" else data)
    except (OSError, ValueError) as error:
        raise RefusedError(f"--instruments {path}: {error}") from None
