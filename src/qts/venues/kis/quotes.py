"""Market data of KIS over REST: quotes, order book, index values, trading days, charts.

Charts have days, minutes of today or minutes of the past year, newest first, and no continuation: a
page is continued by its dates and times. A question outside of what exists is answered with blank
rows or none, never with an error. What the three have in common:

- a row without a trade is no bar, as in the minutes of past days, which leave it out;
- the value of a minute is the difference of two running totals, so that the oldest row of a full
  page is left to the next page, which has the row before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from qts.domain import (
    Bar,
    BookLevel,
    Clock,
    Market,
    OperationError,
    OrderBook,
    Timeframe,
    UnreachableError,
)
from qts.venues.config import KisConfig, RequestPriority, is_loopback, quota_for
from qts.venues.kis.client import KisClient, KisEndpoint, Reply
from qts.venues.kis.frames import FALLING
from qts.venues.market_data import (
    SETTLE_S,
    BarPage,
    Calendar,
    EarliestBars,
    IndexQuote,
    Quote,
    check_clock,
)

MAX_SYMBOLS = 30
_QUOTATIONS = "/uapi/domestic-stock/v1/quotations"
_PRICE = KisEndpoint(f"{_QUOTATIONS}/inquire-price", "FHKST01010100")
_MULTI_PRICE = KisEndpoint(f"{_QUOTATIONS}/intstock-multprice", "FHKST11300006", "")
_BOOK = KisEndpoint(f"{_QUOTATIONS}/inquire-asking-price-exp-ccn", "FHKST01010200")
_INDEX = KisEndpoint(f"{_QUOTATIONS}/inquire-index-price", "FHPUP02100000", "")
_HOLIDAY = KisEndpoint(f"{_QUOTATIONS}/chk-holiday", "CTCA0903R", "")

Row = dict[str, Any]


def symbols_per_call(config: KisConfig, *, multi: bool = True) -> int:
    """Return how many symbols one request can quote; paper keys have no multi-quote."""
    return MAX_SYMBOLS if multi and not config.paper else 1


class KisQuotes:
    """Read-only requests; each method sends one."""

    def __init__(self, client: KisClient, market: str = "J", *, multi: bool = True) -> None:
        self._client = client
        self._market = market
        self._multi = multi

    @property
    def per_call(self) -> int:
        """Symbols that one request can quote with this key."""
        return symbols_per_call(self._client.config, multi=self._multi)

    async def quotes(
        self, choose: Callable[[], Sequence[str]], priority: RequestPriority
    ) -> list[Quote]:
        """Quote up to `per_call` symbols in one request; `choose` is called after its grant.

        Symbols that KIS does not know are missing from the result.
        """
        chosen: list[str] = []

        def values() -> dict[str, str]:
            chosen[:] = chosen or choose()  # called once, even if the request is sent twice
            return self._one(chosen[0]) if self.per_call == 1 else self._many(chosen)

        if self.per_call == 1:
            reply = await self._client.call(_PRICE, values, priority)
            return [single_quote(chosen[0], row) for row in parse_rows(reply.output)]
        reply = await self._client.call(_MULTI_PRICE, values, priority)
        return multi_quotes(reply)

    async def quote(self, symbol: str, priority: RequestPriority) -> Quote:
        reply = await self._client.call(_PRICE, self._one(symbol), priority)
        (row,) = parse_rows(reply.output) or [{}]
        return single_quote(symbol, row)

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        reply = await self._client.call(_BOOK, self._one(symbol), priority)
        (row,) = parse_rows(reply.output1) or [{}]
        return OrderBook(symbol, _levels(row, "bidp"), _levels(row, "askp"))

    async def index(self, code: str, priority: RequestPriority) -> IndexQuote:
        """Return an index by its code at KIS; a code that KIS does not know has the value 0."""
        values = {"FID_COND_MRKT_DIV_CODE": "U", "FID_INPUT_ISCD": code}
        (row,) = parse_rows((await self._client.call(_INDEX, values, priority)).output) or [{}]
        change = _number(row.get("bstp_nmix_prdy_ctrt")) / 100
        if row.get("prdy_vrss_sign") in FALLING:  # the change comes with or without its sign
            change = -abs(change)
        return IndexQuote(code, _number(row.get("bstp_nmix_prpr")), change)

    async def trading_days(self, since: date) -> dict[date, bool]:
        """Return whether the market opens, by day from `since`; KIS wants at most a call a day."""
        values = {"BASS_DT": f"{since:%Y%m%d}", "CTX_AREA_FK": "", "CTX_AREA_NK": ""}
        reply = await self._client.call(_HOLIDAY, values, RequestPriority.ACCOUNT)
        return {
            datetime.strptime(row["bass_dt"], "%Y%m%d").date(): row["opnd_yn"] == "Y"  # noqa: DTZ007 - a day has no zone
            for row in parse_rows(reply.output)
        }

    def _many(self, symbols: Sequence[str]) -> dict[str, str]:
        values = {}
        for number, symbol in enumerate(symbols, 1):
            values[f"FID_COND_MRKT_DIV_CODE_{number}"] = self._market
            values[f"FID_INPUT_ISCD_{number}"] = symbol
        return values

    def _one(self, symbol: str) -> dict[str, str]:
        return {"FID_COND_MRKT_DIV_CODE": self._market, "FID_INPUT_ISCD": symbol}


def multi_quotes(reply: Reply) -> list[Quote]:
    return [multi_quote(row) for row in parse_rows(reply.output) if row.get("inter_shrn_iscd")]


def single_quote(symbol: str, row: Row) -> Quote:
    price, volume = _number(row.get("stck_prpr")), _number(row.get("acml_vol"))
    base = _number(row.get("stck_sdpr"))
    return Quote(symbol, price, volume, 0.0, 0.0, row, "kis_rest", base=base)


def multi_quote(row: Row) -> Quote:
    return Quote(
        row["inter_shrn_iscd"],
        _number(row.get("inter2_prpr")),
        _number(row.get("acml_vol")),
        _number(row.get("inter2_bidp")),
        _number(row.get("inter2_askp")),
        row,
        "kis_rest",
        base=_number(row.get("inter2_sdpr")) or _number(row.get("inter2_prdy_clpr")),
    )


def _number(text: Any) -> float:
    """Parse a number, which KIS sends as text; blank: 0."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def _levels(row: Row, side: str) -> tuple[BookLevel, ...]:
    levels = (
        BookLevel(_number(row.get(f"{side}{n}")), _number(row.get(f"{side}_rsqn{n}")))
        for n in range(1, 11)
    )
    return tuple(level for level in levels if level.price > 0)


