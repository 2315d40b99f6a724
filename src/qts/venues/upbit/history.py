"""Candles of Upbit: pages of 200, newest first, back from a moment that is excluded.

A candle exists only where something traded, so that pages are continued at their oldest candle.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from qts.domain import Bar, Market, Timeframe, UnreachableError
from qts.venues.bar_history import SETTLE_S, BarPage, EarliestBars, check_clock
from qts.venues.config import UpbitConfig, is_loopback
from qts.venues.ratelimit.limits import RequestPriority
from qts.venues.upbit.client import UpbitClient

MAX_CANDLES = 200
_OPENED = datetime(2017, 9, 25, tzinfo=UTC).timestamp()  # the first candle of Upbit
_PATHS = {Timeframe.M1: "/v1/candles/minutes/1", Timeframe.D1: "/v1/candles/days"}


class UpbitHistoryRules:
    """Candles since Upbit opened; a day begins at midnight UTC."""

    market = Market.UPBIT
    zone = UTC

    def __init__(self, config: UpbitConfig) -> None:
        self.simulated = is_loopback(config.url)
        self.per_second = float(config.quotes_per_second)

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:  # noqa: ARG002 - as the port has it
        return EarliestBars(_OPENED, "Upbit has no older candles")

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        return end - bars * timeframe.seconds

    def latest(self, timeframe: Timeframe, now: float) -> float:
        return (now - SETTLE_S) // timeframe.seconds * timeframe.seconds

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        return math.ceil((end - start) / timeframe.seconds / MAX_CANDLES)


class UpbitHistory:
    """BarHistory of Upbit."""

    def __init__(self, client: UpbitClient) -> None:
        self._client = client

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        before = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = [("market", symbol), ("to", before), ("count", str(MAX_CANDLES))]
        rows = await self._client.call(
            "GET", _PATHS[timeframe], values, "quotes", RequestPriority.HISTORY
        )
        check_clock("Upbit", self._client.skew)
        try:
            bars = sorted((_bar(symbol, timeframe, row) for row in rows), key=lambda bar: bar.at)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreachableError(f"Upbit sent candles that cannot be parsed: {error}") from None
        oldest = bars[0].at - timeframe.seconds if bars else start
        return BarPage([bar for bar in bars if start < bar.at <= end], max(start, oldest))

    async def symbols(self) -> list[str] | None:
        """Return the symbols that Upbit lists."""
        rows = await self._client.call(
            "GET", "/v1/market/all", [], "quotes", RequestPriority.HISTORY
        )
        return [str(row["market"]) for row in rows]


def _bar(symbol: str, timeframe: Timeframe, row: dict[str, Any]) -> Bar:
    opened = datetime.fromisoformat(row["candle_date_time_utc"]).replace(tzinfo=UTC).timestamp()
    return Bar(
        symbol,
        timeframe,
        opened + timeframe.seconds,
        float(row["opening_price"]),
        float(row["high_price"]),
        float(row["low_price"]),
        float(row["trade_price"]),
        float(row["candle_acc_trade_volume"]),
        float(row["candle_acc_trade_price"]),
    )
