"""What a run records of itself: samples in the database, ticks in files, lines of its logs.

A sample, one a minute, has the account's value and counts of the run. Candles of a symbol are made
of the recorded ticks.
"""

from __future__ import annotations

import asyncio
import mmap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError
from qts.feed import PatternRecord

log = telemetry.logger("dashboard")

INTERVAL_S = 60.0  # from sample to sample
_INSERT = (
    "INSERT INTO run_sample (broker, account, started_at, taken_at, equity, cash, unrealised,"
    " counts) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING"
)
# The samples of a day, and of each run that began before it the last one before the day.
_SELECT = """
SELECT started_at, taken_at, equity, cash, unrealised, counts
  FROM run_sample
 WHERE broker = $1 AND account = $2 AND taken_at >= $3 AND taken_at < $4
UNION ALL
SELECT last.*
  FROM (SELECT DISTINCT started_at FROM run_sample
         WHERE broker = $1 AND account = $2 AND taken_at >= $3 AND taken_at < $4
           AND started_at < $3) AS run
 CROSS JOIN LATERAL (
        SELECT started_at, taken_at, equity, cash, unrealised, counts
          FROM run_sample
         WHERE broker = $1 AND account = $2 AND taken_at < $3 AND started_at = run.started_at
         ORDER BY taken_at DESC LIMIT 1) AS last
 ORDER BY taken_at
"""


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start of a run, and figures of its last minute."""

    ticks: int = 0
    p0_events: int = 0
    refusals: dict[str, int] = {}
    precheck_refusals: dict[str, int] = {}
    strategy_refusals: dict[str, int] = {}  # by strategy and code, as "breakout G_CAPITAL"
    polls_failed: int = 0
    quotes_lost: int = 0  # not recorded
    # Of the last minute:
    p0_p50_ms: float = 0.0
    p0_p99_ms: float = 0.0
    p0_max_ms: float = 0.0
    scan_lag_s: float = 0.0
    streaming: bool = False
    market_open: bool = True
    held: Mapping[str, tuple[Decimal, Decimal]] = {}  # by strategy: unrealised profit and value


class RunSample(msgspec.Struct, frozen=True, kw_only=True):
    """Row of run_sample."""

    started_at: datetime
    taken_at: datetime
    equity: Decimal
    cash: Decimal
    unrealised: Decimal
    counts: RunCounts


class AccountValue(msgspec.Struct, frozen=True):
    equity: Decimal
    cash: Decimal
    unrealised: Decimal


class SampleWriter:
    """Writer of the samples of one run."""

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        started_at: datetime,
        take: Callable[[], tuple[AccountValue, RunCounts]],
    ) -> None:
        self._database = database
        self._run = (*account, started_at)
        self._take = take
        self._written_at: datetime | None = None

    async def write_due(self, now: datetime) -> None:
        """Write the first sample, and one a minute."""
        last = self._written_at
        if last is None or (now - last).total_seconds() >= INTERVAL_S:
            await self.write(now)

    async def write(self, now: datetime) -> None:
        """Write a sample, unless the account is not loaded yet."""
        value, counts = self._take()
        if not value.equity:
            return
        row = (value.equity, value.cash, value.unrealised, msgspec.to_builtins(counts))
        try:
            await self._database.execute(_INSERT, *self._run, now, *row)
        except OperationError as error:
            if due := telemetry.log_every(60.0, "run sample"):
                log.warning("sample of the run not stored", error=str(error), **due)
        else:
            self._written_at = now


async def load_samples(
    database: Database, account: AccountKey, began: datetime, ended: datetime
) -> list[RunSample]:
    """Return the samples of a period, and the last one before it of a run that goes on in it."""
    rows = await database.fetch(_SELECT, *account, began, ended)
    return [msgspec.convert(dict(row.items()), RunSample) for row in rows]


def counted(samples: Sequence[RunSample], began: datetime) -> RunCounts:
    """Return what the period had: the growth of each run's counts, and the worst minute."""
    totals: Counter[str] = Counter()
    names = ("refusals", "precheck_refusals", "strategy_refusals")
    refusals: dict[str, Counter[str]] = {name: Counter() for name in names}
    worst: dict[str, Any] = {
        "p0_p50_ms": 0.0,
        "p0_p99_ms": 0.0,
        "p0_max_ms": 0.0,
        "scan_lag_s": 0.0,
    }
    for run in {each.started_at for each in samples}:
        own = [each for each in samples if each.started_at == run]
        before = own[0].counts if own[0].taken_at < began else RunCounts()
        last = own[-1].counts
        for name in ("ticks", "p0_events", "polls_failed", "quotes_lost"):
            totals[name] += getattr(last, name) - getattr(before, name)
        for name, codes in refusals.items():
            codes.update(_grown(getattr(before, name), getattr(last, name)))
    for sample in samples:
        if sample.taken_at >= began:
            for name, value in worst.items():
                worst[name] = max(value, getattr(sample.counts, name))
    codes_of: dict[str, Any] = {name: dict(each.most_common()) for name, each in refusals.items()}
    return msgspec.convert({**totals, **worst, **codes_of}, RunCounts)


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {
        code: count - before.get(code, 0)
        for code, count in after.items()
        if count > before.get(code, 0)
    }


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
    """Reader of candles; blocking, for one thread at a time.

    Records are found by a byte search instead of decoding every line. The current file grows and is
    searched from where the last search ended; of the compressed older files only the newest are
    read.
    """

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


