"""Words of the orders tests: approved orders, and a desk with everything behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from qts.brokers import open_account
from qts.database import Database, Row
from qts.domain import Clock, IntentType, ManualClock, OrderType, Side, TimeLimit
from qts.orders import (
    CreateOrderAttempt,
    DatabaseSafetyControls,
    ExecutionContext,
    FillApplied,
    Ledger,
    OrderExecutor,
    OrderManager,
    OrdersConfig,
    OrderUpdate,
    Reconciler,
    SubmitResult,
    TimeInForceEnforcer,
)
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EXIT,
    Delivery,
    Dispatcher,
    OutboxConfig,
    PermanentError,
    PostgresBus,
)
from qts.outbox.claims import Claims
from qts.outbox.testing import HandledEvent, make_due, run_due
from qts.pipeline.order_handlers import position_update
from qts.risk import AccountFacts, ApprovedOrder, FailSafe, KillSwitch, OrderProposal
from qts.risk.proposal import approve
from tests.orders.fake_venue import Venue

STREAMS = OutboxConfig().streams
COMMANDS = (TRADE_EXIT, TRADE_COMMAND)
SYMBOL = "KRW-BTC"
PRICE = Decimal(100)
START = datetime(2026, 11, 16, 1, tzinfo=UTC)


def approved(clock: Clock, facts: AccountFacts | None = None, **more: Any) -> ApprovedOrder:
    values: dict[str, Any] = {
        "strategy_key": "scalper",
        "symbol": SYMBOL,
        "side": Side.BUY,
        "type": OrderType.LIMIT,
        "quantity": Decimal(2),
        "price": Decimal(100),
        "intent_type": IntentType.ENTRY,
        "signal_id": uuid4(),
        "decided_at": clock.now(),
        "expires_at": clock.now() + timedelta(seconds=60),
        **more,
    }
    return approve(OrderProposal(**values), clock.now(), facts)


class UnusedLease:
    """The lease of an account that no run has held; it is never lost."""

    epoch = 0
    is_held = True

    def __init__(self, clock: Clock) -> None:
        self.send_by = TimeLimit(clock, 1e9)


class OrderKit:
    """A desk, an executor and a reconciler on one database, before a venue in memory."""

    def __init__(
        self,
        database: Database,
        bus: PostgresBus,
        venue: Venue,
        clock: Clock,
        account: Any = None,  # PositionSync
        orders: Database | None = None,  # reserved: orders with facts are sent directly
        **config: Any,
    ) -> None:
        self._account = account
        self.database, self.bus, self.venue, self.clock = database, bus, venue, clock
        self.changes: list[OrderUpdate] = []
        self.kill = KillSwitch(database, venue.key)
        self.fail_safe = FailSafe(database, venue.key)
        safety = DatabaseSafetyControls(self.fail_safe, self.kill)
        settings = OrdersConfig(**config)
        ledger = Ledger(
            database,
            bus,
            venue.key,
            allow_short=settings.allow_short,
            on_change=self._on_change,
        )
        self.context = ExecutionContext(
            database, bus, venue, ledger, safety, settings, clock, orders
        )
        self.reconciler = Reconciler(self.context, account)
        self.executor = OrderExecutor(
            self.context,
            self.reconciler.is_reconciled,
            self.reconciler.request,
            UnusedLease(clock),
        )
        self.desk = OrderManager(
            database, bus, venue.key, self.changes.append, clock, self.executor
        )
        self.time_in_force = TimeInForceEnforcer(self.context, self.desk.cancel)
        self.dispatcher = Dispatcher()
        self.executor.register(self.dispatcher)

    def _on_change(self, change: OrderUpdate) -> None:
        self.changes.append(change)
        if self._account is not None and isinstance(change, FillApplied) and change.counted:
            self._account.expect(change)  # as the publisher and the handler of P0 do
            self._account.apply(position_update(change))

    async def open(self) -> None:
        await open_account(self.database, self.venue.key, is_live=False)
        await self.kill.enable_unset(("scalper",), "tests")
        await self.reconciler.reconcile_now()

    async def submit(self, **more: Any) -> SubmitResult:
        return await self.desk.submit(approved(self.clock, **more))

    async def work(self) -> list[HandledEvent]:
        """Carry out every command that is due."""
        return [one for stream in COMMANDS for one in await self._run_due(stream, self.dispatcher)]

    async def work_stale(self, stream: str) -> None:
        """Carry out the commands whose claims have ended."""
        claims = Claims(stream, STREAMS[stream], accounts=("", str(self.venue.key)))
        async with self.database.connection() as connection:
            for one in await claims.claim_stale(connection, 10, self.clock.monotonic_ns()):
                await self.dispatcher.dispatch(one.delivery)
                await claims.complete(connection, [one])

    async def give_up(self) -> None:
        """Make dead letters of the commands that are due."""

        async def refuse(_command: CreateOrderAttempt, _delivery: Delivery) -> None:
            raise PermanentError("nobody can carry it out")

        refusing = Dispatcher()
        for stream in COMMANDS:
            refusing.on(stream, CreateOrderAttempt)(refuse)
            await self._run_due(stream, refusing)

    async def _run_due(self, stream: str, dispatcher: Dispatcher) -> list[HandledEvent]:
        account = str(self.venue.key)
        return await run_due(self.database, stream, STREAMS[stream], dispatcher, account)

    async def work_later(self) -> list[HandledEvent]:
        for stream in COMMANDS:
            await make_due(self.database, stream)
        return await self.work()

    async def order(self, **more: Any) -> str:
        """Submit and place one; answers its name at the venue."""
        submitted = await self.submit(**more)
        await self.work()
        row = await self.attempt(submitted.attempt_id)
        assert row["status"] == "ACKED", row["error_message"]
        name: str = row["broker_order_id"]
        return name

    async def attempt(self, attempt_id: UUID | None) -> Row:
        row = await self.database.fetchrow("SELECT * FROM order_attempt WHERE id = $1", attempt_id)
        assert row is not None
        return row

    async def attempts(self, intent_id: UUID) -> list[str]:
        rows = await self.database.fetch(
            "SELECT status FROM order_attempt WHERE order_intent_id = $1 ORDER BY attempt_no",
            intent_id,
        )
        return [row["status"] for row in rows]

    async def intent(self, intent_id: UUID) -> tuple[str, str]:
        row = await self.database.fetchrow(
            "SELECT status, reason_code FROM order_intent WHERE id = $1", intent_id
        )
        assert row is not None
        return row["status"], row["reason_code"]

    async def position(self, symbol: str = SYMBOL) -> tuple[Decimal, Decimal, Decimal]:
        row = await self.database.fetchrow(
            "SELECT quantity, average_price, realised_pnl FROM position "
            "WHERE broker = $1 AND account = $2 AND symbol = $3",
            *self.venue.key,
            symbol,
        )
        if row is None:
            return Decimal(0), Decimal(0), Decimal(0)
        return row["quantity"], row["average_price"], row["realised_pnl"]

    async def events(self) -> list[str]:
        """Types of what was told on the bus, the oldest first."""
        rows = await self.database.fetch(
            "SELECT event_type FROM outbox_event_all WHERE stream = 'everbit.trade.event' "
            "ORDER BY id"
        )
        return [row["event_type"] for row in rows]

    async def suspended(self) -> dict[str, str]:
        rows = await self.database.fetch(
            "SELECT symbol, reason_code FROM market_state WHERE trade_status = 'SUSPENDED'"
        )
        return {row["symbol"]: row["reason_code"] for row in rows}


@asynccontextmanager
async def open_kit(
    database: Database, clock: Clock | None = None, *, named: bool = True, **config: Any
) -> AsyncIterator[OrderKit]:
    clock = clock or ManualClock(START)
    async with PostgresBus.open(database, STREAMS) as bus:
        made = OrderKit(database, bus, Venue(clock, named=named), clock, **config)
        await made.open()
        yield made
