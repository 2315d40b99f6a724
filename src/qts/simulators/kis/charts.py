"""KIS charts over REST: minutes to years, and what each kind of investor traded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from itertools import groupby, islice, pairwise
from typing import Any

import numpy as np

from qts.simulators.kis.companies import KisFigures
from qts.simulators.kis.gateway import invalid, names, required, success
from qts.simulators.kis.quotes import KisQuoteApi, blank
from qts.simulators.market.history import MINUTE_S, SPLIT_RATIO, STOCK_DAYS, Bars, MarketHistory
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import DAY_S, hhmmss, yyyymmdd

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


MAX_ROWS, RECENT_ROWS = 100, 30
_FIRST: dict[str, Callable[[int], int]] = {  # of the period of a day
    "D": lambda day: day,
    "W": lambda day: day - (day - 1) % 7,
    "M": lambda day: date.fromordinal(day).replace(day=1).toordinal(),
    "Y": lambda day: date.fromordinal(day).replace(month=1, day=1).toordinal(),
}
_NO_ROW: dict[str, str] = {}
_DAY_FIELDS = names("""
    stck_bsop_date stck_clpr stck_oprc stck_hgpr stck_lwpr acml_vol acml_tr_pbmn flng_cls_code
    prtt_rate mod_yn prdy_vrss_sign prdy_vrss revl_issu_reas
""")
_RECENT_FIELDS = names("""
    stck_bsop_date stck_oprc stck_hgpr stck_lwpr stck_clpr acml_vol prdy_vrss_vol_rate prdy_vrss
    prdy_vrss_sign prdy_ctrt hts_frgn_ehrt frgn_ntby_qty flng_cls_code acml_prtt_rate
""")
_SUMMARY_FIELDS = names("""
    prdy_vrss prdy_vrss_sign prdy_ctrt stck_prdy_clpr acml_vol acml_tr_pbmn hts_kor_isnm stck_prpr
    stck_shrn_iscd prdy_vol stck_mxpr stck_llam stck_oprc stck_hgpr stck_lwpr stck_prdy_oprc
    stck_prdy_hgpr stck_prdy_lwpr askp bidp prdy_vrss_vol vol_tnrt stck_fcam lstn_stcn cpfn hts_avls
    per eps pbr itewhol_loan_rmnd_ratem
