"""Columns of files that others have written: their names, times and numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Literal, NamedTuple, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import Market, RefusedError, Timeframe, assumed_instrument, check_name, nearest_name
from qts.feed.calendar import SEOUL, TradingCalendar
from qts.venues import day_close

Floats = npt.NDArray[np.float64]

PRICES = ("open", "high", "low", "close")
BAR_COLUMNS = ("at", *PRICES, "volume", "value")
TICK_COLUMNS = ("at", "price", "volume", "bid", "ask", "venue_at")
# The names that are recognised without a mapping, without case, spaces, _, < and >.
_NAMES = {
    "time": "time timestamp datetime date at opentime candledatetimeutc 일시 일자 날짜",
    "symbol": "symbol ticker code 종목코드",
    "open": "open o openingprice openprice 시가",
    "high": "high h highprice 고가",
    "low": "low l lowprice 저가",
    "close": "close c closeprice 종가",
    "price": "price last lastprice tradeprice 체결가 현재가",
    "volume": "volume vol v qty quantity size tradevolume candleacctradevolume 거래량",
    "value": "value turnover quotevolume candleacctradeprice 거래대금",
    "bid": "bid bidprice bestbid",
    "ask": "ask askprice bestask",
    "venue_at": "venueat",
}
FIELDS = tuple(_NAMES)
_ALIASES = {alias: name for name, aliases in _NAMES.items() for alias in aliases.split()}
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)
_EPOCH = re.compile(r"\d+(\.\d+)?", re.ASCII)
_PARSED = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_FROM_MIDNIGHT = (Market.UPBIT, Market.OTHER)  # their day is that of UTC


class FileLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How to read a file of bars or ticks; what is not given is recognised, never guessed."""

    mapping: dict[str, str] = {}
    """Column of each field, as in {"time": "Date", "price": "Last"}."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a CSV file without a header."""
    symbol: str | None = None
    """Symbol of all rows; `{file}` is the name of the file without its endings."""
    market: Market | None = None
    """Decides when a day closes; unset: the market of the symbol."""
    timeframe: Timeframe | None = None
    """Length of the bars; files of bars need it."""
    tz: str | None = None
    """Time zone of times without an offset, such as Asia/Seoul."""
    label: Literal["start", "close"] = "start"
    """Whether the time of a bar is its start or its close."""


class EncodedColumn(Sequence[Any]):
    """Column of a file of columns: numbers that stand for its values, which are made on demand."""

    def __init__(self, numbers: npt.NDArray[Any], decode: Callable[[], list[Any]]) -> None:
        self.numbers = numbers
        self._decode = decode

    @functools.cached_property
    def _values(self) -> list[Any]:
        return self._decode()

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self.numbers)


class Instants(EncodedColumn):
    """Times with a zone; the numbers are microseconds since 1970."""


class Texts(EncodedColumn):
    """Texts; the numbers are places in `distinct`."""

    def __init__(self, numbers: npt.NDArray[Any], distinct: list[str]) -> None:
        super().__init__(numbers, lambda: [distinct[number] for number in numbers.tolist()])
        self.distinct = distinct


class RawColumns(NamedTuple):
    """Columns of a part of a file as they were read."""

    values: Mapping[str, Sequence[Any] | npt.NDArray[Any]]
    where: Callable[[int], str]
    """Name of a row in an error: file and line."""
    thousands: bool = True
    """Whether 1,000 is a thousand; a file separated by semicolons may mean 1."""


class FileRows(NamedTuple):
    """Bars or ticks of a part of a file."""

    timeframe: Timeframe | None
    """Length of the bars; None: ticks."""
    symbols: npt.NDArray[np.object_]
    columns: dict[str, Floats]

    @property
    def is_bars(self) -> bool:
        return self.timeframe is not None


def convert_columns(raw: RawColumns, layout: FileLayout, file: str = "the data") -> FileRows:
    """Return validated rows; refuse what is unclear or wrong, with its file and line."""
    fields = match_columns(list(raw.values), layout, file)
    is_bars = "close" in fields
    if is_bars and layout.timeframe is None:
        raise RefusedError(f"{file} holds bars; name their length with --timeframe, as in 1d or 1m")
    symbols = _symbols(raw, fields.get("symbol"), layout)
    if layout.market is None and len(symbols):
        layout = msgspec.structs.replace(layout, market=assumed_instrument(symbols[0]).market)
    times = _joined(raw, fields["time"])
    at = _times(times, layout, is_bars, raw.where)
    columns = {"at": at}
    for name in (BAR_COLUMNS if is_bars else TICK_COLUMNS)[1:]:
        if name in fields:
            columns[name] = _numbers(raw, fields[name], name)
        else:
            columns[name] = np.zeros(len(at))
    _validate(columns, is_bars, raw.where)
    return FileRows(layout.timeframe if is_bars else None, symbols, columns)


