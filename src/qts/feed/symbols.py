"""Symbols to poll: from a file, or from the lists of stocks that KIS publishes.

KIS publishes `kospi_code.mst.zip` and `kosdaq_code.mst.zip`: CP949, a row for each product, whose
last columns have a fixed width and begin with its type (ST: a stock).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from qts.domain import RefusedError

_LISTS = (".mst", ".mst.zip")
_TAIL = {"kospi": 227, "kosdaq": 221}
_STOCK = "ST"


def read_symbols(path: Path | None) -> list[str]:
    """Read the symbols of a file, or of all lists in a folder; each once, in order."""
    if path is None:
        raise RefusedError(
            "feed.symbols is not set; name a file of symbols, one per line, or a folder with "
            "KIS's kospi_code.mst.zip and kosdaq_code.mst.zip"
        )
    try:
        symbols = list(dict.fromkeys(_symbols_in(path)))
    except (OSError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) else f"unreadable: {error}"
        raise RefusedError(f"feed.symbols, {path}: {reason}") from None
    if not symbols:
        raise RefusedError(
            f"feed.symbols, {path}: holds no symbol; expected one per line, as in 005930"
        )
    for symbol in symbols:
        if not symbol.isascii() or not symbol.replace("-", "").isalnum() or len(symbol) > 20:
            raise RefusedError(
                f"feed.symbols, {path}: {symbol[:40]!r} is not a symbol, as in 005930"
            )
    return symbols


def _symbols_in(path: Path) -> Iterator[str]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name.endswith(_LISTS):
                yield from _listed_stocks(file)
    elif path.name.endswith(_LISTS):
        yield from _listed_stocks(path)
    else:
        for line in path.read_text("utf-8").splitlines():
            if word := line.split("#")[0].strip():
                yield word


def _listed_stocks(path: Path) -> Iterator[str]:
    width = next((width for name, width in _TAIL.items() if name in path.name), None)
    if width is None:
        raise RefusedError(
            f"feed.symbols, {path}: expected the names KIS gives: kospi_code, kosdaq_code"
        )
    for row in _content(path).decode("cp949").splitlines():
        tail = row[-width:]
        if tail.startswith(_STOCK) and len(row) > width:
            yield row[:9].strip()


def _content(path: Path) -> bytes:
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".mst"))
