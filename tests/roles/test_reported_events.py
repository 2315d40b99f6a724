"""Changes of orders that an earlier process stored and did not report are reported by the next."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import pytest

from qts.domain import Side
from qts.orders import FillReceived, OrderClosed
from qts.outbox import TRADE_EVENT, Delivery, Dispatcher, Envelope, RetryableError
from qts.pipeline import PortfolioState
from qts.roles import ReportedEvents, ReportSender
from qts.roles import reported_events as module
from qts.roles.remote_strategies import decode_report
from tests.pipeline.counting import ACCOUNT
from tests.roles.channel import Channel

D = Decimal
BEGAN = datetime(2026, 11, 16, 1, tzinfo=UTC)
ATTEMPT, INTENT = uuid4(), uuid4()


class Ledger:
    """One order of a strategy, with what is filled of it."""

    def __init__(self, strategy_key: str = "buyer", filled: int = 3) -> None:
        self.row = {
            "intent_id": str(INTENT),
            "strategy_key": strategy_key,
            "symbol": "005930",
            "side": "BUY",
            "price": D(70_000),
            "quantity": D(3),
            "filled": D(filled),
        }

    async def fetchrow(self, _query: str, attempt_id: UUID) -> dict[str, Any] | None:
        return self.row if attempt_id == ATTEMPT else None


def fill(attempt_id: UUID | None = ATTEMPT) -> FillReceived:
    return FillReceived(
        trade_id="t1",
        broker_order_id="o1",
        symbol="005930",
        side=Side.BUY,
        quantity=D(3),
        price=D(70_000),
        fee=D(1),
        order_attempt_id=attempt_id,
        position_quantity=D(3),
        average_price=D(70_000),
        realised_pnl=D(0),
    )


def delivery(payload: msgspec.Struct, at: datetime) -> Delivery:
    raw = msgspec.Raw(msgspec.json.encode(payload))
    kind = type(payload).__name__
    envelope = Envelope(type=kind, trace_id="t", payload=raw, occurred_at=at)
    return Delivery(TRADE_EVENT, "Market", "005930", envelope, 1, 10)


class Process:
    def __init__(self, ledger: Ledger) -> None:
        self.channel, inner = Channel(), Dispatcher()
        inner.ignore(TRADE_EVENT)
        state = PortfolioState()
        connection = self.channel.connection
        self.sender = ReportSender(connection, ACCOUNT, lambda: state, lambda: True)
        database = cast("Any", ledger)
        self.events = ReportedEvents(inner, database, self.sender, {"buyer"}, BEGAN)

    async def handle(self, payload: msgspec.Struct, age_s: float) -> list[Any]:
        """Handle an event of so long before the start; return what was reported meanwhile."""
        work = self.events.dispatch(delivery(payload, BEGAN - timedelta(seconds=age_s)))
        handling = asyncio.ensure_future(work)
        for _ in range(20):
            await asyncio.sleep(0)
            await self.sender.flush()
        await handling
        return [each for _, data in self.channel.sent for each in decode_report(data).reports]


async def test_a_fill_that_an_earlier_process_did_not_report_is_reported() -> None:
    (report,) = await Process(Ledger()).handle(fill(), age_s=1)
    assert report.strategy_key == "buyer"
    assert (report.update.fill.trade_id, report.update.fill.quantity) == ("t1", D(3))
    assert report.update.order.state == "FILLED"
    (partial,) = await Process(Ledger(filled=1)).handle(fill(), age_s=1)
    assert partial.update.order is None
    assert partial.id == report.id  # a strategy takes it once


async def test_a_cancelled_order_is_reported() -> None:
    closed = OrderClosed(
        broker_order_id="o1",
        order_attempt_id=ATTEMPT,
        symbol="005930",
        state="CANCELLED",
        filled=D(1),
    )
    (report,) = await Process(Ledger(filled=1)).handle(closed, age_s=1)
    assert report.update.fill is None
    assert (report.update.order.state, report.update.order.remaining) == ("CANCELLED", D(2))
    filled = msgspec.structs.replace(closed, state="FILLED")
    assert await Process(Ledger()).handle(filled, age_s=1) == []


async def test_an_event_of_this_process_waits_for_its_own_report() -> None:
    process = Process(Ledger())
    work = process.events.dispatch(delivery(fill(), BEGAN + timedelta(seconds=1)))
    handling = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert not handling.done()
    (report,) = await Process(Ledger()).handle(fill(), age_s=1)
    process.sender.add("buyer", report.update)  # lane P0
    await process.sender.flush()
    await handling
    assert len(process.channel.sent) == 1


async def test_a_report_that_does_not_come_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORED_TIMEOUT_S", 0.01)
    process = Process(Ledger())
    await process.events.dispatch(delivery(fill(), BEGAN + timedelta(seconds=1)))
    assert process.channel.sent == []


async def test_orders_of_no_strategy_are_not_reported() -> None:
    assert await Process(Ledger("manual")).handle(fill(), age_s=1) == []
    assert await Process(Ledger()).handle(fill(None), age_s=1) == []
    assert await Process(Ledger()).handle(fill(uuid4()), age_s=1) == []


async def test_a_role_that_ends_leaves_the_event_to_the_next() -> None:
    process = Process(Ledger())
    work = process.events.dispatch(delivery(fill(), BEGAN + timedelta(seconds=1)))
    handling = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    process.sender.close()
    with pytest.raises(RetryableError):
        await handling