def _symbols(raw: RawColumns, column: str | None, layout: FileLayout) -> npt.NDArray[np.object_]:
    if column is None:
        return np.full(len(next(iter(raw.values.values()))), layout.symbol, object)
    values = raw.values[column]
    distinct = values.distinct if isinstance(values, Texts) else values
    symbols: npt.NDArray[np.object_] = np.array([str(each).strip() for each in distinct], object)
    if isinstance(values, Texts):
        symbols = symbols[values.numbers]
    if layout.symbol is not None and (other := symbols != layout.symbol).any():
        row = int(other.argmax())
        raise RefusedError(
            f"{raw.where(row)}: symbol {symbols[row]!r}; --symbol is {layout.symbol}"
        )
    return symbols


def match_columns(found: list[str], layout: FileLayout, file: str) -> dict[str, str]:
    """Return the column of each field; raise RefusedError with the columns that were found."""
    listed = ", ".join(found[:30]) or "none"
    fields: dict[str, str] = {}
    for name in found:
        known = _ALIASES.get(re.sub(r"[\s_<>\"]", "", name.lower()))
        if known and known not in fields:
            fields[known] = name
        elif known == "time" and {name.lower(), fields["time"].lower()} == {"date", "time"}:
            fields["time"] = "+".join(sorted((name, fields["time"]), key=str.lower))
    for field, column in layout.mapping.items():
        check_name("field", field, FIELDS)
        for part in column.split("+") if column not in found else [column]:
            if part not in found:
                near = nearest_name(part, found)
                hint = f"; did you mean {near}?" if near else ""
                raise RefusedError(f"{file} has no column {part!r}; it has {listed}{hint}")
        fields[field] = column
    is_bars = "price" not in layout.mapping and all(name in fields for name in PRICES)
    needed = ["time", *(PRICES if is_bars else ["price"])]
    missing = [name for name in needed if name not in fields]
    if missing:
        raise RefusedError(
            f"{file} has no column for {', '.join(missing)}; it has {listed}; map them, as in "
            f"--map {missing[0]}=NAME"
        )
    if "symbol" not in fields and layout.symbol is None:
        raise RefusedError(f"{file} has no symbol column; it has {listed}; name one with --symbol")
    unused = ("price", *TICK_COLUMNS[3:]) if is_bars else (*PRICES, "value")
    return {name: column for name, column in fields.items() if name not in unused}


def find_zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RefusedError(
            f"time zone {name!r} is unknown; expected a name such as Asia/Seoul or UTC"
        ) from None


def _joined(raw: RawColumns, column: str) -> Sequence[Any] | npt.NDArray[Any]:
    if column in raw.values:
        return raw.values[column]
    parts = [raw.values[part] for part in column.split("+")]
    return [" ".join(str(each).strip() for each in row) for row in zip(*parts, strict=True)]


def _times(
    values: Sequence[Any] | npt.NDArray[Any],
    layout: FileLayout,
    is_bars: bool,
    where: Callable[[int], str],
) -> Floats:
    zone, timeframe = find_zone(layout.tz), layout.timeframe if is_bars else None
    closes = _day_closes(layout.market) if timeframe is Timeframe.D1 else None
    shift = timeframe.seconds if timeframe and layout.label == "start" else 0
    if isinstance(values, Instants) and closes is None:
        return np.round(values.numbers / 1e6 + shift, 6)
    at = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            moment = _moment(value)
            if closes is not None:
                at[row] = closes(_day_of(moment, layout, zone))
            else:
                at[row] = _epoch(moment, zone) + shift
        except (ValueError, OverflowError, OSError) as error:
            raise RefusedError(f"{where(row)}: time {str(value)!r}: {error}") from None
    return np.round(at, 6)


