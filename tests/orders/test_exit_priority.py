"""Exits are sent at once: no entry in front of them, at the bus, the gate or the venue, delays one.

The record of the simulated venue decides what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from qts.brokers import open_account
from qts.database import Database
from qts.domain import IntentType, OrderType, Side, SystemClock
from qts.orders import (
    DatabaseSafetyControls,
    ExecutionContext,
    Ledger,
    OrderExecutor,
    OrderManager,
    OrdersConfig,
)
from qts.outbox import Dispatcher, OutboxConfig, PostgresBus
from qts.risk import FailSafe, KillSwitch, OrderProposal
from qts.risk.proposal import approve
from tests.conformance.venues import NETWORKED, SimulatedMarket, inject_fault
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import SYMBOL, OrderKit, UnusedLease
from tests.outbox.kit import until

HANG_S = 20.0
CONFIG = OrdersConfig(place_timeout_s=60.0, absent_after_s=120.0)


@asynccontextmanager
async def trading(database: Database, venue: SimulatedMarket) -> AsyncIterator[OrderManager]:
    """Yield the order manager of a run that executes commands at the venue."""
    clock, streams = SystemClock(), OutboxConfig().streams
    key = venue.broker.key
    await open_account(database, key, is_live=False)
    await KillSwitch(database, key).enable_unset(("test",), "tests")
    async with PostgresBus.open(database, streams) as bus:
        safety = DatabaseSafetyControls(FailSafe(database, key), KillSwitch(database, key))
        ledger = Ledger(database, bus, key, on_change=None)
        context = ExecutionContext(database, bus, venue.broker, ledger, safety, CONFIG, clock)
        dispatcher = Dispatcher()
        OrderExecutor(context, lambda: True, lambda _reason: None, UnusedLease(clock)).register(
            dispatcher
        )
        commands = [name for name in streams if name in ("everbit.trade.command", EXITS)]
        consumers = [bus.consumer(stream, dispatcher, str(key)) for stream in commands]
        tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
        try:
            yield OrderManager(database, bus, key, None, clock)
        finally:
            for consumer in consumers:
                consumer.stop()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


EXITS = "everbit.trade.exit"


async def submit(
    manager: OrderManager, venue: SimulatedMarket, kind: IntentType, **more: Any
) -> None:
    now, side = SystemClock().now(), Side.SELL if kind.is_exit else Side.BUY
    price = None if kind.is_exit else venue.resting().price
    values: dict[str, Any] = {
        "strategy_key": "test",
        "symbol": venue.symbol,
        "side": side,
        "type": OrderType.MARKET if kind.is_exit else OrderType.LIMIT,
        "quantity": venue.quantity,
        "price": price,
        "intent_type": kind,
        "signal_id": uuid4(),
        "decided_at": now,
        "expires_at": now + timedelta(seconds=60),
        **more,
    }
    await manager.submit(approve(OrderProposal(**values), now))


@pytest.mark.parametrize("name", ["kis", "upbit"])
async def test_no_entry_that_hangs_at_the_venue_delays_an_exit(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As many entries hang as there are workers, the first one on the symbol of the exit."""
    async with NETWORKED[name](database, tmp_path) as venue, trading(database, venue) as manager:
        # Entries hang for longer than the test waits for the exit.
        patient = aiohttp.ClientTimeout(total=2 * HANG_S)
        monkeypatch.setattr(venue.broker._client._session, "_timeout", patient)  # type: ignore[attr-defined]
        bought = await venue.broker.place(venue.request())
        await venue.until_closed(bought)
        before = len(await venue.record())
        entries = OutboxConfig().trade_command.concurrency
        inject_fault(venue, "slow", seconds=2 * HANG_S, count=entries)
        symbols = [venue.symbol, *(s for s in venue.simulator.symbols() if s != venue.symbol)]
        for symbol in symbols[:entries]:
            more = {} if symbol == venue.symbol else _cheapest(venue, symbol)
            await submit(manager, venue, IntentType.ENTRY, symbol=symbol, **more)

        async def all_hang() -> bool:
            return len(await venue.record()) == before + entries

        await until(all_hang, HANG_S)
        await submit(manager, venue, IntentType.EXIT_STOPLOSS)

        async def has_left() -> bool:
            return len(await venue.record()) == before + entries + 1

        await until(has_left, HANG_S)
        sent = await database.fetchval(
            "SELECT count(*) FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id"
            " WHERE i.intent_type = 'ENTRY' AND a.status = 'SENT'"
        )
        assert sent == entries, "the exit waited for an entry"


def _cheapest(venue: SimulatedMarket, symbol: str) -> dict[str, Any]:
    """Return quantity and price of an order at the best bid of another symbol."""
    market = venue.simulator.market
    unit = Decimal(10**8) if symbol.startswith("KRW-") else Decimal(1)
    price = Decimal(market.book(market.index[symbol]).bids[0].price) / unit
    quantity = (Decimal(20_000) / price).quantize(Decimal("0.00000001")) if unit > 1 else Decimal(1)
    return {"price": price, "quantity": quantity}


async def test_an_exit_of_a_suspended_symbol_is_sent_while_its_entry_is_unknown(
    kit: OrderKit,
) -> None:
    await kit.order(quantity=Decimal(5))
    await kit.reconciler.handle_report(kit.venue.trade("V1", Decimal(5), Decimal(100)))
    kit.venue.after = lost_reply
    entry = await kit.submit()
    await kit.work()
    kit.venue.after = lambda _request: None
    assert (await kit.attempts(entry.intent_id), await kit.suspended()) == (
        ["UNKNOWN"],
        {SYMBOL: "UNKNOWN"},
    )
    await kit.submit()  # stopped at the last check
    stop = {"side": Side.SELL, "intent_type": IntentType.EXIT_STOPLOSS, "quantity": Decimal(5)}
    await kit.submit(**stop)
    await kit.work()
    assert [request.is_exit for request in kit.venue.placed] == [False, False, True]
