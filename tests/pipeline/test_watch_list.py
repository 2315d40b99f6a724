"""The watch list: positions and orders reach the feed, the largest first, and leave it again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import cast

from qts.database import Database
from qts.domain import AccountKey, ManualClock, OperationError, Position
from qts.pipeline import Portfolio
from qts.pipeline.tick_publisher import SUBMITTED_S, WatchList
from qts.telemetry import metric_samples
from tests.instruments import LISTED


class FakeFeed:
    """Records what is watched; every price is half a second old."""

    def __init__(self) -> None:
        self.watched: list[str] = []
        self.calls = 0

    def watch(self, symbols: Sequence[str], on_order: Collection[str]) -> None:
        self.watched, self.calls = list(symbols), self.calls + 1
        self.on_order = set(on_order)

    def price_age_s(self, symbol: str) -> float | None:
        return 0.5 if symbol in self.watched else None


class FakeDatabase:
    """A ledger whose open orders the test sets; `failed` makes it unreachable."""

    def __init__(self) -> None:
        self.symbols: list[str] = []
        self.failed = False

    async def fetch(self, _query: str, *_values: object) -> list[dict[str, str]]:
        if self.failed:
            raise OperationError("the database is unreachable")
        return [{"symbol": symbol} for symbol in self.symbols]


def ages() -> dict[str, float]:
    samples = metric_samples().get("qts_position_price_age_seconds", [])
    return {
        labels["symbol"]: value
        for labels, value in samples
        if labels["symbol"] in ("000660", "005930")
    }


async def test_positions_and_orders_are_watched_while_they_last() -> None:
    clock, feed, database = ManualClock(), FakeFeed(), FakeDatabase()
    portfolio = Portfolio(clock, LISTED)
    watch_list = WatchList(portfolio, feed, clock)
    task = asyncio.create_task(watch_list.run(cast(Database, database), AccountKey("kis", "1")))
    try:
        await clock.advance(0.2)
        assert feed.calls == 0
        portfolio.load(
            Decimal(1000),
            [
                Position("005930", Decimal(1), Decimal(100)),
                Position("000660", Decimal(5), Decimal(100)),
            ],
        )
        await clock.advance(0.1)
        assert feed.watched == ["000660", "005930"]
        await clock.advance(1.0)
        assert ages() == {"000660": 0.5, "005930": 0.5}
        watch_list.submitted("035720")
        assert feed.watched == ["000660", "005930", "035720"]  # at once
        assert feed.on_order == {"035720"}
        database.symbols = ["035720"]
        await clock.advance(SUBMITTED_S + 1)
        assert "035720" in feed.watched
        database.failed = True
        await clock.advance(5.0)
        assert "035720" in feed.watched  # the last that is known
        database.failed, database.symbols = False, []
        portfolio.load(Decimal(1000), [Position("005930", Decimal(1), Decimal(100))])
        await clock.advance(1.2)
        assert feed.watched == ["005930"]
        assert ages() == {"005930": 0.5}
        calls = feed.calls
        await clock.advance(10.0)
        assert feed.calls == calls
    finally:
        task.cancel()
        await asyncio.wait({task})
