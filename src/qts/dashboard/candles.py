"""Candles of one symbol, from the records of a run.

Records are found by a byte search instead of decoding every line. The current file grows and is
searched from where the last search ended; of the compressed older files only the newest are read.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import msgspec
import zstandard

from qts.domain import RefusedError
from qts.feed import PatternRecord

MAX_SYMBOLS = 32  # cached at once
MAX_BARS = 400
MAX_TICKS = 50_000
OLD_FILES = 3
OLD_BYTES = 200_000_000
_DECODER = msgspec.json.Decoder(PatternRecord)
_MAX_LINE = 65_536
_Tick = tuple[float, float, float]  # time, price, volume of the day so far


class Candle(msgspec.Struct, array_like=True):
    """Bar that begins at the second `at`."""

    at: int
    open: float
    high: float
    low: float
    close: float
    ticks: int
    volume: float  # traded since the last tick before it


class _SymbolTicks:
    """Ticks found of one symbol, and how far each file was searched."""

    def __init__(self) -> None:
        self.ticks: list[_Tick] = []
        self.searched: dict[str, int] = {}


class Candles:
    """Reader of candles; blocking, for one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cached: dict[str, _SymbolTicks] = {}

    def of(self, symbol: str, bar_s: int) -> list[Candle]:
        if not symbol or len(symbol) > 40 or not symbol.replace("-", "").isalnum():
            raise RefusedError(f"invalid symbol {symbol!r}; expected one like 005930 or KRW-BTC")
        known = self._cached.pop(symbol, None) or _SymbolTicks()
        while len(self._cached) >= MAX_SYMBOLS:
            del self._cached[next(iter(self._cached))]
        self._cached[symbol] = known
        self._search(symbol, known)
        return bars(known.ticks, bar_s)

    def _search(self, symbol: str, known: _SymbolTicks) -> None:
        needle = f'"symbol":"{symbol}"'.encode()
        found = []
        for path in self._compressed(known):
            known.searched[str(path)] = 1
            found += _ticks_in(_decompress(path), needle, 0)[0]
        for path in sorted(self._folder.rglob("*.jsonl")):
            begin = known.searched.get(str(path), 0)
            try:
                found_here, known.searched[str(path)] = _search_file(path, needle, begin)
            except FileNotFoundError:
                continue  # compressed in between; its ticks are known
            found += found_here
        if found:
            known.ticks = sorted([*known.ticks, *found])[-MAX_TICKS:]

    def _compressed(self, known: _SymbolTicks) -> list[Path]:
        # In a run on several venues each has a separate folder.
        paths = sorted(self._folder.rglob("*.jsonl.zst"), key=lambda path: path.name)[-OLD_FILES:]
        return [
            path
            for path in paths
            if str(path) not in known.searched
            and str(path).removesuffix(".zst") not in known.searched
        ]


def bars(ticks: list[_Tick], bar_s: int) -> list[Candle]:
    """Return the bars of ticks in time order, without empty ones."""
    found: list[Candle] = []
    before = ticks[0][2] if ticks else 0.0
    for at, price, day_volume in ticks:
        traded = max(0.0, day_volume - before)  # a smaller one: another day has begun
        before = day_volume
        begin = int(at // bar_s) * bar_s
        if not found or found[-1].at != begin:
            found.append(Candle(begin, price, price, price, price, 1, traded))
            continue
        bar = found[-1]
        bar.high, bar.low = max(bar.high, price), min(bar.low, price)
        bar.close = price
        bar.ticks += 1
        bar.volume += traded
    return found[-MAX_BARS:]


def _search_file(path: Path, needle: bytes, begin: int) -> tuple[list[_Tick], int]:
    with path.open("rb") as file:
        size = path.stat().st_size
        if size <= begin:
            return [], begin
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
            return _ticks_in(content, needle, begin)


def _ticks_in(content: bytes | mmap.mmap, needle: bytes, begin: int) -> tuple[list[_Tick], int]:
    """Return the ticks of complete lines, and where the last complete line ends."""
    end = content.rfind(b"\n") + 1
    found = []
    at = content.find(needle, begin, end)
    while at >= 0:
        first = max(content.rfind(b"\n", max(begin - 1, at - _MAX_LINE, 0), at) + 1, begin)
        last = content.find(b"\n", at, end)
        try:
            snapshot = _DECODER.decode(content[first:last]).snapshot
            inputs = snapshot.observation.inputs
            found.append((snapshot.meta.time.timestamp(), inputs.price, inputs.volume))
        except msgspec.DecodeError:
            pass
        at = content.find(needle, last, end)
    return found, max(begin, end)


def _decompress(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read(OLD_BYTES)