def parse_rows(output: msgspec.Raw) -> list[Row]:
    """Return the rows of one output of a reply."""
    try:
        found = msgspec.json.decode(output, type=list[Row] | Row | None)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreachableError(f"KIS sent rows that cannot be parsed: {error}") from None
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


DAYS_PER_PAGE, TODAY_PER_PAGE, PAST_PER_PAGE = 100, 30, 120
KEPT_DAYS = 365  # of minutes; KIS says one year
MINUTE_S = 60
SEOUL = timezone(timedelta(hours=9))
_FIRST_DAY = date(1980, 1, 4)
_FINAL = timedelta(days=1, hours=6)  # until then a day may show values of the after-market
_MINUTES_A_DAY = 391
_DAYS = KisEndpoint(f"{_QUOTATIONS}/inquire-daily-itemchartprice", "FHKST03010100")
_TODAY = KisEndpoint(f"{_QUOTATIONS}/inquire-time-itemchartprice", "FHKST03010200")
_PAST = KisEndpoint(f"{_QUOTATIONS}/inquire-time-dailychartprice", "FHKST03010230", "")
_KRX = "J"
_ADJUSTED = "0"  # of this chart; inquire-daily-price has it the other way round


def day_close(days: Calendar, day: date) -> float:
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

    def __init__(self, config: KisConfig, days: Calendar) -> None:
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

    def __init__(self, client: KisClient, days: Calendar, clock: Clock) -> None:
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
            if _chart_number(row, "acml_vol") > 0
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
    return _Minute(at + MINUTE_S, day, _chart_number(row, "acml_tr_pbmn"), row)


def _minute_bar(symbol: str, minute: _Minute, value: float) -> Bar:
    names = ("stck_oprc", "stck_hgpr", "stck_lwpr", "stck_prpr", "cntg_vol")
    opens, high, low, close, volume = (_chart_number(minute.row, name) for name in names)
    return Bar(symbol, Timeframe.M1, minute.at, opens, high, low, close, volume, value)


def _day_bar(symbol: str, at: float, row: Row) -> Bar:
    names = ("stck_oprc", "stck_hgpr", "stck_lwpr", "stck_clpr", "acml_vol", "acml_tr_pbmn")
    opens, high, low, close, volume, value = (_chart_number(row, name) for name in names)
    return Bar(symbol, Timeframe.D1, at, opens, high, low, close, volume, value)


def _day_of(row: Row) -> date:
    text = str(row["stck_bsop_date"])
    try:
        return datetime.strptime(text, "%Y%m%d").date()  # noqa: DTZ007 - a day has no zone
    except ValueError:
        raise UnreachableError(f"KIS sent a row with the day {text}") from None


def _chart_number(row: Row, name: str) -> float:
    text: Any = row.get(name)
    try:
        return float(text)
    except (TypeError, ValueError):
        raise UnreachableError(f"KIS sent {text!r} as {name}") from None