""")
_INVESTORS = {"prsn": 0.62, "frgn": 0.22, "orgn": 0.16}  # usual shares of what is traded


class KisDayChartApi:
    """Charts of days and longer; outside of what exists, rows are blank or missing."""

    def __init__(self, market: StockMarket, quotes: KisQuoteApi, figures: KisFigures) -> None:
        self._market = market
        self._quotes = quotes
        self._figures = figures
        self._history = figures.history

    # inquire-daily-itemchartprice

    def periods(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return at most 100 periods; `FID_ORG_ADJ_PRC` 0 is adjusted for splits, 1 is raw."""
        index = self._quotes.symbol(query)
        first, last = (day_in(query, f"FID_INPUT_DATE_{n}") for n in (1, 2))
        period = _period(query, "DWMY")
        adjusted = _choice(query, "FID_ORG_ADJ_PRC", "01") == "0"
        if index is None:
            return success({"output1": blank(_SUMMARY_FIELDS), "output2": [_NO_ROW]})
        oldest = max(first, self._history.listed_on(index))
        rows = self._rows(index, (oldest, last), period, adjusted, MAX_ROWS)
        if len(rows) < MAX_ROWS and oldest > first:  # older than the listing
            rows.append(dict.fromkeys(_DAY_FIELDS, ""))
        return success({"output1": self._summary(index), "output2": rows or [_NO_ROW]})

    def _rows(
        self, index: int, days: tuple[int, int], period: str, adjusted: bool, count: int
    ) -> list[dict[str, str]]:
        """Return the newest periods within some days, with the change from the one before."""
        found = self._days(index, days[0], days[1], adjusted)
        by_period = groupby(found, key=lambda pair: _FIRST[period](pair[0]))
        each = (_merged([row for _, row in pairs]) for _, pairs in by_period)
        rows = list(islice(each, count + 1))
        for row, before in pairwise(rows):
            change = int(row["stck_clpr"]) - int(before["stck_clpr"])
            row["prdy_vrss"] = str(change)
            row["prdy_vrss_sign"] = "2" if change > 0 else "5" if change < 0 else "3"
        return rows[:count]

    def _days(
        self, index: int, first: int, last: int, adjusted: bool
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield day and row, newest first."""
        today = self._market.time // DAY_S
        for day in range(min(last, today), first - 1, -1):
            if row := self._day_row(index, day, day == today, adjusted):
                yield day, row

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
        row = dict.fromkeys(_DAY_FIELDS, "0")
        prices = dict.fromkeys(("stck_oprc", "stck_hgpr", "stck_lwpr"), "0" if zero else close)
        codes = {"flng_cls_code": "00", "prtt_rate": "0.00", "revl_issu_reas": "00"}
        marks = {"stck_clpr": close, "mod_yn": "Y" if today else "N"}
        return row | prices | codes | marks | {"stck_bsop_date": yyyymmdd(day * DAY_S)}

    def _summary(self, index: int) -> dict[str, str]:
        m, book = self._market, self._market.book(index)
        opens, high, low, _ = self._figures.yesterday(index)
        values = {
            **self._quotes.summary(index),
            **self._quotes.session(index),
            **self._figures.valuation(index),
            "stck_shrn_iscd": m.universe.codes[index],
            "prdy_vol": str(m.prev_volume[index]),
            "prdy_vrss_vol": str(int(m.volume[index]) - int(m.prev_volume[index])),
            "stck_prdy_oprc": str(opens),
            "stck_prdy_hgpr": str(high),
            "stck_prdy_lwpr": str(low),
            "askp": str(book.asks[0].price if book.asks else 0),
            "bidp": str(book.bids[0].price if book.bids else 0),
            "itewhol_loan_rmnd_ratem": "0.10",
        }
        return {name: values[name] for name in _SUMMARY_FIELDS}

    # inquire-daily-price

    def recent(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the last 30 periods; here `FID_ORG_ADJ_PRC` 1 is adjusted, 0 is raw."""
        index, period = self._quotes.symbol(query), _period(query, "DWM")
        adjusted = _choice(query, "FID_ORG_ADJ_PRC", "01") == "1"
        if index is None:
            return success({"output": []})
        today = self._market.time // DAY_S
        days = (self._history.listed_on(index), today)
        rows = self._rows(index, days, period, adjusted, RECENT_ROWS)
        return success({"output": [self._recent_row(index, row) for row in rows]})

    def _recent_row(self, index: int, row: dict[str, str]) -> dict[str, str]:
        before = int(row["stck_clpr"]) - int(row["prdy_vrss"])
        share = self._figures.foreign_share(index)
        day = day_in(row, "stck_bsop_date")
        usual = float(self._market.universe.daily_volume[index])
        values = row | {
            "prdy_vrss_vol_rate": f"{100 * int(row['acml_vol']) / usual - 100:.2f}",
            "prdy_ctrt": f"{100 * int(row['prdy_vrss']) / before if before else 0:.2f}",
            "hts_frgn_ehrt": f"{share:.2f}",
            "frgn_ntby_qty": str(self._figures.net_foreign(index, day)),
            "acml_prtt_rate": "0.00",
        }
        return {name: values[name] for name in _RECENT_FIELDS}

    # inquire-investor

    def investors(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what each kind of investor bought and sold in 30 days; blank for today."""
        index = self._quotes.symbol(query)
        if index is None:
            return success({"output": []})
        today = self._market.time // DAY_S
        days = (self._history.listed_on(index), today)
        rows = self._rows(index, days, "D", True, RECENT_ROWS)
        return success({"output": [self._investor_row(index, row) for row in rows]})

    def _investor_row(self, index: int, row: dict[str, str]) -> dict[str, str]:
        kept = ("stck_bsop_date", "stck_clpr", "prdy_vrss", "prdy_vrss_sign")
        values = {name: row[name] for name in kept}
        day, close = day_in(row, "stck_bsop_date"), int(row["stck_clpr"])
        volume = int(row["acml_vol"])
        foreign = self._figures.net_foreign(index, day)
        institutions = int(volume * 0.05 * (self._figures.noise(index, -day) - 0.5))
        net = {"prsn": -foreign - institutions, "frgn": foreign, "orgn": institutions}
        done = day < self._market.time // DAY_S
        for part in ("ntby", "shnu", "seln"):
            for who, share in _INVESTORS.items():
                bought = int(volume * share) + max(0, net[who])
                count = {"ntby": net[who], "shnu": bought, "seln": bought - net[who]}[part]
                name = f"{who}_{part}_{'qty' if part == 'ntby' else 'vol'}"
                values[name] = str(count) if done else ""
                amount = str(count * close // 10**6) if done else ""  # in millions of won
                values[f"{who}_{part}_tr_pbmn"] = amount
        return values


def _merged(rows: list[dict[str, str]]) -> dict[str, str]:
    """Return one row for the days of a period, given newest first; its day is the first one."""
    if len(rows) == 1:
        return rows[0]
    newest, oldest = rows[0], rows[-1]
    lows = [int(row["stck_lwpr"]) for row in rows if int(row["stck_lwpr"])]
    return newest | {
        "stck_bsop_date": oldest["stck_bsop_date"],
        "stck_oprc": oldest["stck_oprc"],
        "stck_hgpr": str(max(int(row["stck_hgpr"]) for row in rows)),
        "stck_lwpr": str(min(lows, default=0)),
        "acml_vol": str(sum(int(row["acml_vol"]) for row in rows)),
        "acml_tr_pbmn": str(sum(int(row["acml_tr_pbmn"]) for row in rows)),
    }


def _period(query: Mapping[str, str], allowed: str) -> str:
    return _choice(query, "FID_PERIOD_DIV_CODE", allowed)


def _choice(query: Mapping[str, str], name: str, allowed: str) -> str:
    value = required(query, name)
    if value not in tuple(allowed):
        raise invalid(name)
    return value
