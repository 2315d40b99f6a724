"""Fills that are worse or later than the decision are reported once a minute for a symbol."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from uuid import uuid4

import pytest

from qts.domain import IntentType, ManualClock, OrderType, Side, Tick
from qts.events import Catalogue, EventEngine, EventsConfig
from qts.events import payloads as p
from qts.orders import SubmitResult
from qts.pipeline import Portfolio
from qts.pipeline.fill_monitor import FillMonitor
from qts.risk import FillLimits, OrderProposal
from tests.instruments import LISTED

SYMBOL = "005930"


class Desk:
    """Orders decided at 10,000 won; their fills pass lane P0."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.codes: list[str] = []
        self.portfolio = Portfolio(self.clock, LISTED)
        self.tick(SYMBOL)
        self.engine = EventEngine(EventsConfig(), Catalogue())
        self.monitor = FillMonitor(
            self.engine,
            self.portfolio,
            FillLimits(),
            lambda code, _text: self.codes.append(code),
            self.clock,
        )

    def tick(self, symbol: str) -> None:
        self.portfolio.apply_tick(Tick(symbol, 10_000, 1, 10_000, 10_000, 0.0))

    def submit(self, side: Side, price: Decimal | None = None, symbol: str = SYMBOL) -> str:
        now = self.clock.now()
        proposal = OrderProposal(
            strategy_key="s",
            symbol=symbol,
            side=side,
            type=OrderType.MARKET if price is None else OrderType.LIMIT,
            quantity=Decimal(2),
            price=price,
            intent_type=IntentType.ENTRY if side is Side.BUY else IntentType.EXIT_SIGNAL,
            signal_id=uuid4(),
            decided_at=now,
            expires_at=now,
        )
        submitted = SubmitResult(intent_id=uuid4(), attempt_id=uuid4(), is_new=True)
        self.monitor.submitted(proposal, submitted)
        return str(submitted.intent_id)

    async def fill(
        self, intent_id: str, side: Side, price: int, name: str = "FILL_CONFIRMED"
    ) -> list[str]:
        payload = p.FillPayload(
            order_id="o",
            symbol=SYMBOL,
            filled_qty=1.0,
            filled_price=float(price),
            filled_time=0.0,
            side=side,
            intent_id=intent_id,
        )
        self.engine.publish(self.engine.new_event(name, payload, "orders"))
        assert await asyncio.to_thread(self.engine.wait_drained, 10)
        return self.codes


@pytest.mark.parametrize(
    ("side", "price", "codes"),
    [
        (Side.BUY, 10_030, []),
        (Side.BUY, 10_031, ["GR063"]),
        (Side.BUY, 10_051, ["FS094"]),
        (Side.BUY, 9_000, []),
        (Side.SELL, 9_970, []),
        (Side.SELL, 9_969, ["GR063"]),
        (Side.SELL, 9_949, ["FS094"]),
        (Side.SELL, 11_000, []),
    ],
)
async def test_slippage_counts_against_us_alone(side: Side, price: int, codes: list[str]) -> None:
    desk = Desk()
    with desk.engine:
        intent = desk.submit(side)
        assert await desk.fill(intent, side, price) == codes


async def test_parts_of_a_fill_are_reported_once_a_minute() -> None:
    desk = Desk()
    with desk.engine:
        intent = desk.submit(Side.BUY)
        for _ in range(3):
            await desk.fill(intent, Side.BUY, 10_100, "FILL_PARTIAL")
        assert desk.codes == ["FS094"]
        await desk.clock.advance(60)
        assert await desk.fill(intent, Side.BUY, 10_100) == ["FS094", "FS094", "GR064"]


async def test_a_limit_order_may_rest_and_is_compared_with_its_limit() -> None:
    desk = Desk()
    with desk.engine:
        intent = desk.submit(Side.BUY, Decimal(9_900))
        await desk.clock.advance(3600)
        assert await desk.fill(intent, Side.BUY, 9_900) == []


async def test_a_market_order_that_fills_late_is_noticed() -> None:
    desk = Desk()
    with desk.engine:
        intent = desk.submit(Side.BUY)
        await desk.clock.advance(29)
        assert await desk.fill(intent, Side.BUY, 10_000, "FILL_PARTIAL") == []
        await desk.clock.advance(2)
        assert await desk.fill(intent, Side.BUY, 10_000) == ["GR064"]


async def test_orders_of_others_and_orders_without_a_price_are_not_compared() -> None:
    desk = Desk()
    with desk.engine:
        unpriced = desk.submit(Side.BUY, symbol="000660")
        for intent in ("", str(uuid4()), unpriced):
            assert await desk.fill(intent, Side.BUY, 20_000) == []
