"""Upbit market data over REST: markets, tickers, order books, trades, candles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from qts.simulators.market.history import COIN_DAYS, MINUTE_S, NO_BARS, Bars, MarketHistory
from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import (
    COIN,
    DAY_S,
    Flags,
    Ints,
    SimulatedLevel,
    moment_of,
    seconds_of,
    utc_ms,
)
from qts.simulators.upbit.gateway import UpbitError, amount_of, number, text

MAX_TRADES, MAX_LEVELS, MAX_DAYS_AGO = 500, 30, 7
_RECENT_SECONDS = 500


class TradedSecond(NamedTuple):
    time: int
    traded: Flags
    price: Ints
    size: Ints
    at_ask: Flags
    base: Ints


class UpbitQuoteApi:
    def __init__(self, market: CoinMarket) -> None:
        self._market = market
        self.recent: deque[TradedSecond] = deque(maxlen=_RECENT_SECONDS)
        self.history = MarketHistory(
            market.universe, market.table, market.seed, market.time, COIN_DAYS
        )

    def index(self, code: str) -> int:
        index = self._market.index.get(code)
        if index is None:
            raise UpbitError(404, 404, "Code not found")
        return index

    def indexes(self, codes: str) -> list[int]:
        if not codes:
            raise UpbitError(400, 400, "markets is missing")
        return [self.index(code.strip()) for code in codes.split(",")]

    def markets(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the markets, with warnings if details are asked for."""
        universe = self._market.universe
        details = query.get("is_details", query.get("isDetails", "false")).lower() == "true"
        caution = dict.fromkeys(_CAUTIONS, False)
        event = {"market_event": {"warning": False, "caution": caution}} if details else {}
        return [
            {"market": code, "korean_name": name, "english_name": name, **event}
            for code, name in zip(universe.codes, universe.names, strict=True)
        ]

    def ticker(self, i: int) -> dict[str, Any]:
        """Return a ticker, whose values and names the stream uses too."""
        m = self._market
        price, base = int(m.price[i]), int(m.base[i])
        traded = moment_of(int(m.traded_at[i]))
        in_utc = traded.astimezone(UTC)
        change = number(abs(price - base))
        rate = abs(price - base) / base
        falls = -1 if price < base else 1
        year = f"{traded.year}-01-01"
        return {
            "market": m.universe.codes[i],
            "trade_date": in_utc.strftime("%Y%m%d"),
            "trade_time": in_utc.strftime("%H%M%S"),
            "trade_date_kst": traded.strftime("%Y%m%d"),
            "trade_time_kst": traded.strftime("%H%M%S"),
            "trade_timestamp": utc_ms(int(m.traded_at[i])),
            "opening_price": number(int(m.open[i])),
            "high_price": number(int(m.high[i])),
            "low_price": number(int(m.low[i])),
            "trade_price": number(price),
            "prev_closing_price": number(base),
            "change": "RISE" if price > base else "FALL" if price < base else "EVEN",
            "change_price": change,
            "change_rate": rate,
            "signed_change_price": falls * change,
            "signed_change_rate": falls * rate,
            "trade_volume": number(int(m.size[i])),
            "acc_trade_price": float(m.value[i]),
            "acc_trade_price_24h": m.day_volume(i) * price / COIN,
            "acc_trade_volume": float(m.volume[i]),
            "acc_trade_volume_24h": m.day_volume(i),
            "highest_52_week_price": number(int(m.high[i])),
            "highest_52_week_date": year,
            "lowest_52_week_price": number(int(m.low[i])),
            "lowest_52_week_date": year,
            "timestamp": utc_ms(m.time),
        }

    def order_books(self, query: Mapping[str, str], codes: str) -> list[dict[str, Any]]:
        """Return `count` levels of each book; `level` groups prices, where a market has it."""
        count, level = query.get("count", str(MAX_LEVELS)), query.get("level", "0")
        if not count.isdigit() or not 1 <= int(count) <= MAX_LEVELS:
            raise UpbitError(400, 400, f"count is 1 to {MAX_LEVELS}")
        step = 0 if level in ("", "0") else amount_of(level, "validation_error")
        found = self.indexes(codes)
        if any(step not in self._steps(i) for i in found):
            return []
        return [self.order_book(i, int(count), step) for i in found]

    def order_book(self, i: int, depth: int = MAX_LEVELS, step: int = 0) -> dict[str, Any]:
        m, book = self._market, self._market.book(i)
        asks, bids = _grouped(book.asks, step, up=True), _grouped(book.bids, step, up=False)
        return {
            "market": m.universe.codes[i],
            "timestamp": utc_ms(m.time),
            "total_ask_size": number(sum(level.quantity for level in book.asks)),
            "total_bid_size": number(sum(level.quantity for level in book.bids)),
            "orderbook_units": [
                {
                    "ask_price": number(ask.price),
                    "bid_price": number(bid.price),
                    "ask_size": number(ask.quantity),
                    "bid_size": number(bid.quantity),
                }
                for ask, bid in list(zip(asks, bids, strict=False))[:depth]
            ],
            "level": number(step),
        }

    def best(self, i: int) -> dict[str, Any]:
        """Return the best levels, which a trade of the stream shows."""
        (unit,) = self.order_book(i, 1)["orderbook_units"] or [{}]
        names = ("ask_price", "ask_size", "bid_price", "bid_size")
        return {f"best_{name}": unit.get(name, 0) for name in names}

    def _steps(self, i: int) -> list[int]:
        """Return the groupings of a market: 10, 100 … ticks; 0 is none."""
        tick = self._market.table.tick(int(self._market.price[i]))
        return [0, *(tick * 10**power for power in range(1, 6))]

    def instrument(self, i: int) -> dict[str, Any]:
        tick = self._market.table.tick(int(self._market.price[i]))
        return {
            "market": self._market.universe.codes[i],
            "quote_currency": "KRW",
            "tick_size": text(tick),
            "supported_levels": [text(step) for step in self._steps(i)],
        }

    def supported_levels(self, i: int) -> dict[str, Any]:
        levels = [number(step) for step in self._steps(i)]
        return {"market": self._market.universe.codes[i], "supported_levels": levels}

    def on_second(self) -> None:
        """Record the trades of this second."""
        m = self._market
        self.recent.append(TradedSecond(m.time, m.traded, m.price, m.size, m.at_ask, m.base))
        self.history.record(m)

    def trade_list(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return trades before `to` and `cursor`; of today, or of one of seven days before."""
        index = self.index(query.get("market", ""))
        count, ago = query.get("count", "1"), query.get("days_ago", "0")
        if not count.isdigit() or not 1 <= int(count) <= MAX_TRADES:
            raise UpbitError(400, 400, f"count is 1 to {MAX_TRADES}")
        if not ago.isdigit() or int(ago) > MAX_DAYS_AGO:
            raise UpbitError(400, 400, f"days_ago is 1 to {MAX_DAYS_AGO}")
        to, cursor = query.get("to", "").replace(":", ""), query.get("cursor", "")
        found = self._trades_of(index, int(ago)) if int(ago) else self._trades_now(index)
        kept = (
            trade
            for trade in found
            if (not to or trade["trade_time_utc"].replace(":", "") < to)
            and (not cursor.isdigit() or trade["sequential_id"] < int(cursor))
        )
        return list(islice(kept, int(count)))

    def _trades_of(self, i: int, days_ago: int) -> Iterator[dict[str, Any]]:
        """Yield a trade for each minute of a past day, newest first."""
        day = COIN_DAYS.day_of(self._market.time) - days_ago
        start = day * DAY_S + COIN_DAYS.offset
        bars = self.history.minutes(i, start, start + DAY_S)
        for at in range(len(bars.start) - 1, -1, -1):
            price, up = int(bars.close[at]), bars.close[at] >= bars.open[at]
            second = int(bars.start[at]) + MINUTE_S - 1
            yield self._trade(i, second, (price, int(bars.volume[at]), bool(up), int(bars.open[0])))

    def trades(self, i: int, count: int = 1) -> list[dict[str, Any]]:
        """Return the latest trades, newest first."""
        return list(islice(self._trades_now(i), count))

    def _trades_now(self, i: int) -> Iterator[dict[str, Any]]:
        for second in reversed(self.recent):
            if second.traded[i]:
                price, size = int(second.price[i]), int(second.size[i])
                at_ask, base = bool(second.at_ask[i]), int(second.base[i])
                yield self._trade(i, second.time, (price, size, at_ask, base))

    def _trade(self, i: int, time: int, terms: tuple[int, int, bool, int]) -> dict[str, Any]:
        at = moment_of(time).astimezone(UTC)
        price, size, at_ask, base = terms
        return {
            "market": self._market.universe.codes[i],
            "trade_date_utc": at.strftime("%Y-%m-%d"),
            "trade_time_utc": at.strftime("%H:%M:%S"),
            "timestamp": utc_ms(time),
            "trade_price": number(price),
            "trade_volume": number(size),
            "prev_closing_price": number(base),
            "change_price": number(price - base),
            "ask_bid": "BID" if at_ask else "ASK",
            "sequential_id": utc_ms(time) * 1000 + i % 1000,
        }


def _grouped(levels: tuple[SimulatedLevel, ...], step: int, up: bool) -> Sequence[SimulatedLevel]:
    """Return the levels added up at multiples of a step: asks upwards, bids downwards."""
    if not step:
        return levels
    sums: dict[int, int] = {}
    for level in levels:
        price = -(-level.price // step) * step if up else level.price // step * step
        sums[price] = sums.get(price, 0) + level.quantity
    return [SimulatedLevel(price, quantity) for price, quantity in sums.items()]


_CAUTIONS = (
    "PRICE_FLUCTUATIONS",
    "TRADING_VOLUME_SOARING",
    "DEPOSIT_AMOUNT_SOARING",
    "GLOBAL_PRICE_DIFFERENCES",
    "CONCENTRATION_OF_SMALL_ACCOUNTS",
)


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
