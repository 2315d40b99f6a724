"""KIS charts over REST: days, minutes of today, minutes of past days; newest first, no paging."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from itertools import pairwise
from typing import Any

import numpy as np

from qts.simulators.kis.gateway import KisError, success
from qts.simulators.kis.quotes import KisQuoteApi
from qts.simulators.market.history import (
    MINUTE_S,
    SPLIT_RATIO,
    STOCK_DAYS,
    Bars,
    MarketHistory,
)
from qts.simulators.market.sessions import DAY_S, hhmmss, yyyymmdd
from qts.simulators.market.stocks import StockMarket

MAX_DAYS, MAX_TODAY, MAX_PAST = 100, 30, 120
KEPT_DAYS = 365  # of past minutes
_SECONDS_LATE = 11  # the label of a closing auction may carry seconds
_DIGITS = re.compile(r"\d+", re.ASCII)
_NO_ROW: dict[str, str] = {}


class KisChartApi:
    """Chart requests. A question outside of what exists is answered with blank rows or none."""

    def __init__(self, market: StockMarket, quotes: KisQuoteApi) -> None:
        self._market = market
        self._quotes = quotes
        self._history = MarketHistory(
            market.universe, market.table, market.seed, market.time, STOCK_DAYS
        )

    def on_second(self) -> None:
        self._history.record(self._market, self._market.phase)

    # inquire-daily-itemchartprice

    def days(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return at most 100 days; `FID_ORG_ADJ_PRC` 0 is adjusted for splits, 1 is raw."""
        index = self._quotes.index(query.get("FID_INPUT_ISCD", ""))
        first, last = (_day(query, f"FID_INPUT_DATE_{n}") for n in (1, 2))
        if query.get("FID_PERIOD_DIV_CODE") != "D":
            raise KisError("OPSQ2001", "[FID_PERIOD_DIV_CODE: the simulator has D]")
        adjusted = query.get("FID_ORG_ADJ_PRC")
        if adjusted not in ("0", "1"):
            raise KisError("OPSQ2001", "[FID_ORG_ADJ_PRC]")
        today = self._market.time // DAY_S
        oldest = max(first, self._history.listed_on(index))
        rows: list[dict[str, str]] = []
        for day in range(min(last, today), oldest - 1, -1):
            if len(rows) > MAX_DAYS:
                break
            if row := self._day_row(index, day, day == today, adjusted == "0"):
                rows.append(row)
        for row, before in pairwise(rows):
            change = int(row["stck_clpr"]) - int(before["stck_clpr"])
            row["prdy_vrss"] = str(change)
            row["prdy_vrss_sign"] = "2" if change > 0 else "5" if change < 0 else "3"
        del rows[MAX_DAYS:]
        if len(rows) < MAX_DAYS and oldest > first:  # older than the listing
            rows.append(dict.fromkeys(_DAY_FIELDS.split(), ""))
        return success({"output1": self._summary(index), "output2": rows or [_NO_ROW]})

    def _day_row(self, index: int, day: int, today: bool, adjusted: bool) -> dict[str, str] | None:
        m, history = self._market, self._history
        if today and not m.always_open and m.volume[index] and len(history.day(index, day).start):
            # What the venue shows until the next morning includes the after-market.
            now = (m.open, m.high, m.low, m.price, m.volume, m.value)
            opens, high, low, close, volume, value = (int(column[index]) for column in now)
        else:
            bar = history.day(index, day)
            if not len(bar.start):
                return self._untraded(index, day, today)
            opens, high, low, close, volume, value = (int(column[0]) for column in bar[1:])
        split = history.split_on(index)
        ratio = SPLIT_RATIO if split is not None and day < split and not adjusted else 1
        return {
            "stck_bsop_date": yyyymmdd(day * DAY_S),
            "stck_clpr": str(close * ratio),
            "stck_oprc": str(opens * ratio),
            "stck_hgpr": str(high * ratio),
            "stck_lwpr": str(low * ratio),
            "acml_vol": str(volume // ratio),
            "acml_tr_pbmn": str(value),
            "flng_cls_code": "00",
            "prtt_rate": f"{1 / SPLIT_RATIO:.2f}" if day == split else "0.00",
            "mod_yn": "N",
            "prdy_vrss_sign": "3",
            "prdy_vrss": "0",
            "revl_issu_reas": "00",
        }

    def _untraded(self, index: int, day: int, today: bool) -> dict[str, str] | None:
        """Return the row of a day without a trade: with zeros, flat, or none."""
        if not STOCK_DAYS.trades_on(date.fromordinal(day)):
            return None
        close = str(self._market.base[index])
        form = day % 3
        if not today and form == 0:
            return None
        zero = today or form == 1
        row = dict.fromkeys(_DAY_FIELDS.split(), "0")
        prices = dict.fromkeys(("stck_oprc", "stck_hgpr", "stck_lwpr"), "0" if zero else close)
        codes = {"flng_cls_code": "00", "prtt_rate": "0.00", "revl_issu_reas": "00"}
        marks = {"stck_clpr": close, "mod_yn": "Y" if today else "N"}
        return row | prices | codes | marks | {"stck_bsop_date": yyyymmdd(day * DAY_S)}

    # inquire-time-itemchartprice

    def minutes_of_today(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return at most 30 minutes up to an hour of today; those without a trade are flat."""
        index = self._quotes.index(query.get("FID_INPUT_ISCD", ""))
        m, history = self._market, self._history
        day = m.time // DAY_S
        until = day * DAY_S + _second(query)
        bars = history.minutes(index, day * DAY_S, m.time + 1)
        labels = [int(label) for label in STOCK_DAYS.minutes(day) if label <= until]
        if m.always_open:  # after the past, which keeps the hours of KRX
            first = max(history.start, day * DAY_S)
            labels = [label for label in labels if label < first]
            labels += range(first, until + 1, MINUTE_S)
        total = np.cumsum(bars.value)
        rows = []
        for label in reversed(labels[-MAX_TODAY:]):
            at = int(np.searchsorted(bars.start, label, side="right")) - 1
            traded = at >= 0 and bars.start[at] == label
            close = int(bars.close[at]) if at >= 0 else int(m.base[index])
            prices = [int(column[at]) if traded else close for column in bars[1:4]]
            volume = int(bars.volume[at]) if traded else 0
            if not traded and at >= 0 and label == m.time - m.time % MINUTE_S:
                volume = int(bars.volume[at])  # shown until the first trade of the minute
            rows.append(_minute_row(label, (*prices, close), volume, total[at] if at >= 0 else 0))
        return success({"output1": self._headline(index), "output2": rows})

    # inquire-time-dailychartprice

    def past_minutes(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return at most 120 traded minutes back from a day and hour, also of the day before."""
        index = self._quotes.index(query.get("FID_INPUT_ISCD", ""))
        day = _day(query, "FID_INPUT_DATE_1")
        now = self._market.time
        until = min(day * DAY_S + _second(query) + 1, now + 1)
        oldest = now // DAY_S - KEPT_DAYS
        rows: list[dict[str, str]] = []
        crosses = query.get("FID_PW_DATA_INCU_YN") == "Y"
        for each in (day, self._trading_day_before(day)) if crosses else (day,):
            if each < oldest:
                break
            bars = self._history.minutes(index, each * DAY_S, min(until, (each + 1) * DAY_S))
            rows += self._rows(index, bars)
        return success({"output1": self._headline(index), "output2": rows[:MAX_PAST]})

    def _rows(self, index: int, bars: Bars) -> list[dict[str, str]]:
        """Return the minutes of a day with the prices at which they traded."""
        split = self._history.split_on(index)
        rows, total = [], np.cumsum(bars.value)
        for at in range(len(bars.start) - 1, -1, -1):
            label = int(bars.start[at])
            ratio = SPLIT_RATIO if split is not None and label // DAY_S < split else 1
            if label % DAY_S >= 15 * 3600 + 1800 and label // DAY_S % 8 == 0:
                label += _SECONDS_LATE
            prices = [int(column[at]) * ratio for column in bars[1:5]]
            rows.append(_minute_row(label, prices, int(bars.volume[at]) // ratio, total[at]))
        return rows

    def _trading_day_before(self, day: int) -> int:
        day -= 1
        while not STOCK_DAYS.trades_on(date.fromordinal(day)):
            day -= 1
        return day

    def _headline(self, index: int) -> dict[str, str]:
        m = self._market
        return {
            **self._quotes.headline(index),
            "stck_prdy_clpr": str(m.base[index]),
            "acml_vol": str(m.volume[index]),
            "acml_tr_pbmn": str(m.value[index]),
            "hts_kor_isnm": m.universe.names[index],
        }

    def _summary(self, index: int) -> dict[str, str]:
        m, book = self._market, self._market.book(index)
        return {
            **self._headline(index),
            "stck_shrn_iscd": m.universe.codes[index],
            "prdy_vol": str(m.prev_volume[index]),
            "stck_mxpr": str(m.upper[index]),
            "stck_llam": str(m.lower[index]),
            "stck_oprc": str(m.open[index]),
            "stck_hgpr": str(m.high[index]),
            "stck_lwpr": str(m.low[index]),
            "askp": str(book.asks[0].price if book.asks else 0),
            "bidp": str(book.bids[0].price if book.bids else 0),
            "lstn_stcn": str(self._quotes.listed(index)),
        }


def _minute_row(label: int, prices: Any, volume: int, total: float) -> dict[str, str]:
    opens, high, low, close = prices
    return {
        "stck_bsop_date": yyyymmdd(label),
        "stck_cntg_hour": hhmmss(label),
        "stck_prpr": str(close),
        "stck_oprc": str(opens),
        "stck_hgpr": str(high),
        "stck_lwpr": str(low),
        "cntg_vol": str(volume),
        "acml_tr_pbmn": str(int(total)),
    }


_DAY_FIELDS = """
    stck_bsop_date stck_clpr stck_oprc stck_hgpr stck_lwpr acml_vol acml_tr_pbmn flng_cls_code
    prtt_rate mod_yn prdy_vrss_sign prdy_vrss revl_issu_reas
"""


def _day(query: Mapping[str, str], name: str) -> int:
    """Return the ordinal of a day; KIS clients send 00000101 for the beginning."""
    text = query.get(name, "")
    try:
        if len(text) == 8 and _DIGITS.fullmatch(text):
            year = max(1, int(text[:4]))
            return date(year, int(text[4:6]), int(text[6:])).toordinal()
    except ValueError:
        pass
    raise KisError("OPSQ2001", f"[{name} {text}]")


def _second(query: Mapping[str, str]) -> int:
    text = query.get("FID_INPUT_HOUR_1", "")
    if len(text) != 6 or not _DIGITS.fullmatch(text):
        raise KisError("OPSQ2001", f"[FID_INPUT_HOUR_1 {text}]")
    return int(text[:2]) * 3600 + int(text[2:4]) * 60 + int(text[4:])