def _moment(value: Any) -> float | datetime | date:
    """Return a time as epoch seconds, or as it is written; a date has no time of day."""
    if isinstance(value, datetime | date):
        return value
    text = f"{value:f}" if isinstance(value, float | np.floating) else str(value).strip()
    if text.isdigit() and len(text) in _PARSED:
        found = datetime.strptime(text, _PARSED[len(text)])  # noqa: DTZ007 - its zone follows
        return found.date() if len(text) == 8 else found
    if _EPOCH.fullmatch(text):
        number = float(text)
        for unit in (1.0, 1e3, 1e6, 1e9):
            if number / unit < 1e11:
                return number / unit
        raise ValueError("is not an epoch")
    text = re.sub(r"^(\d{4})[./](\d{1,2})[./](\d{1,2})\b", _iso_date, text)
    if len(text) == 10:
        return date.fromisoformat(text)
    return datetime.fromisoformat(text)


def _iso_date(found: re.Match[str]) -> str:
    return f"{found[1]}-{found[2]:0>2}-{found[3]:0>2}"


def _epoch(moment: float | datetime | date, zone: tzinfo | None) -> float:
    if isinstance(moment, float):
        return moment
    if not isinstance(moment, datetime):
        raise ValueError("has no time of day, which ticks and bars shorter than a day need")
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError("has no time zone; name it with --tz, as in --tz Asia/Seoul")
        moment = moment.replace(tzinfo=zone)
    return moment.timestamp()


def _day_of(moment: float | datetime | date, layout: FileLayout, zone: tzinfo | None) -> date:
    """Return the trading day that a time belongs to."""
    if not isinstance(moment, float | datetime):
        return moment
    if isinstance(moment, datetime) and moment.tzinfo is None and moment.time() == time():
        return moment.date()
    market_zone = UTC if layout.market in _FROM_MIDNIGHT else SEOUL
    local = datetime.fromtimestamp(_epoch(moment, zone), market_zone)
    return (local - timedelta(seconds=1 if layout.label == "close" else 0)).date()


def _day_closes(market: Market | None) -> Callable[[date], float]:
    if market in _FROM_MIDNIGHT:
        return lambda day: datetime.combine(day, time(), UTC).timestamp() + Timeframe.D1.seconds
    calendar = TradingCalendar()
    return functools.cache(lambda day: day_close(calendar, day))


def _numbers(raw: RawColumns, column: str, name: str) -> Floats:
    values = raw.values[column]
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    try:
        return np.array(values, np.float64)
    except (ValueError, TypeError):
        return np.array([_number(raw, each, name, row) for row, each in enumerate(values)])


def _number(raw: RawColumns, value: Any, name: str, row: int) -> float:
    text = str(value).strip()
    if not text and name not in (*PRICES, "price"):
        return 0.0
    try:
        grouped = raw.thousands and _THOUSANDS.fullmatch(text)
        return float(text.replace(",", "") if grouped else text)
    except ValueError:
        raise RefusedError(f"{raw.where(row)}: {name} {text!r} is not a number") from None


def _validate(columns: dict[str, Floats], is_bars: bool, where: Callable[[int], str]) -> None:
    if is_bars:
        # A halted day has a close only.
        halted = (columns["volume"] == 0) & (columns["close"] > 0)
        for name in ("open", "high", "low"):
            halted = halted & (columns[name] == 0)
        for name in ("open", "high", "low"):
            columns[name] = np.where(halted, columns["close"], columns[name])
    for name in PRICES if is_bars else ("price",):
        _refuse(columns[name], ~(columns[name] > 0), name, "more than 0", where)
    for name in ("volume", "value") if is_bars else TICK_COLUMNS[2:]:
        _refuse(columns[name], ~(columns[name] >= 0), name, "0 or more", where)
    if is_bars:
        low = np.minimum(columns["open"], columns["close"])
        high = np.maximum(columns["open"], columns["close"])
        _refuse(columns["low"], columns["low"] > low, "low", "at most open and close", where)
        _refuse(columns["high"], columns["high"] < high, "high", "at least open and close", where)


def _refuse(
    values: Floats,
    bad: npt.NDArray[np.bool_],
    name: str,
    expected: str,
    where: Callable[[int], str],
) -> None:
    bad = bad | ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        raise RefusedError(f"{where(row)}: {name} is {values[row]:g}; expected {expected}")
