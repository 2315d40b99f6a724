"""Charts of KIS: days, minutes of today, minutes of the past year; newest first.

No chart has a continuation: a page is continued by its dates and times. A question outside of what
exists is answered with blank rows or none, never with an error. What the three have in common:

- a row without a trade is no bar, as in the minutes of past days, which leave it out;
- the value of a minute is the difference of two running totals, so that the oldest row of a full
  page is left to the next page, which has the row before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from qts.domain import Bar, Clock, Market, OperationError, Timeframe, UnreachableError
from qts.venues.bar_history import SETTLE_S, BarPage, EarliestBars, check_clock
from qts.venues.config import KisConfig, is_loopback
from qts.venues.kis.client import KisClient, KisEndpoint
from qts.venues.kis.quotes import Row, parse_rows
from qts.venues.ratelimit.limits import RequestPriority, quota_for

DAYS_PER_PAGE, TODAY_PER_PAGE, PAST_PER_PAGE = 100, 30, 120
KEPT_DAYS = 365  # of minutes; KIS says one year
MINUTE_S = 60
SEOUL = timezone(timedelta(hours=9))
_FIRST_DAY = date(1980, 1, 4)
_FINAL = timedelta(days=1, hours=6)  # until then a day may show values of the after-market
_MINUTES_A_DAY = 391
_QUOTATIONS = "/uapi/domestic-stock/v1/quotations"
_DAYS = KisEndpoint(f"{_QUOTATIONS}/inquire-daily-itemchartprice", "FHKST03010100")
_TODAY = KisEndpoint(f"{_QUOTATIONS}/inquire-time-itemchartprice", "FHKST03010200")
_PAST = KisEndpoint(f"{_QUOTATIONS}/inquire-time-dailychartprice", "FHKST03010230", "")
_KRX = "J"
_ADJUSTED = "0"  # of this chart; inquire-daily-price has it the other way round


class Session(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def closes_at(self) -> datetime: ...


class TradingDays(Protocol):
    """Calendar of KRX."""

    def trades_on(self, day: date) -> bool: ...
    def sessions(self, day: date) -> Sequence[Session]: ...


def day_close(days: TradingDays, day: date) -> float:
    """Return the end of the regular session, or the usual one on a day without sessions."""
    closes = [each.closes_at for each in days.sessions(day) if each.name == "regular"]
    usual = datetime(day.year, day.month, day.day, 15, 30, tzinfo=SEOUL)
    return (closes[0] if closes else usual).timestamp()


def midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=SEOUL).timestamp()


class KisHistoryRules:
    """Days since 1980, minutes of one year; a paper key has the minutes of today only."""

    market = Market.KRX
    zone = SEOUL

    def __init__(self, config: KisConfig, days: TradingDays) -> None:
        quota = quota_for(config.key_limits, RequestPriority.HISTORY)
        self.per_second = min(quota.second, quota.minute / 60)
        self.simulated = is_loopback(config.rest)
        self._paper = config.paper
        self._days = days

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:
        today = datetime.fromtimestamp(now, SEOUL).date()
        earliest, reason = today - timedelta(days=KEPT_DAYS), "KIS keeps minutes for one year"
        if timeframe is Timeframe.D1:
            earliest, reason = _FIRST_DAY, "KRX has no older days"
        elif self._paper:
            earliest = today
            reason = (
                "KIS does not offer the minutes of past days to paper keys; use a real key "
                "(venues.kis.paper = false) or --bars 1d"
            )
        return EarliestBars(midnight(earliest), reason)

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        day = datetime.fromtimestamp(end - 1, SEOUL).date()
        left = bars if timeframe is Timeframe.D1 else math.ceil(bars / _MINUTES_A_DAY) + 1
        while (left := left - self._days.trades_on(day)) > 0 and day > _FIRST_DAY:
            day -= timedelta(days=1)
        return midnight(day)

    def latest(self, timeframe: Timeframe, now: float) -> float:
        if timeframe is Timeframe.M1:
            return (now - SETTLE_S) // MINUTE_S * MINUTE_S
        return midnight((datetime.fromtimestamp(now, SEOUL) - _FINAL).date() + timedelta(days=1))

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        first, last = (datetime.fromtimestamp(at, SEOUL).date() for at in (start, end - 1))
        days = (first + timedelta(days=n) for n in range((last - first).days + 1))
        sessions = sum(map(self._days.trades_on, days))
        if timeframe is Timeframe.D1:
            return math.ceil(max(1, sessions) / DAYS_PER_PAGE)
        return max(1, math.ceil(sessions * _MINUTES_A_DAY / (PAST_PER_PAGE - 1)))


class KisHistory:
    """BarHistory of KIS; days are adjusted for splits, minutes are not."""

    def __init__(self, client: KisClient, days: TradingDays, clock: Clock) -> None:
        self._client = client
        self._days = days
        self._clock = clock

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        if timeframe is Timeframe.D1:
            return await self._day_page(symbol, start, end)
        day = datetime.fromtimestamp(end - 1, SEOUL).date()
        while not self._days.trades_on(day):
            day -= timedelta(days=1)
        end = min(end, midnight(day + timedelta(days=1)))
        if end <= start:
            return BarPage([], start)
        rows, size = await self._minute_rows(symbol, day, end)
        return _minute_page(symbol, rows, size, (start, end), midnight(day))

    async def symbols(self) -> None:
        """Return None: KIS answers a question for an unknown symbol with no bars."""

    async def _day_page(self, symbol: str, start: float, end: float) -> BarPage:
        first, last = (datetime.fromtimestamp(at, SEOUL).date() for at in (start, end - 1))
        rows = await self._rows(
            _DAYS,
            symbol,
            FID_INPUT_DATE_1=f"{first:%Y%m%d}",
            FID_INPUT_DATE_2=f"{last:%Y%m%d}",
            FID_PERIOD_DIV_CODE="D",
            FID_ORG_ADJ_PRC=_ADJUSTED,
        )
        days = [(_day_of(row), row) for row in rows if row.get("stck_bsop_date")]
        days.sort(key=lambda pair: pair[0])
        bars = [
            _day_bar(symbol, day_close(self._days, day), row)
            for day, row in days
            if _number(row, "acml_vol") > 0
        ]
        oldest = midnight(days[0][0]) if len(days) >= DAYS_PER_PAGE else start
        return _page(bars, start, end, oldest)

    async def _minute_rows(self, symbol: str, day: date, end: float) -> tuple[list[Row], int]:
        """Return the rows up to a moment of a day, and how many a full page has."""
        hour = datetime.fromtimestamp(end - 1, SEOUL).strftime("%H%M%S")
        if day == self._clock.now().astimezone(SEOUL).date():
            values = {"FID_INPUT_HOUR_1": hour, "FID_PW_DATA_INCU_YN": "Y", "FID_ETC_CLS_CODE": ""}
            rows = await self._rows(_TODAY, symbol, **values)
            shown = {row.get("stck_bsop_date") for row in rows}
            if shown <= {f"{day:%Y%m%d}"}:
                return rows, TODAY_PER_PAGE
            if self._client.config.paper:
                raise OperationError(
                    f"KIS shows minutes of {', '.join(map(str, shown))}, not {day}"
                )
        rows = await self._rows(
            _PAST,
            symbol,
            FID_INPUT_DATE_1=f"{day:%Y%m%d}",
            FID_INPUT_HOUR_1=hour,
            FID_PW_DATA_INCU_YN="Y",
            FID_FAKE_TICK_INCU_YN="",
        )
        return rows, PAST_PER_PAGE

    async def _rows(self, endpoint: KisEndpoint, symbol: str, **values: str) -> list[Row]:
        common = {"FID_COND_MRKT_DIV_CODE": _KRX, "FID_INPUT_ISCD": symbol}
        reply = await self._client.call(endpoint, common | values, RequestPriority.HISTORY)
        check_clock("KIS", self._client.skew)
        return parse_rows(reply.output2)


class _Minute(NamedTuple):
    at: float  # its end
    day: str
    total: float  # value traded on the day so far
    row: Row


def _minute_page(
    symbol: str, rows: Iterable[Row], size: int, span: tuple[float, float], day_start: float
) -> BarPage:
    """Return the bars of a page, which is full if it has `size` rows."""
    start, end = span
    by_end = {minute.at: minute for minute in map(_minute, rows) if minute}
    minutes = [by_end[at] for at in sorted(by_end)]
    if not minutes:
        return BarPage([], max(start, day_start))
    oldest = min(day_start, midnight(_day_of(minutes[0].row)))
    before = _Minute(0.0, "", 0.0, {})
    if len(minutes) >= size:
        before, oldest = minutes[0], minutes[0].at
        del minutes[0]
    bars = []
    for earlier, minute in pairwise([before, *minutes]):
        value = minute.total - (earlier.total if earlier.day == minute.day else 0.0)
        if value > 0:
            bars.append(_minute_bar(symbol, minute, value))
    return _page(bars, start, end, oldest)


def _page(bars: list[Bar], start: float, end: float, oldest: float) -> BarPage:
    if oldest >= end:
        raise UnreachableError("KIS has repeated a page of its chart instead of an older one")
    return BarPage([bar for bar in bars if start < bar.at <= end], max(start, oldest))


def _minute(row: Row) -> _Minute | None:
    day, hour = str(row.get("stck_bsop_date", "")), str(row.get("stck_cntg_hour", ""))
    if not day or not hour:
        return None  # a blank row
    try:
        at = datetime.strptime(day + hour[:4], "%Y%m%d%H%M").replace(tzinfo=SEOUL).timestamp()
    except ValueError:
        raise UnreachableError(f"KIS sent a minute with the time {day} {hour}") from None
    return _Minute(at + MINUTE_S, day, _number(row, "acml_tr_pbmn"), row)


def _minute_bar(symbol: str, minute: _Minute, value: float) -> Bar:
    names = ("stck_oprc", "stck_hgpr", "stck_lwpr", "stck_prpr", "cntg_vol")
    opens, high, low, close, volume = (_number(minute.row, name) for name in names)
    return Bar(symbol, Timeframe.M1, minute.at, opens, high, low, close, volume, value)


def _day_bar(symbol: str, at: float, row: Row) -> Bar:
    names = ("stck_oprc", "stck_hgpr", "stck_lwpr", "stck_clpr", "acml_vol", "acml_tr_pbmn")
    opens, high, low, close, volume, value = (_number(row, name) for name in names)
    return Bar(symbol, Timeframe.D1, at, opens, high, low, close, volume, value)


def _day_of(row: Row) -> date:
    text = str(row["stck_bsop_date"])
    try:
        return datetime.strptime(text, "%Y%m%d").date()  # noqa: DTZ007 - a day has no zone
    except ValueError:
        raise UnreachableError(f"KIS sent a row with the day {text}") from None


def _number(row: Row, name: str) -> float:
    text: Any = row.get(name)
    try:
        return float(text)
    except (TypeError, ValueError):
        raise UnreachableError(f"KIS sent {text!r} as {name}") from None
