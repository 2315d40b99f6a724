"""Candles of one symbol, from the ticks a run recorded: found by bytes, not by reading everything.

The file of the moment grows; it is searched from where the last search ended. Older files are
compressed and are looked into only while they are few and fresh.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import msgspec
import zstandard

from qts.domain import RefusedError
from qts.feed import PatternRecord

SYMBOLS = 32  # kept at once
BARS = 400
TICKS = 50_000
OLD_FILES = 3
OLD_BYTES = 200_000_000
_DECODER = msgspec.json.Decoder(PatternRecord)
_LARGEST_LINE = 65_536


class Candle(msgspec.Struct, array_like=True):
    """`at`: the second its bar begins."""

    at: int
    open: float
    high: float
    low: float
    close: float
    ticks: int


class _Seen:
    """What was found of one symbol, and how far each file was searched."""

    def __init__(self) -> None:
        self.ticks: list[tuple[float, float]] = []
        self.searched: dict[str, int] = {}


class Candles:
    """Slow: call it from a worker thread, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, _Seen] = {}

    def of(self, symbol: str, bar_s: int) -> list[Candle]:
        if not symbol or len(symbol) > 40 or not symbol.replace("-", "").isalnum():
            raise RefusedError(f"{symbol!r} is no symbol; expected one like 005930 or KRW-BTC")
        seen = self._seen.pop(symbol, None) or _Seen()
        while len(self._seen) >= SYMBOLS:
            del self._seen[next(iter(self._seen))]
        self._seen[symbol] = seen
        self._search(symbol, seen)
        return bars(seen.ticks, bar_s)

    def _search(self, symbol: str, seen: _Seen) -> None:
        needle = f'"symbol":"{symbol}"'.encode()
        found = []
        for path in self._packed(seen):
            seen.searched[path.name] = 1
            found += _ticks_in(_unpacked(path), needle, 0)[0]
        for path in sorted(self._folder.glob("*.jsonl")):
            begin = seen.searched.get(path.name, 0)
            try:
                found_here, seen.searched[path.name] = _search_file(path, needle, begin)
            except FileNotFoundError:
                continue  # it was compressed in between; what it held was seen
            found += found_here
        if found:
            seen.ticks = sorted([*seen.ticks, *found])[-TICKS:]

    def _packed(self, seen: _Seen) -> list[Path]:
        paths = sorted(self._folder.glob("*.jsonl.zst"))[-OLD_FILES:]
        return [
            path
            for path in paths
            if path.name not in seen.searched
            and path.name.removesuffix(".zst") not in seen.searched
        ]


def bars(ticks: list[tuple[float, float]], bar_s: int) -> list[Candle]:
    """In order of time; an empty bar is left out."""
    found: list[Candle] = []
    for at, price in ticks:
        begin = int(at // bar_s) * bar_s
        if not found or found[-1].at != begin:
            found.append(Candle(begin, price, price, price, price, 1))
            continue
        bar = found[-1]
        bar.high, bar.low = max(bar.high, price), min(bar.low, price)
        bar.close = price
        bar.ticks += 1
    return found[-BARS:]


def _search_file(path: Path, needle: bytes, begin: int) -> tuple[list[tuple[float, float]], int]:
    with path.open("rb") as file:
        size = path.stat().st_size
        if size <= begin:
            return [], begin
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
            return _ticks_in(content, needle, begin)


def _ticks_in(
    content: bytes | mmap.mmap, needle: bytes, begin: int
) -> tuple[list[tuple[float, float]], int]:
    """Ticks of whole lines, and where the last whole line ended."""
    end = content.rfind(b"\n") + 1
    found = []
    at = content.find(needle, begin, end)
    while at >= 0:
        first = max(content.rfind(b"\n", max(begin - 1, at - _LARGEST_LINE, 0), at) + 1, begin)
        last = content.find(b"\n", at, end)
        try:
            snapshot = _DECODER.decode(content[first:last]).snapshot
            found.append((snapshot.meta.time.timestamp(), snapshot.observation.inputs.price))
        except msgspec.DecodeError:
            pass
        at = content.find(needle, last, end)
    return found, max(begin, end)


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read(OLD_BYTES)
