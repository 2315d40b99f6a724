"""Upbit candles over REST: seconds, minutes, days, weeks, months, years; newest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from qts.simulators.market.coins import CoinMarket
from qts.simulators.market.history import COIN_DAYS, MINUTE_S, NO_BARS, Bars
from qts.simulators.market.sessions import DAY_S, moment_of, seconds_of, utc_ms
from qts.simulators.market.ticks import COIN
from qts.simulators.upbit.gateway import UpbitError, number
from qts.simulators.upbit.quotes import UpbitQuoteApi

MAX_CANDLES = 200
UNITS = (1, 3, 5, 10, 15, 30, 60, 240)
_FIRST: dict[str, Callable[[int], int]] = {  # day of the period of a day
    "weeks": lambda day: day - (day - 1) % 7,
    "months": lambda day: date.fromordinal(day).replace(day=1).toordinal(),
    "years": lambda day: date.fromordinal(day).replace(month=1, day=1).toordinal(),
}


class UpbitCandleApi:
    def __init__(self, market: CoinMarket, quotes: UpbitQuoteApi) -> None:
        self._market = market
        self._quotes = quotes

    def minutes(self, query: Mapping[str, str], unit: int) -> list[dict[str, Any]]:
        """Return the candles of `unit` minutes that start before `to`, newest first."""
        if unit not in UNITS:
            raise UpbitError(400, 400, f"unit is one of {', '.join(map(str, UNITS))}")
        index, end, count = self._window(query)
        span = unit * MINUTE_S
        since_midnight = (end - 1 - COIN_DAYS.offset) % span
        end = min(end - 1 - since_midnight + span, self._market.time + 1)  # the whole last candle
        found = NO_BARS
        for last, first in self._days_before(index, end):
            day = self._quotes.history.minutes(index, first, min(last, end))
            found = day.grouped(day.start - (day.start - COIN_DAYS.offset) % span).join(found)
            if len(found.start) >= count:
                break
        return [{**row, "unit": unit} for row in self._rows(index, found, count)]

    def days(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the candles of days in UTC, newest first, with the change from the day before."""
        index, end, count = self._window(query)
        found = NO_BARS
        for _, first in self._days_before(index, end):
            found = self._quotes.history.day(index, COIN_DAYS.day_of(first)).join(found)
            if len(found.start) > count:
                break
        found = found._replace(start=found.start * DAY_S + COIN_DAYS.offset)
        rows = self._rows(index, found, count)
        unit = query.get("converting_price_unit", query.get("convertingPriceUnit"))
        closes = [number(int(close)) for close in found.close[::-1]]
        for row, before in zip(rows, [*closes[1:], closes[-1]] if closes else [], strict=False):
            change = row["trade_price"] - before
            row |= {
                "prev_closing_price": before,
                "change_price": change,
                "change_rate": change / before,
            }
            if unit == "KRW":
                row["converted_trade_price"] = row["trade_price"]
        return rows

    def periods(self, query: Mapping[str, str], kind: str) -> list[dict[str, Any]]:
        """Return weeks, months or years; their first day is that of the calendar."""
        index, end, count = self._window(query)
        first_of = _FIRST[kind]
        found, starts = NO_BARS, set()
        for _, first in self._days_before(index, end):
            day = COIN_DAYS.day_of(first)
            starts.add(first_of(day))
            if len(starts) > count:
                break
            found = self._quotes.history.day(index, day).join(found)
        periods = np.array([first_of(int(day)) for day in found.start], np.int64)
        grouped = found.grouped(periods)
        grouped = grouped._replace(start=grouped.start * DAY_S + COIN_DAYS.offset)
        rows = self._rows(index, grouped, count)
        for row in rows:
            row["first_day_of_period"] = row["candle_date_time_utc"][:10]
        return rows

    def seconds(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the candles of traded seconds; those that the simulator still remembers."""
        index, end, count = self._window(query)
        rows: list[dict[str, Any]] = []
        for second in reversed(self._quotes.recent):
            if len(rows) == count:
                break
            if second.traded[index] and second.time < end:
                price, size = int(second.price[index]), int(second.size[index])
                columns = (second.time, price, price, price, price, size, price * size)
                bar = Bars._make(np.array([column], np.float64) for column in columns)
                rows += self._rows(index, bar, 1)
        return rows

    def _window(self, query: Mapping[str, str]) -> tuple[int, int, int]:
        """Return symbol, end and count; `to` without an offset is UTC, and exclusive."""
        index, count = self._quotes.index(query.get("market", "")), query.get("count", "1")
        if not count.isdigit() or not 1 <= int(count) <= MAX_CANDLES:
            raise UpbitError(400, 400, f"count is 1 to {MAX_CANDLES}")
        end = self._market.time + 1
        if to := query.get("to"):
            try:
                moment = datetime.fromisoformat(to.replace(" ", "T"))
            except ValueError:
                raise UpbitError(400, 400, "to is not a time of ISO 8601") from None
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            end = min(end, seconds_of(aware + timedelta(microseconds=999_999)))
        return index, end, int(count)

    def _days_before(self, index: int, end: int) -> list[tuple[int, int]]:
        """Return end and start of the days of a symbol, newest first, before a moment."""
        last, oldest = COIN_DAYS.day_of(end - 1), self._quotes.history.listed_on(index)
        starts = [day * DAY_S + COIN_DAYS.offset for day in range(last, oldest - 1, -1)]
        return [(start + DAY_S, start) for start in starts]

    def _rows(self, index: int, bars: Bars, count: int) -> list[dict[str, Any]]:
        rows = []
        for at in range(len(bars.start) - 1, max(-1, len(bars.start) - 1 - count), -1):
            opens, high, low, close = (number(int(column[at])) for column in bars[1:5])
            start = moment_of(int(bars.start[at]))
            rows.append(
                {
                    "market": self._market.universe.codes[index],
                    "candle_date_time_utc": start.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
                    "candle_date_time_kst": start.strftime("%Y-%m-%dT%H:%M:%S"),
                    "opening_price": opens,
                    "high_price": high,
                    "low_price": low,
                    "trade_price": close,
                    "timestamp": utc_ms(int(bars.start[at])) + 59_000,
                    "candle_acc_trade_price": float(bars.value[at]) / COIN / COIN,
                    "candle_acc_trade_volume": int(bars.volume[at]) / COIN,
                }
            )
        return rows
