"""Symbols to poll: from a file, or the stocks in master files of KIS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qts.domain import InstrumentClass, RefusedError
from qts.venues import parse_master, unpack_master

_LISTS = (".mst", ".mst.zip")


def read_symbols(path: Path | None) -> list[str]:
    """Read the symbols of a file, or of all lists in a folder; each once, in order."""
    if path is None:
        raise RefusedError(
            "feed.symbols is not set; name a file of symbols, one per line, or a folder with "
            "KIS's kospi_code.mst.zip and kosdaq_code.mst.zip"
        )
    try:
        symbols = list(dict.fromkeys(_symbols_in(path)))
    except (OSError, ValueError) as error:
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
    board = next((name for name in ("kospi", "kosdaq") if name in path.name), None)
    if board is None:
        raise RefusedError(
            f"feed.symbols, {path}: expected the names KIS gives: kospi_code, kosdaq_code"
        )
    data = path.read_bytes()
    for product in parse_master(
        board.upper(), unpack_master(data) if path.suffix == ".zip" else data
    ):
        if product.kind is InstrumentClass.STOCK:
            yield product.symbol
