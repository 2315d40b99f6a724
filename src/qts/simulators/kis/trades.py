"""KIS trades of today over REST: the last ones of a symbol, and those up to a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from qts.simulators.kis.charts import second_in
from qts.simulators.kis.gateway import names, success
from qts.simulators.kis.quotes import KisQuoteApi, blank
from qts.simulators.market.sessions import DAY_S, hhmmss
from qts.simulators.market.stocks import StockMarket
from qts.simulators.market.ticks import Flags, Ints

ROWS = 30
_KEPT_SECONDS = 900
_SUMMARY_FIELDS = names("""
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol prdy_vol rprs_mrkt_kor_name
""")


class StockTrade(NamedTuple):
    time: int
    price: int
    size: int
    volume: int
    """Of the day, this trade included."""
    bought: int
    """Part of the volume that was bought at the ask."""
    at_ask: int


class StockTrades(NamedTuple):
    """Trades of one second: the indexes of the symbols, in order, and a value for each."""

    time: int
    symbols: Ints
    price: Ints
    size: Ints
    volume: Ints
    bought: Ints
    at_ask: Flags


class TradeLog:
    """The trades of the last seconds in which something traded."""

    def __init__(self, market: StockMarket) -> None:
        self._market = market
        self._seconds: deque[StockTrades] = deque(maxlen=_KEPT_SECONDS)

    def on_second(self) -> None:
        m = self._market
        at = np.flatnonzero(m.traded)
        if len(at):
            columns = (m.price[at], m.size[at], m.volume[at], m.buy_volume[at], m.at_ask[at])
            self._seconds.append(StockTrades(m.time, at, *columns))

    def newest(self, index: int) -> Iterator[StockTrade]:
        """Yield the trades of today, newest first."""
        today = self._market.time // DAY_S
        for second in reversed(self._seconds):
            if second.time // DAY_S != today:
                return
            at = int(np.searchsorted(second.symbols, index))
            if at < len(second.symbols) and second.symbols[at] == index:
                values = (int(column[at]) for column in second[2:])
                yield StockTrade(second.time, *values)


class KisTradeApi:
    def __init__(self, market: StockMarket, quotes: KisQuoteApi) -> None:
        self._market = market
        self._quotes = quotes
        self._log = TradeLog(market)
        self.on_second = self._log.on_second

    # inquire-ccnl

    def last(self, query: Mapping[str, str]) -> dict[str, Any]:
        index = self._quotes.symbol(query)
        if index is None:
            return success({"output": []})
        rows = []
        for trade in self._taken(index):
            change = self._quotes.change(index, trade.price)
            rows.append(
                {
                    "stck_cntg_hour": hhmmss(trade.time),
                    "stck_prpr": str(trade.price),
                    "prdy_vrss": change["prdy_vrss"],
                    "prdy_vrss_sign": change["prdy_vrss_sign"],
                    "cntg_vol": str(trade.size),
                    "tday_rltv": _strength(trade),
                    "prdy_ctrt": change["prdy_ctrt"],
                }
            )
        return success({"output": rows})

    # inquire-time-itemconclusion

    def until(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return 30 trades up to a time of today."""
        index, end = self._quotes.symbol(query), second_in(query)
        if index is None:
            return success({"output1": blank(_SUMMARY_FIELDS), "output2": []})
        m, tick = self._market, self._market.table.tick
        rows = []
        for trade in self._taken(index, end):
            spread = tick(trade.price)
            rows.append(
                {
                    "stck_cntg_hour": hhmmss(trade.time),
                    "stck_pbpr": str(trade.price),
                    **self._quotes.change(index, trade.price),
                    "askp": str(trade.price if trade.at_ask else trade.price + spread),
                    "bidp": str(trade.price - spread if trade.at_ask else trade.price),
                    "tday_rltv": _strength(trade),
                    "acml_vol": str(trade.volume),
                    "cnqn": str(trade.size),
                }
            )
        summary = {
            **self._quotes.headline(index),
            "acml_vol": str(m.volume[index]),
            "prdy_vol": str(m.prev_volume[index]),
            "rprs_mrkt_kor_name": self._quotes.market_name(index),
        }
        return success({"output1": summary, "output2": rows})

    def _taken(self, index: int, end: int = DAY_S) -> list[StockTrade]:
        found = (trade for trade in self._log.newest(index) if trade.time % DAY_S <= end)
        return [trade for trade, _ in zip(found, range(ROWS), strict=False)]


def _strength(trade: StockTrade) -> str:
    """Return what was bought at the ask against what was sold at the bid, in percent."""
    return f"{100 * trade.bought / max(1, trade.volume - trade.bought):.2f}"
