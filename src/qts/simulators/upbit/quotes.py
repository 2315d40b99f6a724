"""Upbit market data over REST: markets, tickers, order books, trades, candles."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from qts.simulators.market.coins import CoinMarket
from qts.simulators.market.history import COIN_DAYS, MINUTE_S, NO_BARS, Bars, MarketHistory
from qts.simulators.market.sessions import DAY_S, moment_of, seconds_of, utc_ms
from qts.simulators.market.ticks import COIN, Flags, Ints
from qts.simulators.upbit.gateway import UpbitError, number, text

MAX_CANDLES = 200
UNITS = (1, 3, 5, 10, 15, 30, 60, 240)
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
        self._recent: deque[TradedSecond] = deque(maxlen=_RECENT_SECONDS)
        self._history = MarketHistory(
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

    def markets(self) -> list[dict[str, Any]]:
        universe = self._market.universe
        return [
            {
                "market": code,
                "korean_name": name,
                "english_name": name,
                "market_event": {
                    "warning": False,
                    "caution": {
                        "PRICE_FLUCTUATIONS": False,
                        "TRADING_VOLUME_SOARING": False,
                        "DEPOSIT_AMOUNT_SOARING": False,
                        "GLOBAL_PRICE_DIFFERENCES": False,
                        "CONCENTRATION_OF_SMALL_ACCOUNTS": False,
                    },
                },
            }
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

    def order_book(self, i: int, depth: int = 30) -> dict[str, Any]:
        m, book = self._market, self._market.book(i)
        pairs = list(zip(book.asks, book.bids, strict=False))[:depth]
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
                for ask, bid in pairs
            ],
            "level": 0,
        }

    def instrument(self, i: int) -> dict[str, Any]:
        tick = self._market.table.tick(int(self._market.price[i]))
        return {
            "market": self._market.universe.codes[i],
            "quote_currency": "KRW",
            "tick_size": text(tick),
            "supported_levels": ["0"],
        }

    def on_second(self) -> None:
        """Record the trades of this second."""
        m = self._market
        self._recent.append(TradedSecond(m.time, m.traded, m.price, m.size, m.at_ask, m.base))
        self._history.record(m)

    def trades(self, i: int, count: int = 1) -> list[dict[str, Any]]:
        """Return the latest trades, newest first."""
        trades: list[dict[str, Any]] = []
        for second in reversed(self._recent):
            if len(trades) >= count:
                break
            if second.traded[i]:
                trades.append(self._trade(i, second))
        return trades

    def _trade(self, i: int, second: TradedSecond) -> dict[str, Any]:
        at = moment_of(second.time).astimezone(UTC)
        price, base = int(second.price[i]), int(second.base[i])
        return {
            "market": self._market.universe.codes[i],
            "trade_date_utc": at.strftime("%Y-%m-%d"),
            "trade_time_utc": at.strftime("%H:%M:%S"),
            "timestamp": utc_ms(second.time),
            "trade_price": number(price),
            "trade_volume": number(int(second.size[i])),
            "prev_closing_price": number(base),
            "change_price": number(price - base),
            "ask_bid": "BID" if second.at_ask[i] else "ASK",
            "sequential_id": utc_ms(second.time) * 1000 + i % 1000,
        }

    # Candles

    def candles(self, query: Mapping[str, str], unit: int) -> list[dict[str, Any]]:
        """Return the candles of `unit` minutes that start before `to`, newest first."""
        if unit not in UNITS:
            raise UpbitError(400, 400, f"unit is one of {', '.join(map(str, UNITS))}")
        index, end, count = self._window(query)
        span = unit * MINUTE_S
        since_midnight = (end - 1 - COIN_DAYS.offset) % span
        end = min(end - 1 - since_midnight + span, self._market.time + 1)  # the whole last candle
        found = NO_BARS
        for last, first in self._days_before(index, end):
            day = self._history.minutes(index, first, min(last, end))
            found = day.grouped(day.start - (day.start - COIN_DAYS.offset) % span).join(found)
            if len(found.start) >= count:
                break
        return [{**row, "unit": unit} for row in self._rows(index, found, count)]

    def day_candles(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the candles of days in UTC, newest first, with the change from the day before."""
        index, end, count = self._window(query)
        found = NO_BARS
        for _, first in self._days_before(index, end):
            found = self._history.day(index, COIN_DAYS.day_of(first)).join(found)
            if len(found.start) > count:
                break
        found = found._replace(start=found.start * DAY_S + COIN_DAYS.offset)
        rows = self._rows(index, found, count)
        closes = [number(int(close)) for close in found.close[::-1]]
        for row, before in zip(rows, [*closes[1:], closes[-1]] if closes else [], strict=False):
            change = row["trade_price"] - before
            row |= {
                "prev_closing_price": before,
                "change_price": change,
                "change_rate": change / before,
            }
        return rows

    def _window(self, query: Mapping[str, str]) -> tuple[int, int, int]:
        """Return symbol, end and count; `to` without an offset is UTC, and exclusive."""
        index, count = self.index(query.get("market", "")), query.get("count", "1")
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
        last, oldest = COIN_DAYS.day_of(end - 1), self._history.listed_on(index)
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
