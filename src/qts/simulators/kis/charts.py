"""KIS minute charts over REST: of today, of past days; newest first, no paging."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np

from qts.simulators.kis.gateway import invalid, names, required, success
from qts.simulators.kis.quotes import KisQuoteApi, blank
from qts.simulators.market.history import (
    MINUTE_S,
    SPLIT_RATIO,
    STOCK_DAYS,
    Bars,
    MarketHistory,
)
from qts.simulators.market.sessions import DAY_S, hhmmss, yyyymmdd
from qts.simulators.market.stocks import StockMarket

MAX_TODAY, MAX_PAST = 30, 120
KEPT_DAYS = 365  # of past minutes
_SECONDS_LATE = 11  # the label of a closing auction may carry seconds
_DIGITS = re.compile(r"\d+", re.ASCII)
_HEADLINE = names("""
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt stck_prdy_clpr acml_vol acml_tr_pbmn hts_kor_isnm
""")


class KisMinuteChartApi:
    """Minute charts. A question outside of what exists is answered with no rows."""

    def __init__(self, market: StockMarket, quotes: KisQuoteApi, history: MarketHistory) -> None:
        self._market = market
        self._quotes = quotes
        self._history = history

    # inquire-time-itemchartprice

    def minutes_of_today(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return at most 30 minutes up to an hour of today; those without a trade are flat.

        Midnight is now. With `FID_PW_DATA_INCU_YN`, before the first minute of today come those of
        the day before.
        """
        index = self._quotes.symbol(query)
        if index is None:
            return success({"output1": blank(_HEADLINE), "output2": []})
        m, history = self._market, self._history
        day = m.time // DAY_S
        until = day * DAY_S + second_in(query) if second_in(query) else m.time
        bars = history.minutes(index, day * DAY_S, m.time + 1)
        labels = [int(label) for label in STOCK_DAYS.minutes(day) if label <= until]
        if m.always_open:  # after the past, which keeps the hours of KRX
            first = max(history.start, day * DAY_S)
            labels = [label for label in labels if label < first]
            labels += range(first, until + 1, MINUTE_S)
        if not labels and query.get("FID_PW_DATA_INCU_YN") == "Y":
            before = self._trading_day_before(day) * DAY_S
            rows = self._rows(index, history.minutes(index, before, before + DAY_S))
            return success({"output1": self._quotes.summary(index), "output2": rows[:MAX_TODAY]})
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
        return success({"output1": self._quotes.summary(index), "output2": rows})

    # inquire-time-dailychartprice

    def past_minutes(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return at most 120 traded minutes back from a day and hour, also of the day before."""
        index = self._quotes.symbol(query)
        if index is None:
            return success({"output1": blank(_HEADLINE), "output2": []})
        day = day_in(query, "FID_INPUT_DATE_1")
        now = self._market.time
        until = min(day * DAY_S + second_in(query) + 1, now + 1)
        oldest = now // DAY_S - KEPT_DAYS
        rows: list[dict[str, str]] = []
        crosses = query.get("FID_PW_DATA_INCU_YN") == "Y"
        for each in (day, self._trading_day_before(day)) if crosses else (day,):
            if each < oldest:
                break
            bars = self._history.minutes(index, each * DAY_S, min(until, (each + 1) * DAY_S))
            rows += self._rows(index, bars)
        return success({"output1": self._quotes.summary(index), "output2": rows[:MAX_PAST]})

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


def day_in(query: Mapping[str, str], name: str) -> int:
    """Return the ordinal of a day; KIS clients send 00000101 for the beginning."""
    text = required(query, name)
    try:
        if len(text) == 8 and _DIGITS.fullmatch(text):
            year = max(1, int(text[:4]))
            return date(year, int(text[4:6]), int(text[6:])).toordinal()
    except ValueError:
        pass
    raise invalid(name)


def second_in(query: Mapping[str, str]) -> int:
    text = required(query, "FID_INPUT_HOUR_1")
    if len(text) != 6 or not _DIGITS.fullmatch(text):
        raise invalid("FID_INPUT_HOUR_1")
    return int(text[:2]) * 3600 + int(text[2:4]) * 60 + int(text[4:])