RUN = "run"  # name of the log of the run
MAX_LINES = 300  # of a log
MAX_BYTES = 1_000_000  # of a log, from its end
_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_HEAD = ("timestamp", "level", "logger", "event")


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; a line of another program has its text only."""

    at: str = ""
    level: str = ""
    logger: str = ""
    text: str


class LogsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The logs there are, and lines of one of them, the newest first."""

    files: list[str] = []
    file: str = ""
    lines: list[LogLine] = []
    has_run_log: bool = False


class LogFiles:
    """Reader of the log files of a home; `run_log` is the file of the run, None: it has none."""

    def __init__(self, home: Path, run_log: Path | None) -> None:
        self._folder = home / "log"
        self._run_log = run_log

    def files(self) -> dict[str, Path]:
        """Return the files by name, the one of the run first."""
        found = {} if self._run_log is None else {RUN: self._run_log}
        return found | {path.stem: path for path in sorted(self._folder.glob("*.log"))}

    async def logs(self, file: str = "", level: str = "debug", find: str = "") -> LogsPage:
        """Return the newest lines of a file that have a level and contain a text."""
        files = self.files()
        name = file or next(iter(files), "")
        if name not in files:
            if file:
                raise RefusedError(f"no log {name[:40]!r}; there are: {', '.join(files) or 'none'}")
            return LogsPage()
        lines = await asyncio.to_thread(tail, files[name], level, find)
        has_run_log = self._run_log is not None
        return LogsPage(files=[*files], file=name, lines=lines, has_run_log=has_run_log)


def tail(path: Path, level: str = "debug", find: str = "") -> list[LogLine]:
    """Return the newest matching lines of the file's last megabyte, the newest first."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - MAX_BYTES)
            file.seek(start)
            content = file.read(MAX_BYTES)
    except OSError:
        return []  # rotated, or not written yet
    texts = content.decode("utf-8", "replace").splitlines()[1 if start else 0 :]
    found: list[LogLine] = []
    for text in reversed(texts):
        line = _parse(text)
        is_severe = not line.level or _LEVELS.get(line.level, 1) >= _LEVELS[level]
        if text.strip() and is_severe and find.lower() in text.lower():
            found.append(line)
            if len(found) == MAX_LINES:
                break
    return found


def _parse(text: str) -> LogLine:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return LogLine(text=telemetry.redact_text(text))
    at, level, logger, event = (str(fields.pop(name, "")) for name in _HEAD)
    rest = " ".join(f"{name}={value}" for name, value in fields.items())
    return LogLine(at=at, level=level, logger=logger, text=f"{event} {rest}".strip())
