"""Instruments of a backtest, which has no database: from files, else by a documented default."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from qts.domain import (
    Instrument,
    Instruments,
    RefusedError,
    assumed_instrument,
    krx_instrument,
    upbit_instrument,
)
from qts.feed import CATALOGUE, read_catalogue
from qts.venues import parse_master, unpack_master

Venue = Literal["auto", "kis", "upbit"]

_MASTER = (".mst", ".mst.zip")


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
