"""Order of checks and submissions: exits wait for nothing but what sells the same position."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import IntentType, OrderType, Side
from qts.orders import SubmitResult
from qts.pipeline import IntentTracker, OrderSubmitter
from qts.risk import (
    ApprovedOrder,
    Exposure,
    OrderProposal,
    PreTradeGate,
    QuoteSnapshot,
    RiskLimitsConfig,
    RiskSnapshot,
    Switches,
)

NOW = datetime(2026, 11, 16, 1, tzinfo=UTC)
SYMBOL = "KRW-BTC"
HELD = Decimal(10)


def proposal(kind: IntentType, quantity: int, symbol: str = SYMBOL) -> OrderProposal:
    return OrderProposal(
        strategy_key="test",
        symbol=symbol,
        side=Side.SELL if kind.is_exit else Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal(quantity),
        intent_type=kind,
        signal_id=uuid4(),
        decided_at=NOW,
        expires_at=NOW + timedelta(seconds=5),
    )


class Book:
    """Holds ten of every symbol; counts what is on its way out. `hangs` blocks entries."""

    def __init__(self) -> None:
        self.sent: list[OrderProposal] = []
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.submitter = OrderSubmitter(
            PreTradeGate(RiskLimitsConfig().exact),
            self,
            self.read,
            IntentTracker(),
            lambda _proposal, _submitted: None,
            None,
        )

    async def read(self, proposal: OrderProposal) -> RiskSnapshot:
        pending = sum(
            (s.quantity for s in self.sent if (s.symbol, s.side) == (proposal.symbol, Side.SELL)),
            Decimal(0),
        )
        await asyncio.sleep(0)  # another order may be checked meanwhile
        if not proposal.intent_type.is_exit:
            await self.hangs.wait()
        exposure = Exposure(
            position=HELD,
            average_price=Decimal(1000),
            pending_buy=Decimal(0),
            pending_sell=pending,
            symbol_value=HELD * 1000,
            total_value=HELD * 1000,
            open_symbols=1,
            cash=Decimal(10**8),
            equity=Decimal(10**8),
            daily_pnl=Decimal(0),
            orders_today=10**9,  # used up, as the rate is: exits are exempt from both
            orders_last_minute=10**9,
            unknown_attempts=1,
            symbol_unknown=1,
        )
        price = Decimal(10_000)  # one is above the least value of an order
        return RiskSnapshot(
            market=QuoteSnapshot(last=price, bid=price, ask=price, age_ms=1.0),
            exposure=exposure,
            switches=Switches(
                account_enabled=True,
                strategy_enabled=True,
                market_active=False,
                frozen=False,
                reconciled=True,
                session_open=True,
                safety="FAIL",
            ),
            now=NOW,
        )

    async def submit(self, approved: ApprovedOrder) -> SubmitResult:
        await asyncio.sleep(0)
        self.sent.append(approved.proposal)
        return SubmitResult(intent_id=uuid4(), attempt_id=uuid4())


async def test_an_exit_does_not_wait_for_entries_that_wait_for_the_database() -> None:
    """Suspended symbol, unknown entry, used-up counts and FAIL do not hold it back either."""
    book = Book()
    book.hangs.clear()
    entries = [
        asyncio.create_task(book.submitter.submit(proposal(IntentType.ENTRY, 1), 0.01))
        for _ in range(5)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await book.submitter.submit(proposal(IntentType.EXIT_STOPLOSS, 10), 0.01)
    assert [each.intent_type for each in book.sent] == [IntentType.EXIT_STOPLOSS]
    book.hangs.set()
    await asyncio.wait(entries)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([IntentType.EXIT_STOPLOSS, IntentType.EXIT_SIGNAL]),
            st.integers(1, 10),
            st.sampled_from([None, 0, 5]),
        ),
        max_size=8,
    )
)
def test_concurrent_exits_never_sell_more_than_is_held(
    exits: Sequence[tuple[IntentType, int, int | None]],
) -> None:
    async def run() -> Book:
        book = Book()
        await asyncio.gather(
            *(
                book.submitter.submit(
                    proposal(kind, quantity),
                    0.0,
                    leave=None if leave is None else Decimal(leave),
                )
                for kind, quantity, leave in exits
            )
        )
        return book

    book = asyncio.run(run())
    assert sum((each.quantity for each in book.sent), Decimal(0)) <= HELD
    if exits:
        assert book.sent
